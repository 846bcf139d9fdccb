"""What a user writes to extend eigen2: an operator, a learner."""

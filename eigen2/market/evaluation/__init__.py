"""What a policy is worth, and how much of it is luck."""

"""Deep Q-learning on the Lightning Trainer, for workloads whose actions are the cells of a map."""

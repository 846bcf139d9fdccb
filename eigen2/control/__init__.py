"""Any Gymnasium task with continuous actions as a workload of evolutionary reinforcement learning."""

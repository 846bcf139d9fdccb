"""How a run lives on Lightning: phases, checkpoints, folder, logger, terminal."""

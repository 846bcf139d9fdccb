"""How a run lives on Lightning: checkpoints, run folder, logger, terminal, phases, signals, uploads."""

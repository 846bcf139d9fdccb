"""Memory of runs: its estimate, its owners and its growth."""

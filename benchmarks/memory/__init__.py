"""What runs hold in memory, and what keeps it flat."""

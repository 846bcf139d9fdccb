"""What every algorithm and workload shares."""

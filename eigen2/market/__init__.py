"""The trading workload: prices, features, environment, networks."""

"""Evolution of the population: selection, operators, statistics."""

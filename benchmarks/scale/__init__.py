"""How time and memory grow with sizes and processes."""

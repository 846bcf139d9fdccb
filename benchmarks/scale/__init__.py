"""Growth of time and memory with sizes and with processes."""

"""What networks see of the market."""

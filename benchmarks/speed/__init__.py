"""Speed of a generation and its parts against references."""

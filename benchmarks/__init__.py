"""Speed and size against references, in one process."""

"""What agents learn, by seeds and variants."""

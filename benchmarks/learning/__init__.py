"""What agents learn, over seeds and variants."""

"""Several processes of one run: what they exchange and how they find each other."""

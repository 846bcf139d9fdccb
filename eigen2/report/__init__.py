"""A finished or running run as one HTML file, made of what the run has written alone."""

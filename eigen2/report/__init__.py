"""A finished or running run as one HTML file, made only from the files that it has written."""

"""Landscapes of terrain and fuel: synthetic ones, and tiles of the rasters of a region."""

"""Finished images: their formats, and the data that describe them."""

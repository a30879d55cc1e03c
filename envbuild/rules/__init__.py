"""Compatibility: facts of an image and a host, rules as functions over them, and one judge. Pure."""

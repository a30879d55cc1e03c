"""Add packages to an image of anyone."""

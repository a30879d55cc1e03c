"""Add packages to an image of any tool."""

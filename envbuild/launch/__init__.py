"""Launchers, and the one way to start the ranks of an image. Stays outside of images."""

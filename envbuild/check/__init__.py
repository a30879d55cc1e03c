"""Proving that an image's ranks really talk: what is run, what is judged, what is kept."""

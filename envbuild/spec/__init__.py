"""What was asked: models, the loader that keeps places, and the checks between them."""

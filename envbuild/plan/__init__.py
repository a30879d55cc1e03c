"""The layers of an image: steps, keys, and why a layer is built."""

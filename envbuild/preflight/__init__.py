"""Report what the processes of an image would load, without running them."""

"""Content-addressed blobs: stage, publish, verify."""

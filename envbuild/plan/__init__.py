"""Which layers: kinds, ownership of paths, keys, what changed and why."""

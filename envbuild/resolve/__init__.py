"""From what is asked to a lock, and from a lock to its files."""

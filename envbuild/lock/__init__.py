"""What exactly: the lock, its text, and whether it still satisfies what is asked."""

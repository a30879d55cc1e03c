"""The lock, its text, and whether it still satisfies a spec."""

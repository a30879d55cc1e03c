"""Resolves a spec to a lock, and fetches the locked files."""

"""Wiring: one file a verb, no logic of its own."""

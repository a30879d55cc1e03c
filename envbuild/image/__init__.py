"""Formats: what a finished image is as bytes, and what it carries."""

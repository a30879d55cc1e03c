"""A mini job."""

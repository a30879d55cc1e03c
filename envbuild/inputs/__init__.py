"""Finds and reads the files that a spec names: recipes, base images, sites, requirements."""

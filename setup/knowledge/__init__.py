"""Importers of knowledge: they read public sources, and write the rows of envbuild/rules/knowledge/imported.

A source is read once, into a short file of facts in `inputs/` with origin, date and digest. Importers make
rows from these files alone, so that `make knowledge` gives the same rows on every machine.
"""

"""Proposes a spec for a Dockerfile, an Apptainer definition file or a requirements file."""

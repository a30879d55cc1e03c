"""A batch script of Slurm. Pure."""

from __future__ import annotations

from envbuild.launch.formats.batch import batch_format

FORMAT = batch_format("slurm", "a batch script of Slurm")

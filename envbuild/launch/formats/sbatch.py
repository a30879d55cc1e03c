"""A batch script of Slurm. Pure."""

from __future__ import annotations

from envbuild.launch.formats.batch import batch_format
from envbuild.launch.schedulers.slurm import SCHEDULER

FORMAT = batch_format(SCHEDULER)

"""A batch script of PBS. Pure."""

from __future__ import annotations

from envbuild.launch.formats.batch import batch_format
from envbuild.launch.schedulers.pbs import SCHEDULER

FORMAT = batch_format(SCHEDULER)

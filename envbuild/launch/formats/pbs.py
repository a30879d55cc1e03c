"""A batch script of PBS. Pure."""

from __future__ import annotations

from envbuild.launch.formats.batch import batch_format

FORMAT = batch_format("pbs", "a batch script of PBS")

"""Functions that the Spark jobs run on the executors; the driver sends this file there."""

import json
import os
import socket
from pathlib import Path

from pyspark import BarrierTaskContext

RECORD = "record.json"


def worker_name(rank: int) -> str:
    """Return the name of the directory of a rank's worker."""
    return f"worker-{rank}"


def worker() -> int:
    """Return the rank whose worker started this executor: Spark runs it below that one's directory."""
    return int(Path.cwd().parents[1].name.rpartition("-")[2])


def gather(**own: float) -> "dict[str, list]":
    """Gather the facts of all tasks of a barrier stage, write them for the rank, and return them.

    A barrier stage runs its tasks at the same time: with one core an executor, each runs on another one.
    Returns the name of a fact → one value a task, in the order of the partitions.
    """
    facts = {"workers": worker(), "hosts": socket.gethostname(), "processes": os.getppid(), **own}
    texts = BarrierTaskContext.get().allGather(json.dumps(facts))
    received = [json.loads(text) for text in texts]
    gathered = {name: [task[name] for task in received] for name in facts}
    Path(RECORD).write_text(json.dumps({"worker": worker(), **gathered}))
    return gathered

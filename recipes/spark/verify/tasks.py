"""What the Spark jobs run on the executors; the driver sends this file there."""

import json
import os
import socket
from pathlib import Path

from pyspark import BarrierTaskContext

SEEN = "seen.json"


def worker_name(rank: int) -> str:
    """Return the name of the directory of a rank's worker."""
    return f"worker-{rank}"


def worker() -> int:
    """Return the rank whose worker started this executor: Spark runs it below that one's directory."""
    return int(Path.cwd().parents[1].name.rpartition("-")[2])


def meet(**own: float) -> "dict[str, list]":
    """Leave where the ranks look for it what all tasks of a barrier stage know, and return it.

    A barrier stage has its tasks run at the same time: with one core an
    executor, each runs on another one.

    Parameters
    ----------
    **own
        This task's facts; the others' are gathered.

    Returns
    -------
    dict
        Name of a fact → one value a task, in the order of the partitions.
    """
    mine = {"workers": worker(), "hosts": socket.gethostname(), "processes": os.getppid(), **own}
    texts = BarrierTaskContext.get().allGather(json.dumps(mine))
    told = [json.loads(text) for text in texts]
    seen = {name: [each[name] for each in told] for name in mine}
    Path(SEEN).write_text(json.dumps({"worker": worker(), **seen}))
    return seen

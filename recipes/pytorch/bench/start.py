# /// job
# id: pytorch.start
# launcher: any
# title: seconds until a rank runs Python, and until PyTorch is imported
# expect: {imported: 1}
# measures:
#   start: {unit: s, higher_is_better: false}
#   import: {unit: s, higher_is_better: false}
# ///
"""How long a rank takes to start, and to import PyTorch.

The start is counted from the command that starts all ranks; on other nodes it depends on their clocks.
"""

import os
import sys
import time

BEGAN = time.time()

import envbuild_job  # noqa: E402  # the clock is read first
import torch.distributed  # noqa: E402, F401  # this import is measured

IMPORTED = time.time()


def main() -> None:
    """Report both times."""
    rank, size = envbuild_job.launched()
    times = {"start": BEGAN - float(os.environ["ENVBUILD_STARTED"]), "import": IMPORTED - BEGAN}
    envbuild_job.report(rank=rank, size=size, imported=int("torch" in sys.modules), **times)


if __name__ == "__main__":
    main()

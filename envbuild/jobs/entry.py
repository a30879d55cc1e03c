"""The file that `apptainer test` starts: finds its library beside itself, and runs."""

from __future__ import annotations

import sys
from pathlib import Path

# Isolated mode (`python3 -I`) leaves a script's own directory out.
sys.path.insert(0, str(Path(__file__).absolute().parent / "lib"))

from envbuild.jobs.inside import main

if __name__ == "__main__":
    sys.exit(main())

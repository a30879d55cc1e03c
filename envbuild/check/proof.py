"""What an image carries so that it can prove itself: our own files, unchanged."""

from __future__ import annotations

from pathlib import Path

# Standard library only, Python 3.9 or newer: an image's Python is not ours.
CARRIED = (
    "check/builds",
    "check/differences",
    "check/facts",
    "check/findings",
    "check/inside",
    "check/judge",
    "check/launchers/__init__",
    "check/launchers/base",
    "check/launchers/known",
    "check/launchers/mpiexec",
    "check/launchers/torchrun",
    "check/probe",
    "check/trial",
    "spec/arithmetic",
    "system/removal",
)


def files() -> dict[str, bytes]:
    """Return what an image carries below ``/.envbuild``: path → content.

    ``judge.py`` is what ``apptainer test`` starts, ``jobs/envbuild_job.py`` what
    mini jobs import, ``lib/`` the judge itself under the names it has here.
    """
    here = Path(__file__).parent
    library = {f"lib/envbuild/{name}.py": (here.parent / f"{name}.py").read_bytes() for name in CARRIED}
    return {
        "judge.py": (here / "entry.py").read_bytes(),
        "jobs/envbuild_job.py": (here / "envbuild_job.py").read_bytes(),
        "lib/envbuild/__init__.py": b"",
        "lib/envbuild/check/__init__.py": b"",
        "lib/envbuild/spec/__init__.py": b"",
        "lib/envbuild/system/__init__.py": b"",
        **library,
    }

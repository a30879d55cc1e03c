"""The files of envbuild that an image carries, unchanged, to test itself."""

from __future__ import annotations

from pathlib import Path

from envbuild import jobs


def embedded_files() -> dict[str, bytes]:
    """Return what an image carries below ``/.envbuild``: path → content.

    `apptainer test` starts ``judge.py``, jobs import ``jobs/envbuild_job.py``, and ``lib/`` is the judge.
    """
    directory = Path(jobs.__file__).parent
    texts = {path.name: path.read_bytes() for path in sorted(directory.glob("*.py"))}
    return {
        "judge.py": texts["entry.py"],
        "jobs/envbuild_job.py": texts["envbuild_job.py"],
        "lib/envbuild/__init__.py": b"",
        **{f"lib/envbuild/jobs/{name}": text for name, text in texts.items()},
    }

"""Shows that a rank loads a library from the site, with all that it needs."""

import ctypes

import envbuild_job


def report_loaded(name: str, *, opened: str = "") -> None:
    """Open a library, or another one in its place, and report whether the file of the site was loaded."""
    rank, size = envbuild_job.launched()
    ctypes.CDLL(opened or name)
    loaded = envbuild_job.mapped_libraries().count(f"/media/envbuild/{name}")
    envbuild_job.report(rank=rank, size=size, loaded=loaded)

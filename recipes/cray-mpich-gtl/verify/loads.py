# /// job
# id: cray-mpich-gtl.loads
# title: each rank loads Cray MPICH's library for GPU memory
# expect: {loaded: 1}
# hint: "`envbuild check IMAGE --site SITE` names what the library needs and lacks"
# controls:
#   another library: [loaded]
# ///
"""Each rank loads libmpi_gtl_cuda.so.0 from the site, with all that it needs."""

import ctypes

import envbuild_job

LIBRARY = "libmpi_gtl_cuda.so.0"


def main() -> None:
    """Load the library, and report whether it is the file of the site."""
    rank, size = envbuild_job.launched()
    # control another library: ctypes.CDLL("libc.so.6")
    ctypes.CDLL(LIBRARY)
    loaded = envbuild_job.mapped_libraries().count(f"/media/envbuild/{LIBRARY}")
    envbuild_job.report(rank=rank, size=size, loaded=loaded)


if __name__ == "__main__":
    main()

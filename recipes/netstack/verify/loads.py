# /// job
# id: netstack.loads
# title: each rank loads the site's libfabric
# expect: {loaded: 1}
# hint: "`envbuild check IMAGE --site SITE` names what the library needs and lacks"
# controls:
#   another library: [loaded]
# ///
"""Each rank loads libfabric.so.1 from the site, with all that it needs."""

import ctypes

import envbuild_job

LIBRARY = "libfabric.so.1"


def main() -> None:
    """Load the library, and report whether it is the file of the site."""
    rank, size = envbuild_job.launched()
    # control another library: ctypes.CDLL("libc.so.6")
    ctypes.CDLL(LIBRARY)
    loaded = envbuild_job.mapped_libraries().count(f"/media/envbuild/{LIBRARY}")
    envbuild_job.report(rank=rank, size=size, loaded=loaded)


if __name__ == "__main__":
    main()

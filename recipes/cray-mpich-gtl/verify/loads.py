# /// job
# id: cray-mpich-gtl.loads
# title: each rank loads Cray MPICH's library for GPU memory
# expect: {loaded: 1}
# hint: "`envbuild check IMAGE --site SITE` names what the library needs and lacks"
# controls:
#   another library: [loaded]
# ///
"""Each rank loads libmpi_gtl_cuda.so.0 from the site, with all that it needs."""

from site_library import report_loaded

# control another library: report_loaded("libmpi_gtl_cuda.so.0", opened="libc.so.6")
report_loaded("libmpi_gtl_cuda.so.0")

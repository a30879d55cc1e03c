# /// job
# id: aws-ofi-nccl.loads
# title: each rank loads the site's plug-in of NCCL
# expect: {loaded: 1}
# hint: "`envbuild check IMAGE --site SITE` names what the library needs and lacks"
# controls:
#   another library: [loaded]
# ///
"""Each rank loads libnccl-net.so from the site, with all that it needs."""

from site_library import report_loaded

# control another library: report_loaded("libnccl-net.so", opened="libc.so.6")
report_loaded("libnccl-net.so")

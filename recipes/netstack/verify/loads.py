# /// job
# id: netstack.loads
# title: each rank loads the site's libfabric
# expect: {loaded: 1}
# hint: "`envbuild check IMAGE --site SITE` names what the library needs and lacks"
# controls:
#   another library: [loaded]
# ///
"""Each rank loads libfabric.so.1 from the site, with all that it needs."""

from site_library import report_loaded

# control another library: report_loaded("libfabric.so.1", opened="libc.so.6")
report_loaded("libfabric.so.1")

# /// job
# id: libfabric.tcp
# title: libfabric's own ping-pong between neighbours over its tcp provider, every byte compared
# environment: {FI_PROVIDER: tcp, FI_LOG_LEVEL: info, FI_LOG_SUBSYS: core}
# says: {provider: ["Opened fabric: 127."]}
# expect:
#   served: 1
#   asked: 1
#   over_network: 1
# hint: "`apptainer exec IMAGE fi_info` lists the providers that the image has here"
# controls:
#   no neighbour is asked: [served, asked]
#   another transport:
#     fails: [provider, over_network]
#     environment: {FI_PROVIDER: shm}
# ///
"""libfabric's own ping-pong over its tcp provider."""

import pingpong

pingpong.main()

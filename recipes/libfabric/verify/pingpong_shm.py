# /// job
# id: libfabric.shm
# title: libfabric's own ping-pong between neighbours over its shm provider, every byte compared
# environment: {FI_PROVIDER: shm, FI_LOG_LEVEL: info, FI_LOG_SUBSYS: core}
# says: {provider: ["Opened fabric: shm"]}
# expect:
#   served: 1
#   asked: 1
# hint: "`apptainer exec IMAGE fi_info` lists the providers that the image has here"
# controls:
#   no neighbour is asked: [served, asked]
#   another transport:
#     fails: [provider]
#     environment: {FI_PROVIDER: tcp}
# ///
"""libfabric's own ping-pong over its shm provider."""

import pingpong

pingpong.main()

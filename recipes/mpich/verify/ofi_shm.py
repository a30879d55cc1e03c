# /// job
# id: mpi.ofi-shm
# title: libfabric's shm provider carries the messages
# own_mpi: true
# environment:
#   MPIR_CVAR_NOLOCAL: "1"
#   MPIR_CVAR_CH4_NETMOD: ofi
#   FI_PROVIDER: shm
#   FI_LOG_LEVEL: info
#   FI_LOG_SUBSYS: core
# says: {provider: [Using shm provider]}
# expect:
#   sender_least: r - n*((r-1)//n)
#   sender_most: r - n*((r-1)//n)
# hint: the transport that was asked for was not taken, or did not carry the messages
# controls:
#   from the wrong rank: [sender_least, sender_most]
#   another transport:
#     fails: [provider]
#     environment: {FI_PROVIDER: tcp}
# ///
"""Messages over libfabric's shm provider; MPICH's own shared memory is off."""

import transport

transport.main()

# /// job
# id: mpi.ucx-shm
# title: UCX carries the messages through shared memory
# own_mpi: true
# environment:
#   MPIR_CVAR_NOLOCAL: "1"
#   MPIR_CVAR_CH4_NETMOD: ucx
#   UCX_TLS: "sm,self"
#   UCX_LOG_LEVEL: info
# says: {transport: [tag(sysv/, tag(posix/, tag(cma/, tag(xpmem/]}
# expect:
#   sender_least: r - n*((r-1)//n)
#   sender_most: r - n*((r-1)//n)
# hint: the transport that was asked for was not taken, or did not carry the messages
# controls:
#   from the wrong rank: [sender_least, sender_most]
#   another transport:
#     fails: [transport]
#     environment: {UCX_TLS: "tcp,self"}
# ///
"""Messages over UCX through shared memory; MPICH's own shared memory is off."""

import transport

transport.main()

# /// job
# id: mpi.ucx-shm
# title: UCX carries the messages through shared memory
# own_mpi: true
# environment:
#   OMPI_MCA_pml: ucx
#   OMPI_MCA_pml_ucx_tls: any
#   OMPI_MCA_pml_ucx_devices: any
#   UCX_TLS: "sm,self"
#   UCX_LOG_LEVEL: info
# says: {transport: [tag(sysv/, tag(posix/, tag(cma/, tag(xpmem/]}
# expect:
#   sender_least: r - n*((r-1)//n)
#   sender_most: r - n*((r-1)//n)
# hint: the transport that was asked for was not taken, or did not carry the messages
# controls:
#   from the wrong rank: [sender_least, sender_most]
#   # Open MPI's own shared memory, its default.
#   another transport:
#     fails: [transport]
#     environment: {OMPI_MCA_pml: ob1, OMPI_MCA_btl: "self,sm"}
# ///
"""Messages over UCX through shared memory. Open MPI ends if it cannot take this path."""

import transport

transport.main()

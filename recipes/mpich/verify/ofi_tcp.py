# /// job
# id: mpi.ofi-tcp
# title: libfabric's tcp provider carries the messages
# own_mpi: true
# environment:
#   MPIR_CVAR_NOLOCAL: "1"
#   MPIR_CVAR_CH4_NETMOD: ofi
#   FI_PROVIDER: tcp
#   FI_LOG_LEVEL: info
#   FI_LOG_SUBSYS: core
# says: {provider: [Using tcp provider]}
# expect:
#   sender_least: r - n*((r-1)//n)
#   sender_most: r - n*((r-1)//n)
#   over_network: 1
# hint: the transport that was asked for was not taken, or did not carry the messages
# controls:
#   from the wrong rank: [sender_least, sender_most]
#   another transport:
#     fails: [provider, over_network]
#     environment: {FI_PROVIDER: shm}
#   # The provider is opened, and logs it: only the network's counters show that it carried nothing.
#   MPICH's own shared memory:
#     fails: [over_network]
#     environment: {MPIR_CVAR_NOLOCAL: "0"}
# ///
"""Messages over libfabric's tcp provider; MPICH's own shared memory is off."""

import transport

transport.main()

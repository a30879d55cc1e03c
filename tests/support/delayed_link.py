"""Pass Ethernet frames between two interfaces, each after a delay: `delayed_link.py SECONDS ONE OTHER`.

tc's netem does it in the kernel, where that has the module; this needs a network namespace alone. It writes
`ready`, and runs until it is ended.
"""

from __future__ import annotations

import mmap
import selectors
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator

# <linux/if_packet.h> and <linux/if_ether.h>.
SOL_PACKET, ETH_P_ALL = 263, 3
PACKET_RX_RING, PACKET_VERSION, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 5, 10, 15, 23
TPACKET_V2 = 1
# tp_status, tp_len, tp_snaplen, tp_mac of struct tpacket2_hdr.
HEADER = struct.Struct("=IIIH")
FOR_KERNEL, TP_STATUS_USER = struct.pack("=I", 0), 1
# struct virtio_net_hdr stands before the frame: what the sender's kernel left undone, as checksums and the
# division into packets.
VNET_HEADER_BYTES = 10
# A frame has up to 64 KiB and headers.
SLOT_BYTES, SLOTS = 128 << 10, 512


class Port:
    """An interface of which frames are taken, and to which others are sent.

    Its frames wait in a ring, for the memory of a socket holds few of them.
    """

    def __init__(self, interface: str) -> None:
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self.socket.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V2)
        self.socket.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        ring = struct.pack("=IIII", SLOT_BYTES, SLOTS, SLOT_BYTES, SLOTS)
        self.socket.setsockopt(SOL_PACKET, PACKET_RX_RING, ring)
        self.ring = mmap.mmap(self.socket.fileno(), SLOT_BYTES * SLOTS)
        self.slot = 0
        self.socket.bind((interface, ETH_P_ALL))

    def frames(self) -> Iterator[bytes]:
        """Yield the frames that wait, in the order in which they came."""
        while True:
            start = self.slot * SLOT_BYTES
            status, _, size_bytes, offset = HEADER.unpack_from(self.ring, start)
            if not status & TP_STATUS_USER:
                return
            begin = start + offset - VNET_HEADER_BYTES
            frame = self.ring[begin : start + offset + size_bytes]
            self.ring[start : start + len(FOR_KERNEL)] = FOR_KERNEL
            self.slot = (self.slot + 1) % SLOTS
            yield frame


def main() -> None:
    """Pass frames on, each after the delay."""
    delay_s = float(sys.argv[1])
    one, other = Port(sys.argv[2]), Port(sys.argv[3])
    ready = selectors.DefaultSelector()
    ready.register(one.socket, selectors.EVENT_READ, (one, other))
    ready.register(other.socket, selectors.EVENT_READ, (other, one))
    waiting: deque[tuple[float, Port, bytes]] = deque()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        until_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in ready.select(until_s):
            source, target = key.data
            waiting += ((time.monotonic() + delay_s, target, frame) for frame in source.frames())
        while waiting and waiting[0][0] <= time.monotonic():
            _, target, frame = waiting.popleft()
            target.socket.send(frame)


if __name__ == "__main__":
    main()

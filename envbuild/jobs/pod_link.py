"""Messages between the pods of a job: authenticated by the job's secret, bounded, and never replayed.

Standard library only; it travels in every image.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Mapping

MAX_LINE_BYTES = 4096
GREETING = "envbuild-pods-1"
SILENCE_S = 5.0
"""A pod that sends nothing for this long is gone, in seconds."""
_HANDSHAKE_S = 5.0
_NONCE_CHARACTERS = 32


class LinkError(Exception):
    """The other end is not a pod of this job, or it is gone."""


class Link:
    """An authenticated connection between pod 0 and another pod."""

    def __init__(self, connection: socket.socket, key: bytes, *, sends_as: str, receives_as: str) -> None:
        connection.settimeout(SILENCE_S)
        self._connection, self._key = connection, key
        self._sends_as, self._receives_as = sends_as, receives_as
        self._sent = self._received = 0
        self._buffer = bytearray()
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message. LinkError: the other end is gone."""
        text = json.dumps(message, sort_keys=True)
        with self._lock:
            mac = _mac(self._key, self._sends_as, str(self._sent), text)
            self._sent += 1
            try:
                self._connection.sendall(f"{mac} {text}\n".encode())
            except OSError as error:
                raise LinkError("the connection ended") from error

    def receive(self) -> Mapping[str, object]:
        """Return the next message. LinkError: none came in time, or it is not of this job."""
        mac, _, text = _line(self._connection, self._buffer, time.monotonic() + SILENCE_S).partition(" ")
        if not _same(mac, _mac(self._key, self._receives_as, str(self._received), text)):
            raise LinkError("a message is not of this job")
        self._received += 1
        message = json.loads(text)
        if not isinstance(message, dict):
            raise LinkError("a message is not a mapping")
        return message

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def greet(connection: socket.socket, secret: bytes, pods: int) -> tuple[int, Link]:
    """Check on pod 0 that the other end has the secret; return the index that it states, and the link.

    The secret does not travel: each end proves that it has it, on a nonce of the other.
    """
    nonce, buffer, deadline = secrets.token_hex(16), bytearray(), time.monotonic() + _HANDSHAKE_S
    connection.settimeout(_HANDSHAKE_S)
    try:
        connection.sendall(f"{GREETING} {nonce}\n".encode())
        words = _line(connection, buffer, deadline).split(" ")
        if len(words) != 3 or not words[0].isdecimal() or len(words[0]) > 6:
            raise LinkError("it does not speak the protocol of pods")
        stated, other, mac = words
        if len(other) != _NONCE_CHARACTERS or not _same(mac, _mac(secret, "pod", nonce, other, stated)):
            connection.sendall(b"refused\n")
            raise LinkError("its secret is another")
        index = int(stated)
        if not 1 <= index < pods:
            raise LinkError(f"it states index {index}, and indices are 1 to {pods - 1}")
        connection.sendall(f"{_mac(secret, 'pod-0', nonce, other, stated)}\n".encode())
    except OSError as error:
        raise LinkError("the connection ended") from error
    key = _mac(secret, "key", nonce, other, stated).encode()
    return index, Link(connection, key, sends_as="pod-0", receives_as="pod")


def join(connection: socket.socket, secret: bytes, index: int) -> Link:
    """Prove to pod 0 that this is a pod of its job, and check that it is pod 0."""
    buffer, deadline, own = bytearray(), time.monotonic() + _HANDSHAKE_S, secrets.token_hex(16)
    connection.settimeout(_HANDSHAKE_S)
    try:
        greeting, _, nonce = _line(connection, buffer, deadline).partition(" ")
        if greeting != GREETING or len(nonce) != _NONCE_CHARACTERS:
            raise LinkError("it does not speak the protocol of pods")
        stated = str(index)
        proof = _mac(secret, "pod", nonce, own, stated)
        connection.sendall(f"{stated} {own} {proof}\n".encode())
        answer = _line(connection, buffer, deadline)
    except OSError as error:
        raise LinkError("the connection ended") from error
    if not _same(answer, _mac(secret, "pod-0", nonce, own, stated)):
        raise PermissionError("pod 0 has another secret")
    return Link(
        connection, _mac(secret, "key", nonce, own, stated).encode(), sends_as="pod", receives_as="pod-0"
    )


def _mac(key: bytes, *parts: str) -> str:
    return hmac.new(key, "\0".join(parts).encode(), hashlib.sha256).hexdigest()


def _same(left: str, right: str) -> bool:
    return hmac.compare_digest(left.encode(), right.encode())


def _line(connection: socket.socket, buffer: bytearray, deadline: float) -> str:
    """Return the next line; the rest stays in the buffer. LinkError: it is too long, or late."""
    while b"\n" not in buffer:
        if len(buffer) > MAX_LINE_BYTES:
            raise LinkError("a line is too long")
        if time.monotonic() > deadline:
            raise LinkError(f"it sent no message for {SILENCE_S:.0f} s")
        try:
            piece = connection.recv(1024)
        except OSError as error:
            raise LinkError("the connection ended, or it sent nothing in time") from error
        if not piece:
            raise LinkError("the connection ended")
        buffer += piece
    line, _, rest = bytes(buffer).partition(b"\n")
    buffer[:] = rest
    if len(line) > MAX_LINE_BYTES:
        raise LinkError("a line is too long")
    try:
        return line.decode("ascii")
    except UnicodeDecodeError as error:
        raise LinkError("a line is not text") from error

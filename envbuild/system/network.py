"""The only module that opens connections.

Proxies and netrc come from the environment; certificates from the machine's store, unless the environment
names others. Callers compare digests: nothing here decides whether bytes are the right ones.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self
from urllib.parse import unquote, urlsplit

from envbuild.errors import MachineError
from envbuild.system import process
from envbuild.system.files import copy
from envbuild.system.redaction import redact

if TYPE_CHECKING:
    import requests

_CHUNK_BYTES = 256 * 1024
MAX_FILE_BYTES = 64 << 30  # a longer answer has no end
_PROXY_S = 10.0  # limit on connecting to a proxy
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_NOT_FOUND = (404, 410)

_REACH = (
    "`envbuild doctor --online` asks every address; proxies come from https_proxy, mirrors from `origins`"
    " of the site file"
)
_ADDRESS = "correct that address: `origins` of the site file, or pip's or apt's configuration, names it"


class NetworkError(MachineError):
    """A request failed; `gone` if the server answered that it does not have the file (404, 410)."""

    def __init__(self, problem: str, *, gone: bool = False, hint: str = _REACH) -> None:
        super().__init__(problem, hint=hint)
        self.gone = gone


class BusyError(NetworkError):
    """A server answered that it fails for now, and perhaps when to ask it again."""

    def __init__(self, problem: str, *, retry_after: str, hint: str) -> None:
        super().__init__(problem, hint=hint)
        self.pause_s = float(retry_after) if re.fullmatch("[0-9]{1,6}", retry_after) else 0.0


class ProxyError(NetworkError):
    """The proxy that an environment variable names does not answer."""


def dead_proxy(address: str) -> ProxyError | None:
    """Return the error for the proxy of an address if there is one, and it does not answer.

    To be asked once a request failed: what failed names the server, not the proxy.
    """
    from requests.utils import should_bypass_proxies  # noqa: PLC0415  # as in `Client`

    scheme = urlsplit(address).scheme.lower()
    names = (f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY")
    name = next(filter(os.environ.get, names), None)
    if scheme not in ("http", "https") or name is None or should_bypass_proxies(address, None):
        return None
    value = os.environ[name]
    try:
        proxy = urlsplit(value if "://" in value else f"http://{value}")
        port = proxy.port or {"https": 443, "http": 80}.get(proxy.scheme, 1080)
        socket.create_connection((proxy.hostname or "", port), timeout=_PROXY_S).close()
    except (OSError, ValueError):
        problem = f"the proxy `{redact(value)}`, which {name} names, does not answer"
        return ProxyError(problem, hint=f"correct or unset {name}; no_proxy lists hosts that need no proxy")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits of each request, and of the resumptions of each download."""

    attempts: int = 5
    """Connections for a request, and requests for a download (count)."""
    connect_s: float = 15.0
    """Limit on making a connection, in seconds."""
    read_s: float = 60.0
    """Limit on waiting for further bytes, in seconds."""
    pause_s: float = 0.5
    """Pause before the third attempt, in seconds; it doubles each time."""
    longest_pause_s: float = 20.0
    """Limit on each pause, whatever a server's Retry-After says, in seconds."""
    grace_s: float = 300.0
    """Time of an answer whose bytes may come at any rate, in seconds."""
    least_bytes_s: float = 16 * 1024.0
    """Lowest average rate of an answer after that, in bytes per second."""


def local_path(address: str) -> Path | None:
    """Return the path that a ``file:`` address or a plain path names; None for other addresses."""
    parts = urlsplit(address)
    if parts.scheme in ("file", "copy"):
        return Path(unquote(parts.path))
    return Path(address) if not parts.scheme else None


def speaks_tls(host: str, *, hint: str) -> bool:
    """Return whether a server, given as ``HOST[:PORT]``, answers by TLS, whatever its certificate.

    NetworkError, with the `hint`: it cannot be reached.
    """
    server = urlsplit(f"https://{host}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent but the greeting; requests verify the certificate.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        address = (server.hostname or "", server.port or 443)
        with socket.create_connection(address, timeout=RequestLimits().connect_s) as connection:
            connection.settimeout(RequestLimits().connect_s)
            try:
                context.wrap_socket(connection).close()
            except (ssl.SSLError, ConnectionResetError):
                return False
    except OSError as error:
        raise NetworkError(f"{host} cannot be reached", hint=hint) from error
    return True


def trusted_certificates() -> str | bool:
    """Return the machine's trusted certificates: SSL_CERT_FILE, SSL_CERT_DIR, or OpenSSL's default places.

    A centre's own authority is there, but not in the package that requests uses. That package (True) is the
    fallback of a machine that has none.
    """
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return paths.cafile
    # OpenSSL looks for hashed names; a directory without any trusts no server.
    if paths.capath and next(Path(paths.capath).glob("*.0"), None) is not None:
        return paths.capath
    return True


class Client:
    """Makes requests for several threads, within limits; a ``with`` block closes its connections.

    `proxies` (``scheme://host`` → proxy) add to those of the environment. `hint` says what helps if a server
    does not answer, or answers wrongly; by default what helps with addresses of packages. Without `netrc`,
    no password of the environment's netrc is sent, not even where a server redirects to.
    """

    def __init__(
        self,
        limits: RequestLimits | None = None,
        proxies: Mapping[str, str] | None = None,
        *,
        hint: str = "",
        netrc: bool = True,
    ) -> None:
        # requests takes 60 ms, and many commands send nothing.
        from envbuild.system import sessions  # noqa: PLC0415

        self._limits = limits or RequestLimits()
        self._reach_hint, self._address_hint = hint or _REACH, hint or _ADDRESS
        self._proxies = dict(proxies or {})
        session = partial(
            sessions.open_session,
            pause_s=self._limits.pause_s,
            longest_pause_s=self._limits.longest_pause_s,
            transient=_TRANSIENT,
            certificates=trusted_certificates(),
            proxies=self._proxies,
            netrc=netrc,
        )
        self._session, self._single = session(attempts=self._limits.attempts), session(attempts=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        self._session.close()
        self._single.close()

    def status(self, address: str) -> int:
        """Return the HTTP status of an address; one attempt."""
        with self._answer("GET", address, session=self._single) as response:
            return response.status_code

    def length(self, address: str) -> int:
        """Return the length of a file, in bytes; count them if the server does not state it."""
        path = local_path(address)
        if path is not None:
            return _local_length(path)
        try:
            with self._file("HEAD", address) as response:
                length = _content_length(response)
        except NetworkError:
            length = None  # some servers refuse HEAD; the answer to GET counts
        if length is not None:
            return length
        with self._file("GET", address) as response:
            length = _content_length(response)
            if length is not None:
                return length
            return sum(map(len, self.chunks(response, MAX_FILE_BYTES, _too_long(address))))

    def download(self, address: str, target: Path, *, size_bytes: int) -> Iterator[int]:
        """Write the file at an address, and yield the length of `target` as it changes.

        A broken transfer is resumed where it ended. Never more than `size_bytes`, the expected length, are
        written. NetworkError: the file did not arrive within the limits, is gone, or has another length.
        """
        path = local_path(address)
        if path is not None:
            _local_length(path)
            copy(path, target)
            yield target.stat().st_size
            return
        with target.open("wb") as file:
            yield from self.complete(
                file, partial(self._file, "GET", address), size_bytes=size_bytes, name=redact(address)
            )

    def complete(
        self,
        file: BinaryIO,
        request: Callable[[Mapping[str, str]], AbstractContextManager[requests.Response]],
        *,
        size_bytes: int,
        name: str,
    ) -> Iterator[int]:
        """Write the bytes that a file lacks at its end, and yield its length as it changes.

        `request` makes a request with more headers; one whose answer breaks off is repeated for the rest.
        `name` is for messages. Raises as `download`.
        """
        too_long = f"{name} is longer than the {size_bytes} bytes that it should have"
        for _ in range(self._limits.attempts):
            have = file.seek(0, os.SEEK_END)
            # An answer may break off behind its last byte, as the end of a chunked transfer.
            if have == size_bytes > 0:
                return
            try:
                with request({"Range": f"bytes={have}-"} if have else {}) as response:
                    have = file.seek(_first_byte(response, have))
                    file.truncate()
                    for chunk in self.chunks(response, size_bytes - have, too_long):
                        have += file.write(chunk)
                        yield have
            except BrokenOffError:
                have = file.seek(0, os.SEEK_END)
            if have == size_bytes:
                return
        raise NetworkError(
            f"{name}: the transfer ended after {have} of {size_bytes} bytes", hint=self._reach_hint
        )

    @contextmanager
    def exchange(
        self,
        method: str,
        address: str,
        *,
        headers: Mapping[str, str],
        authorize: Callable[[requests.PreparedRequest], requests.PreparedRequest],
        body: bytes | BinaryIO = b"",
        once: bool = False,
        follow: bool = True,
    ) -> Iterator[requests.Response]:
        """Yield the answer to a request, whatever its status.

        Redirections are followed, unless not to `follow`; what `authorize` adds goes to the first host alone.
        NetworkError: there is no answer, or, if it is asked but `once`, none for now.
        """
        session = self._single if once else self._session
        # A body is read as it was sent.
        headers = {"Accept-Encoding": "identity", **headers}
        with self._answer(
            method, address, headers, session=session, body=body, authorize=authorize, follow=follow
        ) as response:
            if once and response.status_code in _TRANSIENT:
                problem = f"{redact(address)} answered with status {response.status_code}"
                retry_after = response.headers.get("Retry-After", "")
                raise BusyError(problem, retry_after=retry_after, hint=self._reach_hint)
            yield response

    def pause_or_raise(self, failures: int, error: NetworkError) -> None:
        """Pause after a request failed that its caller repeats; raise its error after the last attempt."""
        if failures >= self._limits.attempts:
            raise error
        asked_s = error.pause_s if isinstance(error, BusyError) else 0.0
        pause_s = max(asked_s, self._limits.pause_s * 2 ** (failures - 1))
        process.pause(min(pause_s, self._limits.longest_pause_s))

    def read(self, response: requests.Response, limit_bytes: int) -> bytes:
        """Return the whole body of an answer; NetworkError if it is longer than the limit, or breaks off."""
        too_long = f"{redact(response.url)} is longer than the {limit_bytes} bytes that it may have"
        return b"".join(self.chunks(response, limit_bytes, too_long))

    @contextmanager
    def _file(
        self, method: str, address: str, headers: Mapping[str, str] | None = None
    ) -> Iterator[requests.Response]:
        """Yield the answer to a request for a file that has to be there."""
        # The length of the file itself counts, not that of a compressed transfer.
        with self._answer(method, address, {"Accept-Encoding": "identity", **(headers or {})}) as response:
            code = response.status_code
            if code == 416:
                raise NetworkError(
                    f"{redact(address)} has fewer bytes than requested (HTTP 416)", hint=_ADDRESS
                )
            if code >= 400:
                problem = f"{redact(address)} answered with status {code}"
                raise NetworkError(problem, gone=code in _NOT_FOUND)
            yield response

    @contextmanager
    def _answer(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str] | None = None,
        session: requests.Session | None = None,
        body: bytes | BinaryIO = b"",
        authorize: Callable[[requests.PreparedRequest], requests.PreparedRequest] | None = None,
        *,
        follow: bool = True,
    ) -> Iterator[requests.Response]:
        import requests  # noqa: PLC0415  # as in `__init__`

        shown = redact(address)
        timeout = (self._limits.connect_s, self._limits.read_s)
        try:
            response = (session or self._session).request(
                method,
                address,
                headers=headers,
                data=body or None,
                auth=authorize,
                stream=True,
                timeout=timeout,
                allow_redirects=follow,
            )
        except requests.exceptions.SSLError as error:
            if "WRONG_VERSION_NUMBER" in str(error) or "record layer" in str(error):
                hint = (
                    "use an address that begins with http:; for a registry of your own"
                    f" ENVBUILD_PLAIN_HTTP={urlsplit(address).netloc.rpartition('@')[2]}"
                )
                raise NetworkError(f"{shown} does not answer by TLS", hint=hint) from error
            hint = "SSL_CERT_FILE and REQUESTS_CA_BUNDLE name the certificates that your network needs"
            raise NetworkError(f"{shown}: its certificate is not trusted here", hint=hint) from error
        except (requests.Timeout, requests.ConnectionError) as error:
            unreachable = NetworkError(f"{shown} cannot be reached", hint=self._reach_hint)
            raise dead_proxy(address) or unreachable from error
        except (requests.RequestException, UnicodeError) as error:
            raise NetworkError(f"{shown} is not a usable address", hint=self._address_hint) from error
        with response:
            yield response

    def chunks(self, response: requests.Response, limit_bytes: int, too_long: str) -> Iterator[bytes]:
        """Yield the bytes of an answer as they come, whatever their encoding."""
        from urllib3.exceptions import HTTPError  # noqa: PLC0415  # as in `__init__`

        size, started = 0, time.monotonic()
        try:
            # `iter_content` would wait for whole chunks, and unpack more than was sent.
            while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=False):
                if process.is_shutting_down():
                    raise KeyboardInterrupt
                size += len(chunk)
                if size > limit_bytes:
                    raise NetworkError(too_long, hint=self._address_hint)
                if time.monotonic() - started > self._limits.grace_s + size / self._limits.least_bytes_s:
                    shown, seconds = redact(response.url), time.monotonic() - started
                    too_slow = f"{shown} is too slow: {size} bytes came in {seconds:.0f} s"
                    raise NetworkError(too_slow, hint=self._reach_hint)
                yield chunk
        except HTTPError as error:
            problem = f"{redact(response.url)} was cut after {size} bytes"
            raise BrokenOffError(problem, hint=self._reach_hint) from error


class BrokenOffError(NetworkError):
    """A transfer ended before the file did."""


def _local_length(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return file.seek(0, os.SEEK_END)
    except OSError as error:
        problem = f"`{path}` cannot be read: {error.strerror}"
        raise NetworkError(problem, gone=isinstance(error, FileNotFoundError), hint=_ADDRESS) from error


def _too_long(address: str) -> str:
    return f"{redact(address)} is longer than any file should be ({MAX_FILE_BYTES >> 30} GiB)"


def _content_length(response: requests.Response) -> int | None:
    text = response.headers.get("Content-Length", "")
    length = int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None
    if length is not None and length > MAX_FILE_BYTES:
        raise NetworkError(_too_long(response.url), hint=_ADDRESS)
    return length


def _first_byte(response: requests.Response, offset: int) -> int:
    """Return the offset in the file of an answer's first byte."""
    if response.status_code != 206:
        return 0  # the server sends all of it again
    match = re.fullmatch(r"bytes ([0-9]+)-[0-9]+/(?:[0-9]+|\*)", response.headers.get("Content-Range", ""))
    if match is None or int(match[1]) != offset:
        problem = f"{redact(response.url)} answered with a different range than requested"
        raise NetworkError(problem, hint=_ADDRESS)
    return offset

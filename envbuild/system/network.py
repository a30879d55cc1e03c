"""Open connections: the only place in the house that does.

Proxies and netrc are taken from the environment, certificates from the machine's own store unless the
environment names others. Nothing here decides whether bytes are the right ones: callers compare digests.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import unquote, urlsplit

from envbuild.errors import MachineError
from envbuild.system.certificates import trusted
from envbuild.system.redaction import redact

if TYPE_CHECKING:
    import requests

Result = TypeVar("Result")

_CHUNK_BYTES = 256 * 1024
# The page of a distribution with thousands of files has a few megabytes.
_PAGE_LIMIT_BYTES = 64 << 20
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_GONE = frozenset({404, 410})
_FILE_LIMIT_BYTES = 1 << 38  # whoever sends more never ends
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")

_REACH = (
    "`envbuild doctor --online` asks every address; proxies come from https_proxy, mirrors from `origins`"
    " of the site file"
)
OTHER = "mend or replace that address: `origins` of the site file, or pip's or apt's configuration, names it"


class NetworkError(MachineError):
    """A connection that did not bring what was asked for.

    Attributes
    ----------
    gone : bool
        The other side answered, and does not have it (404, 410).
    """

    def __init__(self, problem: str, *, gone: bool = False, hint: str = _REACH) -> None:
        super().__init__(problem, hint=hint)
        self.gone = gone


class Cancelled(Exception):
    """The download was given up because another one failed or the user interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a download is tried.

    Attributes
    ----------
    attempts : int
        Connections per address (count).
    connect_s, read_s : float
        Limits on making a connection and on waiting for further bytes, in seconds.
    pause_s : float
        Pause before the second attempt, in seconds; it doubles each time, up to `longest_pause_s`.
    longest_pause_s : float
        No pause is longer, whatever a server's Retry-After says, in seconds.
    """

    attempts: int = 5
    connect_s: float = 15.0
    read_s: float = 60.0
    pause_s: float = 0.5
    longest_pause_s: float = 20.0


def local_path(address: str) -> Path | None:
    """Return the path that a ``file:`` address or a plain path names; None for other addresses."""
    parts = urlsplit(address)
    if parts.scheme in ("file", "copy"):
        return Path(unquote(parts.path))
    return Path(address) if not parts.scheme else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What an address answered with.

    Attributes
    ----------
    address : str
        Where it was in the end, after redirections.
    kind : str
        Its ``Content-Type``.
    """

    address: str
    content: bytes
    kind: str


class Client:
    """Makes connections for several threads, keeps them, and closes them at the end of a ``with`` block.

    Parameters
    ----------
    patience : Patience, optional
        Limits of every request.
    proxies : mapping, optional
        ``scheme://host`` → proxy for it, beside those of the environment.
    """

    def __init__(self, patience: Patience | None = None, proxies: Mapping[str, str] | None = None) -> None:
        self._patience = patience or Patience()
        self._proxies = dict(proxies or {})
        self._made: requests.Session | None = None
        self._making = threading.Lock()

    @property
    def _session(self) -> requests.Session:
        """Make it for the first request: many runs need none, and it takes a tenth of a second."""
        with self._making:
            self._made = self._made or self._make()
            return self._made

    def _make(self) -> requests.Session:
        from http import cookiejar as jar  # noqa: PLC0415  # late, as above

        import requests  # noqa: PLC0415

        session = requests.Session()
        session.proxies.update(self._proxies)
        session.verify = trusted()  # REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE still win over this
        session.cookies.set_policy(jar.DefaultCookiePolicy(allowed_domains=[]))  # threads cannot share any
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        if self._made is not None:
            self._made.close()

    def status(self, address: str) -> int:
        """Return the HTTP status that an address answers with; one attempt.

        Raises
        ------
        NetworkError
            Nobody answers.
        """
        try:
            with self._answer(address, "GET", {}) as response:
                return response.status_code
        except _TransientError as error:
            raise NetworkError(str(error)) from error

    def length(self, address: str) -> int:
        """Return how many bytes a file at an address has; where the server does not say, they are counted.

        Raises
        ------
        NetworkError
            Nobody answers, or the file is not there.
        """
        path = local_path(address)
        if path is not None:
            try:
                return path.stat().st_size
            except OSError as error:
                raise NetworkError(
                    f"`{path}` cannot be read: {error.strerror}", gone=True, hint=OTHER
                ) from error

        def ask(method: str) -> int | None:
            # The length of the file itself: a compressed transfer must not be counted.
            with self._good_answer(address, method, {"Accept-Encoding": "identity"}) as response:
                text = response.headers.get("Content-Length", "")
                if text.isascii() and text.isdigit() and len(text) < 16:
                    return int(text)
                return _count(response) if method == "GET" else None

        try:
            told = self._persist(lambda: ask("HEAD"), threading.Event())
        except NetworkError:
            told = None  # some servers refuse HEAD; the answer to GET is what counts
        return told if told is not None else self._persist(lambda: ask("GET") or 0, threading.Event())

    def page(self, address: str, *, accept: str) -> Page:
        """Return what an address answers with, a page that people or tools read.

        Parameters
        ----------
        accept : str
            The forms that are understood (an ``Accept`` header).

        Raises
        ------
        NetworkError
            Nobody answers, there is no page, or it is longer than any page should be.
        """
        import requests  # noqa: PLC0415

        def receive() -> Page:
            with self._good_answer(address, "GET", {"Accept": accept}) as response:
                content = b""
                try:
                    for chunk in response.iter_content(_CHUNK_BYTES):
                        content += chunk
                        if len(content) > _PAGE_LIMIT_BYTES:
                            raise NetworkError(
                                f"{redact(address)} is longer than a page should be", hint=OTHER
                            )
                except requests.RequestException as error:
                    raise _TransientError(f"{redact(address)} was cut: {type(error).__name__}") from error
                kind = response.headers.get("Content-Type", "")
                return Page(address=response.url, content=content, kind=kind)

        return self._persist(receive, threading.Event())

    def download(
        self,
        address: str,
        target: Path,
        *,
        size_bytes: int,
        on_bytes: Callable[[int], None],
        stop: threading.Event,
    ) -> None:
        """Write what an address holds to a file; a transfer that is cut goes on where it ended.

        Parameters
        ----------
        address : str
            ``http`` or ``https``.
        target : Path
            File to write, emptied first.
        size_bytes : int
            How much is expected; more than this is never written.
        on_bytes : callable
            Called with the number of bytes in `target` as it changes.
        stop : threading.Event
            Once set, the download ends with `Cancelled`.

        Raises
        ------
        NetworkError
            It did not come within the limits, is not there, or has another length.
        MachineError
            The file cannot be written.
        """
        target.write_bytes(b"")

        def receive() -> None:
            have = target.stat().st_size
            headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
            with self._good_answer(address, "GET", headers) as response:
                _receive(response, target, size_bytes, on_bytes, stop)

        self._persist(receive, stop)

    def _persist(self, work: Callable[[], Result], stop: threading.Event) -> Result:
        """Try until it works, or what hinders it is not of the kind that passes."""
        limits = self._patience
        for attempt in range(limits.attempts - 1):
            try:
                return work()
            except _TransientError as error:
                seconds = max(limits.pause_s * 2**attempt, error.after_s)
                if stop.wait(min(seconds, limits.longest_pause_s)):
                    raise Cancelled from error
        try:
            return work()
        except _TransientError as error:
            raise NetworkError(str(error)) from error

    @contextmanager
    def _good_answer(
        self, address: str, method: str, headers: Mapping[str, str]
    ) -> Iterator[requests.Response]:
        with self._answer(address, method, headers) as response:
            code = response.status_code
            if code in _TRANSIENT:
                after = response.headers.get("Retry-After", "")
                seconds = float(after) if after.isascii() and after.isdigit() and len(after) < 6 else 0.0
                raise _TransientError(f"{redact(address)} answered with status {code}", after_s=seconds)
            if code == 416:
                raise NetworkError(f"{redact(address)} ends before what was asked for", hint=OTHER)
            if code >= 400:
                raise NetworkError(f"{redact(address)} answered with status {code}", gone=code in _GONE)
            yield response

    @contextmanager
    def _answer(self, address: str, method: str, headers: Mapping[str, str]) -> Iterator[requests.Response]:
        import requests  # noqa: PLC0415

        limits = self._patience
        try:
            response = self._session.request(
                method,
                address,
                headers=dict(headers),
                stream=True,
                timeout=(limits.connect_s, limits.read_s),
                allow_redirects=True,
            )
        except requests.exceptions.SSLError as error:
            hint = "SSL_CERT_FILE and REQUESTS_CA_BUNDLE name the certificates that your network needs"
            raise NetworkError(
                f"{redact(address)}: its certificate is not trusted here", hint=hint
            ) from error
        except requests.exceptions.Timeout as error:
            raise _TransientError(f"{redact(address)} does not answer") from error
        except requests.exceptions.ConnectionError as error:
            raise _TransientError(f"{redact(address)} cannot be reached") from error
        except (requests.RequestException, UnicodeError) as error:
            problem = f"{redact(address)} cannot be asked: it is no usable address"
            raise NetworkError(problem, hint=OTHER) from error
        with response:
            yield response


class _TransientError(Exception):
    """What may be otherwise at the next attempt.

    Attributes
    ----------
    after_s : float
        How long the other side asks us to wait, in seconds.
    """

    def __init__(self, problem: str, *, after_s: float = 0.0) -> None:
        super().__init__(problem)
        self.after_s = after_s


def _count(response: requests.Response) -> int:
    """Return the length of an answer that does not say it."""
    import requests  # noqa: PLC0415

    shown, size = redact(response.url), 0
    try:
        for chunk in response.iter_content(_CHUNK_BYTES):
            size += len(chunk)
            if size > _FILE_LIMIT_BYTES:
                raise NetworkError(f"{shown} is longer than any file should be", hint=OTHER)
    except requests.RequestException as error:
        raise _TransientError(f"{shown} was cut after {size} bytes") from error
    return size


def _receive(
    response: requests.Response,
    target: Path,
    size_bytes: int,
    on_bytes: Callable[[int], None],
    stop: threading.Event,
) -> None:
    """Append the answer to what is there already, or replace it where the server sends all of it again."""
    import requests  # noqa: PLC0415

    shown = redact(response.url)
    have = _resumed_at(response, target)
    with target.open("r+b") as stream:
        stream.truncate(have)
        stream.seek(have)
        try:
            for chunk in response.iter_content(_CHUNK_BYTES):
                if stop.is_set():
                    raise Cancelled
                have += len(chunk)
                if have > size_bytes:
                    raise NetworkError(
                        f"{shown} is longer than the {size_bytes} bytes that are locked", hint=OTHER
                    )
                stream.write(chunk)
                on_bytes(have)
        except requests.RequestException as error:
            raise _TransientError(
                f"{shown}: the transfer was cut after {have} of {size_bytes} bytes"
            ) from error
    if have < size_bytes:
        raise _TransientError(f"{shown}: the transfer ended after {have} of {size_bytes} bytes")


def _resumed_at(response: requests.Response, target: Path) -> int:
    """Return where in the file the answer's first byte belongs."""
    if response.status_code != 206:
        return 0
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if match is not None and int(match[1]) == target.stat().st_size:
        return int(match[1])
    target.write_bytes(b"")
    raise _TransientError(f"{redact(response.url)} answered with another part than the one asked for")

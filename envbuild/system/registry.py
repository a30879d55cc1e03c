"""A container registry, as the OCI distribution specification 1.1 describes it: blobs and manifests.

Source: https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md. Tokens:
https://distribution.github.io/distribution/spec/auth/token/. Registries differ in what the specification
leaves open: PATCH answers 202 or 204, uploads may be elsewhere, blobs come by redirection. Everything that a
registry answers is untrusted: lengths are bounded, and callers get only bytes with the digest that they asked
for.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self
from urllib.parse import urlencode, urljoin, urlsplit

from envbuild.digests import canonical_json, sha256_of
from envbuild.errors import MachineError
from envbuild.system.configured import values_of
from envbuild.system.network import Client, NetworkError, RequestLimits, speaks_tls
from envbuild.system.redaction import redact
from envbuild.system.references import (
    HINT_REFERENCE,
    INDEX,
    MANIFEST,
    MANIFEST_LIMIT_BYTES,
    Document,
    Reference,
)
from envbuild.system.registry_logins import Login, find_login, login_files

if TYPE_CHECKING:
    import requests

_ACCEPTED = ", ".join(
    (
        MANIFEST,
        INDEX,
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
_ANSWER_LIMIT_BYTES = 1 << 20
_PIECE_BYTES = 1 << 20
# A longer blob is sent in chunks of this length, of which each is repeated alone.
CHUNK_BYTES = 64 << 20

_LOOPBACK = re.compile(r"(?:localhost|127\.[0-9.]+|\[::1\])(?::[0-9]+)?")


class RegistryError(MachineError):
    """A registry refused a request, or answered with something else than the specification says.

    `gone` if it answered that it does not have it (404).
    """

    def __init__(self, problem: str, *, hint: str, gone: bool = False) -> None:
        super().__init__(problem, hint=hint)
        self.gone = gone


class _Header:
    """Adds a header to the first request; requests drops it where it is redirected to another host."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._value:
            request.headers["Authorization"] = self._value
        return request


class Range(io.RawIOBase):
    """`size` bytes of an open file from `offset` on, as a file; several threads may read one descriptor."""

    def __init__(self, source: BinaryIO, offset: int, size: int, advanced: Callable[[int], None]) -> None:
        super().__init__()
        self._file, self._offset, self._size, self._at = source, offset, size, 0
        self._advanced, self._reported = advanced, 0

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True: a request is repeated from its beginning."""
        return True

    def tell(self) -> int:
        """Return the offset from the beginning of the range."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset from the beginning or the end of the range."""
        self._at = offset + (self._size if whence == 2 else self._at if whence == 1 else 0)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes, and never all of a long range at once."""
        left = self._size - self._at
        count = min(left, _PIECE_BYTES if size is None or size < 0 else size)
        data = os.pread(self._file.fileno(), count, self._offset + self._at)
        if count and not data:
            raise RegistryError("a file became shorter while it was sent", hint="run it again")
        self._at += len(data)
        # Bytes that are sent again do not count twice.
        if self._at > self._reported:
            self._advanced(self._at - self._reported)
            self._reported = self._at
        return data


@dataclass(slots=True, kw_only=True)
class _Upload:
    """The upload of a blob, which is a range of an open file."""

    digest: str
    file: BinaryIO
    offset: int
    size_bytes: int
    advanced: Callable[[int], None]
    """Called with the number of bytes that were sent since the last call."""
    address: str = ""
    """Where the next bytes go; empty before it has begun."""
    end: int = 0
    """Number of bytes that the registry has."""
    refuses_chunks: bool = False
    """Whether the registry takes it as a whole alone."""
    _reached: int = 0

    @property
    def is_in_chunks(self) -> bool:
        """Whether it is sent in chunks."""
        return self.size_bytes > CHUNK_BYTES and not self.refuses_chunks

    def begin(self, address: str) -> None:
        """Begin, or begin again, at an address."""
        self.address, self.end = address, 0

    def range(self, start: int, end: int) -> Range:
        """Return a range of the blob as a file."""
        reached = start

        def sent(size_bytes: int) -> None:
            nonlocal reached
            reached += size_bytes
            self.reach(reached)

        return Range(self.file, self.offset + start, end - start, sent)

    def reach(self, end: int) -> None:
        """Report that the bytes before `end` were sent; those that are sent again do not count twice."""
        if end > self._reached:
            self.advanced(end - self._reached)
            self._reached = end


class Repository:
    """A repository of a registry; several threads may use it. A ``with`` block closes its connections."""

    def __init__(
        self,
        reference: Reference,
        *,
        source: str = "",
        plain: bool = False,
        limits: RequestLimits | None = None,
    ) -> None:
        """Open no connection, but to a registry on this machine, which may have no TLS.

        `source` is another repository of the registry, from which it takes blobs that are pushed and that it
        has there. `plain` uses HTTP without TLS, as with a configured host (`plain_http`).
        """
        hint = f"see that `{reference.host}` is the registry's name, and that this machine reaches it"
        is_here = _LOOPBACK.fullmatch(reference.host) is not None
        plain = plain or any(entry.value == reference.host for entry in values_of("plain_http"))
        plain = plain or (is_here and not speaks_tls(reference.host, hint=hint))
        self.reference, self._source = reference, source
        scheme = "http" if plain else "https"
        self._base = f"{scheme}://{reference.server}/v2/"
        self._path = f"{self._base}{reference.repository}/"
        self._client = Client(limits, hint=hint, netrc=False)
        self._lock = threading.Lock()
        self._authorization = ""
        self._login: Login | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        self._client.__exit__()

    # Blobs

    def has_blob(self, digest: str) -> bool:
        """Return whether the repository has a blob."""
        with self._request("HEAD", f"{self._path}blobs/{digest}") as answer:
            if answer.status_code not in (200, 404):
                raise self._refusal(f"does not say whether it has {_short(digest)}", answer)
            return answer.status_code == 200

    def push_blob(
        self, digest: str, size_bytes: int, source: BinaryIO, offset: int, advanced: Callable[[int], None]
    ) -> bool:
        """Upload `size_bytes` of an open file from `offset` on; return False if the registry has them.

        `advanced` is called with the number of bytes of each piece that was sent.
        """
        if self.has_blob(digest):
            advanced(size_bytes)
            return False
        upload = _Upload(digest=digest, file=source, offset=offset, size_bytes=size_bytes, advanced=advanced)
        failures = furthest = 0
        while True:
            if not upload.address:
                upload.begin(self._begin_upload(digest))
                if not upload.address:
                    upload.reach(size_bytes)
                    return False
            try:
                if self._continue(upload):
                    return True
            except NetworkError as error:
                failures = failures + 1 if upload.end <= furthest else 1
                furthest = max(furthest, upload.end)
                self._client.pause_or_raise(failures, error)
                self._find_end(upload)

    def push_bytes(self, data: bytes) -> bool:
        """Upload a small blob; return False if the registry has it."""
        digest = sha256_of(data)
        if self.has_blob(digest) or not (address := self._begin_upload(digest)):
            return False
        self._end_upload(digest, address, data)
        return True

    def _continue(self, upload: _Upload) -> bool:
        """Send what a registry lacks of a blob; return False if it takes no chunks, and all has to be sent.

        NetworkError: the upload broke off.
        """
        while upload.is_in_chunks and upload.end < upload.size_bytes:
            try:
                self._send_chunk(upload)
            except RegistryError:
                if upload.end:
                    raise
                upload.refuses_chunks, upload.address = True, ""
                return False
        self._end_upload(upload.digest, upload.address, upload.range(upload.end, upload.size_bytes))
        return True

    def _send_chunk(self, upload: _Upload) -> None:
        """Send the next chunk of a blob."""
        start, end = upload.end, min(upload.end + CHUNK_BYTES, upload.size_bytes)
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(end - start),
            "Content-Range": f"{start}-{end - 1}",
        }
        body = upload.range(start, end)
        with self._request(
            "PATCH", upload.address, headers=headers, body=body, write=True, once=True
        ) as done:
            received = _end_of(done, default=end)
            # By the specification 202; some answer 204.
            if done.status_code not in (202, 204) or not start < received <= end:
                raise self._refusal(f"did not take a part of {_short(upload.digest)}", done)
            upload.address, upload.end = self._location(done) or upload.address, received

    def _find_end(self, upload: _Upload) -> None:
        """Ask what a registry has of an upload that broke off; it begins again where the registry forgot it.

        Debian's does so if it breaks off within a chunk.
        """
        address, upload.address = upload.address, ""
        if not address or not upload.is_in_chunks:
            return
        try:
            with self._request("GET", address, once=True) as answer:
                end = _end_of(answer, default=0)
                if answer.status_code in (202, 204) and upload.end <= end <= upload.size_bytes:
                    upload.address, upload.end = self._location(answer) or address, end
        except NetworkError:
            return

    def _end_upload(self, digest: str, address: str, body: Range | bytes) -> None:
        """Send the last bytes of a blob, or all of it."""
        address += f"{'&' if '?' in address else '?'}digest={digest}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(body))}
        once = isinstance(body, Range)
        with self._request("PUT", address, headers=headers, body=body, write=True, once=once) as done:
            if done.status_code != 201:
                raise self._refusal(f"did not take {_short(digest)}", done)

    def _location(self, answer: requests.Response) -> str:
        """Return the address of an upload from an answer; empty if that names none."""
        if "Location" not in answer.headers:
            return ""
        address = urljoin(self._path, answer.headers["Location"])
        if urlsplit(address).scheme not in ("http", "https"):
            raise RegistryError(f"{self.reference.host} names no place for an upload", hint=_HINT_REGISTRY)
        # Behind a proxy that ends TLS, a registry may name itself without.
        without_tls = f"http://{self.reference.server}/"
        if self._base.startswith("https:") and address.startswith(without_tls):
            address = f"https://{self.reference.server}/{address.removeprefix(without_tls)}"
        return address

    def _begin_upload(self, digest: str) -> str:
        """Return the address of an upload; empty if the registry takes the blob from the other repository."""
        address = f"{self._path}blobs/uploads/"
        if self._source:
            query = urlencode({"mount": digest, "from": self._source})
            with self._request("POST", f"{address}?{query}", write=True) as begun:
                if begun.status_code == 201:
                    return ""
                if begun.status_code == 202 and (location := self._location(begun)):
                    return location
            # Refused, perhaps for lack of access to the other repository.
        with self._request("POST", address, write=True) as begun:
            if begun.status_code != 202 or not (location := self._location(begun)):
                raise self._refusal("takes no uploads", begun)
            return location

    def pull_blob(self, digest: str, size_bytes: int, target: Path) -> Iterator[int]:
        """Write a blob to `target`, after what it holds already, and yield its length as it grows.

        RegistryError: the registry lacks the blob, or gives bytes of another digest; `target` is removed
        then. NetworkError: it does not arrive within the limits; `target` keeps what did.
        """
        name = f"{_short(digest)} of {self.reference.host}"
        with target.open("a+b") as file:
            if file.tell() > size_bytes:
                file.truncate(0)
            yield from self._client.complete(
                file, partial(self._blob, digest), size_bytes=size_bytes, name=name
            )
            file.seek(0)
            found = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        if found != digest:
            target.unlink()
            raise self._other_bytes(found, digest)

    def pull_bytes(self, digest: str, size_bytes: int) -> bytes:
        """Return a small blob; raises as `pull_blob`."""
        content = io.BytesIO()
        blob, name = partial(self._blob, digest), f"{_short(digest)} of {self.reference.host}"
        for _ in self._client.complete(content, blob, size_bytes=size_bytes, name=name):
            pass
        if (found := sha256_of(content.getvalue())) != digest:
            raise self._other_bytes(found, digest)
        return content.getvalue()

    def _other_bytes(self, found: str, digest: str) -> RegistryError:
        problem = f"{self.reference.host} sent {_short(found)} for {_short(digest)}"
        return RegistryError(problem, hint="run it again; a registry that keeps doing so is damaged")

    @contextmanager
    def _blob(self, digest: str, headers: Mapping[str, str]) -> Iterator[requests.Response]:
        """Yield the answer to a request for a blob."""
        with self._request("GET", f"{self._path}blobs/{digest}", headers=headers) as answer:
            if answer.status_code not in (200, 206):
                raise self._refusal(f"does not give {_short(digest)}", answer)
            yield answer

    # Manifests

    def manifest(self, version: str) -> Document:
        """Return the manifest or index of a tag or digest; a digest is compared with the bytes."""
        with self._request(
            "GET", f"{self._path}manifests/{version}", headers={"Accept": _ACCEPTED}
        ) as answer:
            if answer.status_code != 200:
                separator = "@" if version.startswith("sha256:") else ":"
                raise self._refusal(f"has no `{self.reference.repository}{separator}{version}`", answer)
            text = self._client.read(answer, MANIFEST_LIMIT_BYTES)
        digest = sha256_of(text)
        if version.startswith("sha256:") and version != digest:
            problem = f"{self.reference.host} sent a manifest of {_short(digest)} for {_short(version)}"
            raise RegistryError(problem, hint="run it again; a registry that keeps doing so is damaged")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise RegistryError(f"{self.reference} is not a manifest", hint=HINT_REFERENCE)
        return Document(data=data, digest=digest, size_bytes=len(text))

    def put_manifest(self, data: Mapping[str, object], version: str = "") -> Document:
        """Write a manifest or index under a tag, or under its digest alone."""
        return self._put(data, version)[0]

    def put_referrer(self, data: Mapping[str, object], subject: Document) -> Document:
        """Write a manifest that is about another one, so that clients which have that one find it.

        A registry without a list of such manifests gets it as an index under a tag, which the specification
        names; of two who write it at the same time, one may be lost.
        """
        referrer, is_listed = self._put({**data, "subject": subject.descriptor})
        if not is_listed:
            tag = subject.digest.replace(":", "-")
            entry = {**referrer.descriptor, "artifactType": data["artifactType"]}
            listed = self._listed(tag)
            if all(other.get("digest") != referrer.digest for other in listed):
                self._put({"schemaVersion": 2, "mediaType": INDEX, "manifests": [*listed, entry]}, tag)
        return referrer

    def _listed(self, tag: str) -> list[dict[str, object]]:
        """Return the entries of an index; none if there is no such tag."""
        try:
            manifests = self.manifest(tag).data.get("manifests")
        except RegistryError as error:
            if not error.gone:
                raise
            return []
        return (
            [entry for entry in manifests if isinstance(entry, dict)] if isinstance(manifests, list) else []
        )

    def _put(self, data: Mapping[str, object], version: str = "") -> tuple[Document, bool]:
        """Write a manifest, and return whether the registry lists it at its subject."""
        text = canonical_json(data).encode()
        digest = sha256_of(text)
        headers = {"Content-Type": str(data["mediaType"])}
        address = f"{self._path}manifests/{version or digest}"
        with self._request("PUT", address, headers=headers, body=text, write=True) as answer:
            if answer.status_code != 201:
                raise self._refusal(f"did not take the manifest `{version or _short(digest)}`", answer)
            is_listed = "OCI-Subject" in answer.headers
        return Document(data=data, digest=digest, size_bytes=len(text)), is_listed

    # Requests

    @contextmanager
    def _request(
        self,
        method: str,
        address: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Range = b"",
        write: bool = False,
        once: bool = False,
    ) -> Iterator[requests.Response]:
        """Yield the answer to a request; one that is refused for lack of a login is repeated with it.

        One that is made but `once` is not repeated otherwise.
        """
        is_own = urlsplit(address)[:2] == urlsplit(self._base)[:2]
        for is_last in (False, True):
            authorization = self._authorization if is_own else ""
            with self._client.exchange(
                method,
                address,
                headers=headers or {},
                authorize=_Header(authorization),
                body=body,  # type: ignore[arg-type]
                once=once,
            ) as answer:
                if answer.status_code != 401 or is_last or not is_own:
                    yield answer
                    return
                challenge = answer.headers.get("WWW-Authenticate", "")
            with self._lock:
                # Another thread may have got one meanwhile.
                if self._authorization == authorization:
                    self._authorization = self._authorize(challenge, write=write)
            if isinstance(body, Range):
                body.seek(0)

    def _authorize(self, challenge: str, *, write: bool) -> str:
        self._login = find_login(self.reference.host, self.reference.repository)
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            if self._login is None:
                raise self._no_login()
            return _basic(self._login)
        # Of several challenges the first counts: its fields are the first of their names.
        fields = dict(reversed(re.findall(r'(\w{1,64})="([^"]{0,4096})"', rest[:16384])))
        realm = fields.get("realm", "")
        if kind.lower() != "bearer" or not self._may_ask(realm):
            problem = f"{self.reference.host} asks for a login in a way that envbuild does not know"
            raise RegistryError(problem, hint=_HINT_REGISTRY)
        scopes = [f"repository:{self.reference.repository}:{'pull,push' if write else 'pull'}"]
        if write and self._source:
            scopes.append(f"repository:{self._source}:pull")
        return self._token(realm, fields.get("service", ""), scopes)

    def _may_ask(self, realm: str) -> bool:
        """Whether a token server may see the login: as safely as the registry itself."""
        scheme = urlsplit(realm).scheme
        return scheme == "https" or (scheme == "http" and self._base.startswith("http:"))

    def _token(self, realm: str, service: str, scopes: Sequence[str]) -> str:
        login = self._login
        query = [("service", service)] if service else []
        if login is not None and login.token:
            query += [("scope", " ".join(scopes)), ("grant_type", "refresh_token")]
            query += [("refresh_token", login.token), ("client_id", "envbuild")]
            address, body = realm, urlencode(query).encode()
            authorization, method = "", "POST"
        else:
            query += [("scope", scope) for scope in scopes]
            address = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
            authorization, method, body = _basic(login) if login else "", "GET", b""
        headers = {"Content-Type": "application/x-www-form-urlencoded"} if body else {}
        with self._client.exchange(
            method, address, headers=headers, authorize=_Header(authorization), body=body, follow=False
        ) as answer:
            text = self._client.read(answer, _ANSWER_LIMIT_BYTES)
            if answer.is_redirect:
                problem = f"{redact(realm)} redirects elsewhere, where envbuild sends no login"
                raise RegistryError(problem, hint=_HINT_REGISTRY)
            if answer.status_code != 200:
                raise self._no_login()
        try:
            data = json.loads(text)
            token = data.get("token") or data.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]{1,65536}", token):
            raise RegistryError(f"{redact(realm)} gave no token", hint=_HINT_REGISTRY)
        return f"Bearer {token}"

    def _no_login(self) -> RegistryError:
        """Return the error for a refused login; it says what was tried, and no secret."""
        host = self.reference.host
        if self._login is not None:
            tried = f"the login of `{self._login.user or 'a token'}` in `{self._login.source}` was refused"
        else:
            tried = f"no login was found in {', '.join(f'`{path}`' for path in login_files())}"
        return RegistryError(f"{host} asks for a login: {tried}", hint=f"`podman login {host}` writes one")

    def _refusal(self, what: str, answer: requests.Response) -> RegistryError:
        """Return the error for an answer with another status than the one for success."""
        code = answer.status_code
        if code in (401, 403):
            if self._login is not None or code == 401:
                return self._no_login()
            hint = f"`podman login {self.reference.host}` writes a login"
            return RegistryError(f"{self.reference.host} {what}: it refuses access", hint=hint)
        detail = "" if answer.request.method == "HEAD" else self._detail(answer)
        hint = "see that the name and the tag are right" if code == 404 else _HINT_REGISTRY
        problem = f"{self.reference.host} {what}: status {code}{detail}"
        return RegistryError(problem, hint=hint, gone=code == 404)

    def _detail(self, answer: requests.Response) -> str:
        try:
            errors = json.loads(self._client.read(answer, _ANSWER_LIMIT_BYTES))["errors"]
            texts = [f"{error['code']}: {error.get('message', '')}" for error in errors[:3]]
        except (NetworkError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return ""
        joined = "; ".join(texts)[:300]
        return f" ({''.join(char if char.isprintable() else ' ' for char in joined)})"


_HINT_REGISTRY = "ask who runs the registry; `podman` and `skopeo` show whether they fare better"


def _end_of(answer: requests.Response, *, default: int) -> int:
    """Return how many bytes of an upload a registry says that it has."""
    match = re.fullmatch(r"(?:bytes=)?0-([0-9]{1,15})", answer.headers.get("Range", ""))
    # An empty upload has the range `0-0`, too.
    return default if match is None else int(match[1]) + 1 if match[1] != "0" else 0


def _basic(login: Login) -> str:
    return f"Basic {base64.b64encode(f'{login.user}:{login.password}'.encode()).decode()}"


def _short(digest: str) -> str:
    return f"{digest[:19]}…"

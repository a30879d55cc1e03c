"""A container registry in memory, with the faults and the freedoms of real ones."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, parse_qsl, quote, urlsplit

USER, PASSWORD, TOKEN = "ada", "s3cret-Word9", "Tok3n-Of-The-Registry"


@dataclass
class Registry:
    """Its content, what happened, and how it behaves."""

    port: int = 0
    blobs: dict[str, bytes] = field(default_factory=dict)
    repositories: set[tuple[str, str]] = field(default_factory=set)
    """Name and digest of each blob that a repository has."""
    mount_status: int = 201
    """What a mount is answered with: 201 makes one, 202 begins an upload."""
    manifests: dict[str, bytes] = field(default_factory=dict)
    """``NAME:TAG`` or ``NAME@sha256:…`` → bytes."""
    referrers: dict[str, set[str]] = field(default_factory=dict)
    """``NAME@sha256:…`` → digests of the manifests that refer to it."""
    authentication: str = ""
    """``basic``, ``token``, or empty for none."""
    cut_after: list[int] = field(default_factory=list)
    """The next answers with blobs, and uploads, break off after so many bytes."""
    busy: int = 0
    """So many further requests of `busy_methods` are answered with 429."""
    busy_methods: tuple[str, ...] = ("HEAD", "GET", "POST", "PUT")
    chunk_status: int = 202
    """The status that answers a chunk; 400 and more refuse it."""
    forgets_broken: bool = True
    """Whether an upload that breaks off within a chunk is forgotten, as by Debian's registry."""
    uploads: dict[str, bytes] = field(default_factory=dict)
    """Number of an upload → the chunks that it has."""
    on_blob: Callable[[], None] = lambda: None
    """Is called before a blob is sent or taken."""
    redirect_to: str = ""
    """Where blobs are, if not here: ``http://HOST:PORT``."""
    redirect_tokens_to: str = ""
    """Where tokens are, if not here: ``http://HOST:PORT``."""
    compresses: bool = False
    """Whether manifests and tokens are compressed for clients that accept it, as by a proxy."""
    more_challenges: str = ""
    """Further headers of the answer to a request without login, behind the challenge."""
    forged: dict[str, bytes] = field(default_factory=dict)
    """Digest → other bytes, which are sent instead."""
    lists_referrers: bool = True
    """Whether it has the API of referrers."""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and Authorization of each."""
    received_bytes: int = 0
    sent_bytes: int = 0
    """Bytes of blobs."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def forget(self) -> None:
        """Count from here on."""
        self.requests.clear()
        self.received_bytes = self.sent_bytes = 0


def _token(scopes: str) -> str:
    return f"{TOKEN}.{base64.urlsafe_b64encode(scopes.encode()).decode()}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: ClassVar[Registry]
    _lock = threading.Lock()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        if self.registry.compresses and "gzip" in self.headers.get("Accept-Encoding", ""):
            body, headers = gzip.compress(body), {**headers, "Content_Encoding": "gzip"}
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, code: int, name: str) -> None:
        self._answer(code, json.dumps({"errors": [{"code": name, "message": name.lower()}]}).encode())

    def _may(self) -> bool:
        registry, given = self.registry, self.headers.get("Authorization", "")
        registry.requests.append((self.command, self.path, given))
        if registry.busy and self.command in registry.busy_methods:
            registry.busy -= 1
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer(429, Retry_After="0")
            return False
        basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.path.startswith("/token"):
            if registry.redirect_tokens_to:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self._answer(307, Location=f"{registry.redirect_tokens_to}{self.path}")
                return False
            if given == basic:
                scopes = " ".join(parse_qs(urlsplit(self.path).query).get("scope", []))
                self._answer(200, json.dumps({"token": _token(scopes)}).encode())
            else:
                self._error(401, "UNAUTHORIZED")
            return False
        may = {"": True, "basic": given == basic, "token": self._is_within_scope(given)}
        if may[registry.authentication]:
            return True
        challenge = (
            'Basic realm="lab"'
            if registry.authentication == "basic"
            else f'Bearer realm="http://{registry.host}/token",service="lab",scope="repository:x:pull"'
        )
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(401, WWW_Authenticate=challenge + registry.more_challenges)
        return False

    def _is_within_scope(self, given: str) -> bool:
        """Return whether a token allows the request, as its scopes say."""
        address = urlsplit(self.path)
        query = dict(parse_qsl(address.query))
        name = query.get("name") or re.sub(r"^/v2/(.+)/(?:blobs|manifests)/.*$", r"\1", address.path)
        needed = {(name, "push" if self.command in ("POST", "PUT", "PATCH") else "pull")}
        if "from" in query:
            needed.add((query["from"], "pull"))
        scopes = base64.urlsafe_b64decode(given.partition(f"Bearer {TOKEN}.")[2]).decode().split()
        granted = {
            (scope.split(":")[1], action) for scope in scopes for action in scope.split(":")[2].split(",")
        }
        return needed <= granted

    def _cut(self) -> int | None:
        with self._lock:
            return self.registry.cut_after.pop(0) if self.registry.cut_after else None

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self._may():
            self._give()

    def _give(self) -> None:
        registry = self.registry
        if self.path.startswith("/v2/upload/"):
            return self._say_end(204, self._upload())
        if match := re.fullmatch(r"/v2/(.+)/manifests/(.+)", self.path):
            name, version = match.groups()
            key = f"{name}@{version}" if version.startswith("sha256:") else f"{name}:{version}"
            body = registry.manifests.get(key)
            return self._error(404, "MANIFEST_UNKNOWN") if body is None else self._answer(200, body)
        match = re.fullmatch(r"/v2/(.+)/blobs/(sha256:[0-9a-f]{64})", self.path)
        if match is None or match.groups() not in registry.repositories:
            return self._error(404, "BLOB_UNKNOWN")
        digest = match[2]
        body = registry.blobs[digest]
        if self.command == "HEAD":
            return self._answer(200, body)
        if registry.redirect_to:
            return self._answer(307, Location=f"{registry.redirect_to}{self.path}")
        body = registry.forged.get(digest, body)
        registry.on_blob()
        begin, code = 0, 200
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            begin, code = int(asked[1]), 206
        rest, cut = body[begin:], self._cut()
        self.send_response(code)
        if code == 206:
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        # Before the client has them all, and counts.
        with self._lock:
            registry.sent_bytes += len(rest[:cut])
        self.wfile.write(rest[:cut])
        if cut is not None and cut < len(rest):
            self.close_connection = True
        return None

    def do_POST(self) -> None:
        if not self._may():
            return None
        registry = self.registry
        match = re.fullmatch(r"/v2/(.+)/blobs/uploads/(?:\?(.*))?", self.path)
        if match is None:
            return self._error(404, "NAME_UNKNOWN")
        query = dict(parse_qsl(match[2] or ""))
        if "mount" in query:
            if registry.mount_status not in (201, 202):
                return self._error(registry.mount_status, "DENIED")
            if registry.mount_status == 201 and (query["from"], query["mount"]) in registry.repositories:
                registry.repositories.add((match[1], query["mount"]))
                return self._answer(201, Location="/")
        number = str(len(registry.requests))
        registry.uploads[number] = b""
        location = f"/v2/upload/{number}?state=a&name={quote(match[1], safe='')}"
        return self._answer(202, Location=location)

    def do_PATCH(self) -> None:
        registry = self.registry
        number, size = self._upload(), int(self.headers.get("Content-Length") or 0)
        cut = self._cut()
        if cut is not None and cut < size:
            kept = self.rfile.read(cut)
            if registry.forgets_broken:
                registry.uploads.pop(number, None)
            else:
                registry.uploads[number] += kept
            self.close_connection = True
            self.connection.close()
            return None
        if not self._may():
            return None
        chunk = self.rfile.read(size)
        with self._lock:
            registry.received_bytes += size
        if registry.chunk_status >= 400:
            return self._error(registry.chunk_status, "UNSUPPORTED")
        if number not in registry.uploads:
            return self._error(404, "BLOB_UPLOAD_INVALID")
        start = len(registry.uploads[number])
        if self.headers["Content-Range"] != f"{start}-{start + size - 1}":
            return self._error(416, "BLOB_UPLOAD_INVALID")
        registry.uploads[number] += chunk
        return self._say_end(registry.chunk_status, number)

    def _upload(self) -> str:
        return urlsplit(self.path).path.rpartition("/")[2]

    def _say_end(self, status: int, number: str) -> None:
        if number not in self.registry.uploads:
            return self._error(404, "BLOB_UPLOAD_INVALID")
        end = max(len(self.registry.uploads[number]) - 1, 0)
        return self._answer(status, Location=self.path, Range=f"0-{end}")

    def do_PUT(self) -> None:
        registry = self.registry
        size = int(self.headers.get("Content-Length") or 0)
        if "/manifests/" not in self.path and (cut := self._cut()) is not None and cut < size:
            self.rfile.read(cut)
            self.close_connection = True
            self.connection.close()
            return None
        if not self._may():
            return None
        if "/manifests/" not in self.path:
            registry.on_blob()
        body = self.rfile.read(size)
        if "/manifests/" not in self.path:
            body = registry.uploads.pop(self._upload(), b"") + body
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if match := re.fullmatch(r"/v2/(.+)/manifests/(.+)", self.path):
            name, version = match.groups()
            registry.manifests[f"{name}@{digest}"] = body
            if not version.startswith("sha256:"):
                registry.manifests[f"{name}:{version}"] = body
            subject = json.loads(body).get("subject", {}).get("digest")
            if subject is None or not registry.lists_referrers:
                return self._answer(201, Location="/")
            registry.referrers.setdefault(f"{name}@{subject}", set()).add(digest)
            return self._answer(201, Location="/", OCI_Subject=subject)
        with self._lock:
            registry.received_bytes += size
        if not self.path.endswith(f"digest={digest}"):
            return self._error(400, "DIGEST_INVALID")
        registry.blobs[digest] = body
        registry.repositories.add((parse_qs(urlsplit(self.path).query)["name"][0], digest))
        return self._answer(201, Location="/")


@contextmanager
def serving() -> Iterator[Registry]:
    """Serve an empty registry on loopback while the block runs."""
    registry = Registry()
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    registry.port = server.server_address[1]
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

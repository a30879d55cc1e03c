"""Small mirrors on this machine: wheels, a Debian archive, and a server that misbehaves as it is told."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
import zipfile
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote


def write_wheel(
    directory: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
    tag: str = "py3-none-any",
    filler: bytes = b"",
) -> Path:
    """Write a wheel that installs one module; return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {text}\n" for text in requires)
    metadata += "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    files = {
        f"{name.replace('-', '_')}.py": b"",
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        f"{info}/filler": filler,
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD")).encode()
    path = directory / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(zipfile.ZipInfo(member), content)
    return path


def write_index(root: Path, wheels: Sequence[Path], *, under: str = "simple") -> None:
    """Write a Python index (PEP 503) below a directory: ``simple/NAME/index.html`` and ``files/``."""
    pages: dict[str, list[str]] = {}
    (root / "files").mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        (root / "files" / wheel.name).write_bytes(wheel.read_bytes())
        name = wheel.name.partition("-")[0].replace("_", "-")
        link = f'<a href="/files/{quote(wheel.name)}#sha256={digest(wheel)}">{wheel.name}</a>'
        pages.setdefault(name, []).append(link)
    for name, links in pages.items():
        page = root / under / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>")


def write_dated_page(root: Path, name: str, files: Mapping[Path, str]) -> None:
    """Write a distribution's page of a Python index (PEP 691, 700): file → when it was uploaded."""
    entries = []
    for path, uploaded in files.items():
        (root / "files" / path.name).write_bytes(path.read_bytes())
        entries.append(
            {
                "filename": path.name,
                "url": f"/files/{quote(path.name)}",
                "hashes": {"sha256": digest(path)},
                "size": path.stat().st_size,
                "upload-time": f"{uploaded}T00:00:00Z",
            }
        )
    page = root / "simple" / name / "index.json"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": entries}))


def write_deb(root: Path, name: str, version: str = "1.0-1", *, postinst: str = "", **control: str) -> str:
    """Write a package into an archive's pool; return its stanza for the index.

    Parameters
    ----------
    postinst : str
        A script that runs when it is installed.
    control : str
        Further fields, with underscores for dashes (``Pre_Depends``).
    """
    fields = {
        "Package": name,
        "Version": version,
        "Architecture": "all",
        "Maintainer": "Nobody <nobody@example.org>",
        "Priority": "optional",
        "Description": name,
        **{key.replace("_", "-"): value for key, value in control.items()},
    }
    text = "".join(f"{key}: {value}\n" for key, value in fields.items())
    plain = version.rpartition(":")[2]
    file = f"pool/main/{name[0]}/{name}/{name}_{plain}_all.deb"
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    members = {
        "debian-binary": b"2.0\n",
        "control.tar": _tar(
            {"./control": text.encode(), **({"./postinst": postinst.encode()} if postinst else {})}
        ),
        "data.tar": _tar({f"./usr/share/{name}/version": version.encode()}),
    }
    path.write_bytes(b"!<arch>\n" + b"".join(_ar_member(*member) for member in members.items()))
    return f"{text}Filename: {file}\nSize: {path.stat().st_size}\nSHA256: {digest(path)}\n"


def write_lists(
    root: Path, suite: str, stanzas: Sequence[str], *, architectures: Sequence[str] = ("amd64",)
) -> None:
    """Write the lists of a suite's main component, unsigned, the same for each architecture."""
    directory = root / "dists" / suite
    lines = []
    for architecture in architectures:
        packages = directory / f"main/binary-{architecture}/Packages"
        packages.parent.mkdir(parents=True, exist_ok=True)
        packages.write_text("\n".join(stanzas))
        lines.append(f" {digest(packages)} {packages.stat().st_size} {packages.relative_to(directory)}\n")
    (directory / "Release").write_text(
        f"Suite: {suite}\nCodename: {suite}\nArchitectures: {' '.join(architectures)}\nComponents: main\n"
        f"Date: Mon, 01 Jan 2024 00:00:00 UTC\nSHA256:\n{''.join(lines)}"
    )


def digest(path: Path) -> str:
    """Return a file's SHA-256 as hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o755 if name.endswith("postinst") else 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _ar_member(name: str, content: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)


@dataclass
class Mirror:
    """A server of one directory.

    Attributes
    ----------
    root : Path
        What it serves.
    address : str
        ``http://127.0.0.1:PORT``.
    password : str
        If set, only requests with this password of the user ``me`` are answered (HTTP basic authentication).
    script : dict
        Path → what happens at its next requests, one after the other: ``503``,
        ``404``, ``cut`` (half of the bytes), ``stall`` (half, then nothing),
        ``wrong`` (other bytes), ``long`` (too many), ``whole`` (a range is
        answered with everything), ``unsized`` (no length), ``chunked without end`` (all
        bytes in chunks, and no last one), ``chunked half without end``, ``absurd`` (a length
        that no file has), ``absurd cut`` (and half of the bytes), ``endless``
        (bytes until nobody reads them), ``-> ADDRESS`` (a redirection).
    requests : list
        Method, path and Range header of what was asked.
    connections : int
        How many were opened, whatever was asked on them.
    """

    root: Path
    address: str = ""
    password: str = ""
    script: dict[str, list[str]] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    connections: int = 0

    @property
    def private_address(self) -> str:
        """The address with the user and the password."""
        return self.address.replace("//", f"//me:{self.password}@")

    def requests_for(self, path: str) -> list[str]:
        """Return the Range headers with which a path was asked for by GET."""
        return [where for method, what, where in self.requests if (method, what) == ("GET", path)]


@contextmanager
def mirror(root: Path) -> Iterator[Mirror]:
    """Serve a directory on a free port of the loopback device."""
    state = Mirror(root=root)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            _answer(self, state)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
            pass

    class Server(ThreadingHTTPServer):
        def verify_request(self, request: object, client_address: object) -> bool:
            state.connections += 1
            return True

    with Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        state.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield state
        finally:
            state.released.set()
            server.shutdown()
            thread.join()


def _answer(handler: BaseHTTPRequestHandler, state: Mirror) -> None:
    name = unquote(handler.path.partition("?")[0])
    wanted = handler.headers.get("Range", "")
    state.requests.append((handler.command, name, wanted))
    credentials = b64encode(f"me:{state.password}".encode()).decode()
    if state.password and handler.headers.get("Authorization") != f"Basic {credentials}":
        handler.send_response(401)
        handler.send_header("WWW-Authenticate", 'Basic realm="index"')
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    steps = state.script.get(name, [])
    step = steps.pop(0) if steps else "ok"
    path = state.root / name.lstrip("/")
    if path.is_dir():
        path = next(filter(Path.is_file, (path / "index.json", path / "index.html")), path)
    if step.startswith("-> "):
        handler.send_response(302)
        handler.send_header("Location", step.removeprefix("-> "))
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    if step.isdigit() or not path.is_file():
        handler.send_response(int(step) if step.isdigit() else 404)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    content = path.read_bytes()
    if step == "wrong":
        content = bytes(byte ^ 1 for byte in content)
    if step == "long":
        content += b"x" * 100
    start, end = 0, ""
    if wanted and step != "whole":
        first, _, end = wanted.removeprefix("bytes=").partition("-")
        start = int(first)
    if start and start >= len(content):
        handler.send_response(416)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    last = min(int(end), len(content) - 1) if end else len(content) - 1
    is_part = bool(start or end)
    place = f"bytes {start}-{last}/{len(content)}" if is_part else ""
    _send(handler, state, content[start : last + 1], place, step)


def _send(handler: BaseHTTPRequestHandler, state: Mirror, part: bytes, place: str, step: str) -> None:
    handler.send_response(206 if place else 200)
    if place:
        handler.send_header("Content-Range", place)
    kind = "application/octet-stream"
    if handler.path.partition("?")[0].endswith("/"):
        # An index page of PEP 691 or 503.
        kind = "application/vnd.pypi.simple.v1+json" if part.startswith(b"{") else "text/html"
    handler.send_header("Content-Type", kind)
    if step.startswith("chunked"):
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("Connection", "close")
        handler.close_connection = True
        part = part[: len(part) // 2] if "half" in step else part
        part = b"%x\r\n%b\r\n" % (len(part), part)
    elif step in ("unsized", "endless"):
        handler.send_header("Connection", "close")
        handler.close_connection = True
    else:
        length = 10**18 if step.startswith("absurd") else len(part)
        handler.send_header("Content-Length", str(length))
    handler.end_headers()
    if handler.command == "HEAD":
        return
    if step == "endless":
        with suppress(OSError):
            while True:
                handler.wfile.write(bytes(1 << 20))
        return
    if step not in ("cut", "stall", "absurd cut"):
        handler.wfile.write(part)
        return
    handler.wfile.write(part[: len(part) // 2])
    handler.wfile.flush()
    if step == "stall":
        state.released.wait(30)
    handler.close_connection = True

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import requests

from envbuild.errors import Location, MachineError
from envbuild.resolve import files as resolve_files
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.distributions import DistFile
from envbuild.resolve.files import FileCache
from envbuild.resolve.obtain import obtain
from envbuild.resolve.origins import Machine
from envbuild.system import network, process
from envbuild.system.redaction import redact, redact_text


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:secret@host.example.org:8443/a/b?token=x#y", "https://host.example.org:8443/a/b"),
        ("https://token@host/a", "https://host/a"),
        ("http://[::1]:80/a", "http://[::1]:80/a"),
        ("http://me:pw@host:port/a", "http://host/a"),
        ("file:///srv/wheels", "file:///srv/wheels"),
        ("file:///srv/Some1LongerName/x", "file:///srv/Some1LongerName/x"),
        ("HTTPS://me:secret@host/a", "https://host/a"),
        ("https://me:se/cr@e:t#?@host/a", "https://host/a"),
        ("https:/me:secret@host/a", "https:///host/a"),
        ("//me:secret@host/a", "//host/a"),
        ("me:secret@host:3128", "host:3128"),
        ("https://host:8080/a.git@1234", "https://host:8080/a.git@1234"),
        ("http://host/a,http://me:secret@other/", "http://host/a,http://…"),
        ("https://[secret", "…"),
        ("https://host/tokS3cr3tPath/simple/torch/", "https://host/…/simple/torch/"),
        ("https://host/aB3-_dEf9hIjKl/a.whl", "https://host/…/a.whl"),
        ("https://host/packages/ab/nvidia_cuda_runtime/", "https://host/packages/ab/nvidia_cuda_runtime/"),
        ("https://host/Short1/Some-Wheel-1.0-py3.whl", "https://host/Short1/Some-Wheel-1.0-py3.whl"),
    ],
)
def test_what_is_shown_of_an_address(address: str, shown: str) -> None:
    assert redact(address) == shown


def test_every_address_in_a_text_is_cleaned() -> None:
    text = "cause: Failed to fetch: `https://a:b@one.example.org/x?k=v`\n(ftp://u@two.example.org) <http://three/>"
    assert redact_text(text) == (
        "cause: Failed to fetch: `https://one.example.org/x`\n(ftp://two.example.org) <http://three/>"
    )


@pytest.mark.parametrize(
    "address",
    [
        "HTTPS://me:secret@host/a",
        "https://me:it's(secret)@host/a",
        "git+SSH://secret@host/a",
        "https:/me:secret@host/a",
        "//me:secret@host/a",
        "me:secret@host:3128",
        "https://host/a,https://me:secret@host/b",
        "http://host/?token=secret",
    ],
)
def test_no_spelling_of_an_address_in_a_text_shows_its_credentials(address: str) -> None:
    for text in (f"fatal: unable to access '{address}': no", f"({address})", f"proxy={address}; `{address}`"):
        assert "secret" not in redact_text(text)
        assert "host" in redact_text(text)


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("file:///srv/a%20b", Path("/srv/a b")),
        ("copy:/srv/x", Path("/srv/x")),
        ("/srv/x", Path("/srv/x")),
        ("https://host/x", None),
    ],
)
def test_paths_of_addresses(address: str, path: Path | None) -> None:
    assert network.local_path(address) == path


def test_the_machines_own_certificates_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert network.trusted_certificates() == str(bundle)
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    assert network.trusted_certificates() is True  # an empty directory trusts no server
    (tmp_path / "1234abcd.0").touch()
    assert network.trusted_certificates() == str(tmp_path)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (requests.exceptions.SSLError(), "its certificate is not trusted here"),
        (requests.exceptions.InvalidURL(), "is not a usable address"),
    ],
)
def test_errors_of_a_connection(error: Exception, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(requests.Session, "request", fail)
    with network.Client() as client, pytest.raises(network.NetworkError, match=problem):
        client.length("https://index.example.org/simple/x/")


@contextmanager
def server(status: int, headers: dict[str, str]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Serve ``/first`` with a status, other paths with a file; yield the port, and paths with credentials."""
    requested: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            requested.append((self.path, self.headers.get("Authorization", "")))
            first = self.path == "/first"
            self.send_response(status if first else 200)
            for name, value in headers.items() if first else ():
                self.send_header(name, value.format(port=serving.server_port))
            self.send_header("Content-Length", "0" if first else "7")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield serving.server_port, requested
        finally:
            serving.shutdown()
            thread.join()


@pytest.mark.redteam
def test_a_redirection_to_another_host_gets_no_password() -> None:
    with (
        server(302, {"Location": "http://localhost:{port}/second"}) as (port, requested),
        network.Client() as client,
    ):
        assert client.length(f"http://me:secret@127.0.0.1:{port}/first") == 7
    assert [path for path, _ in requested] == ["/first", "/second"]
    assert [bool(authorization) for _, authorization in requested] == [True, False]


def test_a_server_cannot_make_us_wait_for_long() -> None:
    limits = network.RequestLimits(attempts=2, longest_pause_s=0.1)
    with (
        server(503, {"Retry-After": "3600"}) as (port, requested),
        network.Client(limits) as client,
        pytest.raises(network.NetworkError, match="answered with status 503"),
    ):
        client.length(f"http://127.0.0.1:{port}/first")
    assert len(requested) == 2 * limits.attempts, "HEAD, then GET"


def test_an_ended_run_tries_no_longer() -> None:
    with (
        server(503, {}) as (port, requested),
        network.Client() as client,
        process.terminating_children_on_exit(),
    ):
        process.end_all()
        with pytest.raises(KeyboardInterrupt):
            client.length(f"http://127.0.0.1:{port}/first")
    assert len(requested) == 1


@contextmanager
def raw_server(*answers: Sequence[bytes]) -> Iterator[str]:
    """Serve the pieces of one answer after another, each piece after a pause; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stopped = threading.Event()

        def serve() -> None:
            for pieces in answers:
                with contextlib.suppress(OSError), listening.accept()[0] as connection:
                    connection.recv(65536)
                    for piece in pieces:
                        connection.sendall(piece)
                        if stopped.wait(0.02):
                            break

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/x.whl"
        stopped.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def head(*lines: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", "Connection: close", *lines, "", ""]).encode()


def downloaded(address: str, target: Path, size_bytes: int, **limits: float) -> bytes:
    with network.Client(network.RequestLimits(pause_s=0.01, **limits)) as client:  # type: ignore[arg-type]
        for _ in client.download(address, target, size_bytes=size_bytes):
            pass
    return target.read_bytes()


@pytest.mark.redteam
@pytest.mark.parametrize("lines", [["Content-Length: 1000"], []], ids=["stated length", "no length"])
def test_a_server_that_drips_is_given_up(lines: list[str], tmp_path: Path) -> None:
    """Each byte comes within the limit on waiting, and the file never ends."""
    problem = r"is too slow: [0-9]+ bytes came in"
    with (
        raw_server([head(*lines), *[b"x"] * 1000]) as address,
        pytest.raises(network.NetworkError, match=problem),
    ):
        downloaded(address, tmp_path / "x", 1000, grace_s=0.1, least_bytes_s=1000.0)


def test_a_slow_server_that_sends_enough_is_awaited(tmp_path: Path) -> None:
    with raw_server([head("Content-Length: 200"), *[b"x" * 10] * 20]) as address:
        assert downloaded(address, tmp_path / "x", 200, grace_s=60.0) == b"x" * 200


@pytest.mark.redteam
def test_an_answer_is_not_unpacked(tmp_path: Path) -> None:
    """A megabyte of gzip would become a gigabyte in memory before its length is known."""
    packed = gzip.compress(bytes(1 << 20), mtime=0)
    answer = head("Content-Encoding: gzip", f"Content-Length: {len(packed)}") + packed
    with raw_server([answer]) as address:
        assert downloaded(address, tmp_path / "x", len(packed)) == packed


@pytest.mark.redteam
def test_a_length_that_no_file_has_is_not_believed(tmp_path: Path) -> None:
    answer = head("Content-Length: 999999999999999")
    with (
        raw_server([answer], [answer]) as address,
        network.Client() as client,
        pytest.raises(network.NetworkError, match=r"longer than any file should be \(64 GiB\)"),
    ):
        client.length(address)


def test_a_file_for_which_there_is_no_space_is_not_fetched(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "files")
    cache.check_room(1000)
    with pytest.raises(MachineError, match=r"1000000 MB are to be fetched, and [0-9]+ MB are free in"):
        cache.check_room(10**12)


@pytest.mark.redteam
def test_a_named_wheel_is_not_fetched_without_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_files, "free_bytes", lambda _: 10_000_000)
    answer = head("Content-Length: 20000000")
    file = DistFile(name="x", version="1", file_name="x-1-py3-none-any.whl", address="", sha256="0" * 64)
    context = ResolveContext(
        machine=Machine(), cache_dir=tmp_path, files=FileCache(tmp_path / "files"), emit=lambda _: None
    )
    with raw_server([answer], [answer]) as address, pytest.raises(MachineError, match="10 MB are free"):
        obtain(replace(file, address=address), Location(path=Path("spec.yaml")), context)
    assert [path for path in (tmp_path / "files").rglob("*") if path.is_file()] == []

"""Debian's registry (`docker-registry`, the project `distribution`), on a free port of this machine."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.tokens import serving_tokens

Authentication = Literal["none", "basic", "token"]
USER, PASSWORD = "ada", "s3cret-Word9"
# Of the password, by bcrypt.
_ENTRY = f"{USER}:$2b$04$7jyaBiuc5M2PvwnLSjyYaOlRp9LrzRW/CNJjZFKFBxal4qyvDjZQ6\n"
# Settings of a machine that would win over the certificate's.
_NO_OTHERS = dict.fromkeys(("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), "")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A running registry."""

    host: str
    directory: Path
    """Has its certificate, ``own.crt``, if it has TLS, a file of logins, and its data."""

    @property
    def logins(self) -> Path:
        """The file of a user who has logged in, in the form of docker and podman."""
        return self.directory / "auth.json"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a user who has logged in and trusts the certificate."""
        logins = {"REGISTRY_AUTH_FILE": str(self.logins)}
        certificate = self.directory / "own.crt"
        return {
            **logins,
            **({"SSL_CERT_FILE": str(certificate)} if certificate.exists() else {}),
            **_NO_OTHERS,
        }

    def stored_bytes(self) -> int:
        """Return the length of all blobs that it holds."""
        return sum(path.stat().st_size for path in self.directory.glob("data/**/blobs/sha256/**/data"))


@contextmanager
def serving_distribution(
    directory: Path, *, authentication: Authentication = "basic", tls: bool = True
) -> Iterator[Distribution]:
    """Run a registry with its data in `directory`, which exists."""
    port = free_port()
    registry = Distribution(f"127.0.0.1:{port}", directory)
    if tls:
        _make_certificate(directory, "own")
    (directory / "htpasswd").write_text(_ENTRY)
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    registry.logins.write_text(json.dumps({"auths": {registry.host: {"auth": login}}}))
    with ExitStack() as opened:
        lines = [
            "version: 0.1",
            "log: {level: error}",
            f"storage: {{filesystem: {{rootdirectory: {directory}/data}}}}",
            f'http: {{addr: "{registry.host}"' + _tls(directory, tls=tls) + "}",
        ]
        if authentication == "basic":
            lines.append(f"auth: {{htpasswd: {{realm: lab, path: {directory}/htpasswd}}}}")
        elif authentication == "token":
            realm = opened.enter_context(serving_tokens(directory, USER, PASSWORD))
            lines.append(
                f"auth: {{token: {{realm: {realm}, service: lab, issuer: lab,"
                f" rootcertbundle: {directory}/tokens.crt}}}}"
            )
        (directory / "config.yml").write_text("\n".join(lines) + "\n")
        log = opened.enter_context((directory / "log").open("wb"))
        words: list[str | Path] = ["docker-registry", "serve", directory / "config.yml"]
        server = opened.enter_context(subprocess.Popen(words, stdout=log, stderr=log))
        opened.callback(server.terminate)
        wait_for(port, server)
        yield registry


def _tls(directory: Path, *, tls: bool) -> str:
    return f", tls: {{certificate: {directory}/own.crt, key: {directory}/own.key}}" if tls else ""


def _make_certificate(directory: Path, name: str) -> None:
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -addext subjectAltName=IP:127.0.0.1"
    argv = [*words.split(), "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.crt"]
    subprocess.run(argv, cwd=directory, check=True, capture_output=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)

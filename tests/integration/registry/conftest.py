"""Debian's registry (`distribution`), by TLS and with logins."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Desk

USER, PASSWORD = "ada", "s3cret-Word9"
# Of the password, by bcrypt.
ENTRY = f"{USER}:$2b$04$7jyaBiuc5M2PvwnLSjyYaOlRp9LrzRW/CNJjZFKFBxal4qyvDjZQ6\n"
# Settings of this machine that would win over the certificate's.
NO_OTHERS = dict.fromkeys(("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), "")
SETTINGS = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {directory}/data}}}}
http: {{addr: "127.0.0.1:{port}", tls: {{certificate: {directory}/own.crt, key: {directory}/own.key}}}}
auth: {{htpasswd: {{realm: lab, path: {directory}/htpasswd}}}}
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Run a registry on a free port; yield its host, and the directory with its certificate."""
    directory = tmp_path_factory.mktemp("registry")
    words = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=lab -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(
        [*words.split(), "-keyout", "own.key", "-out", "own.crt"],
        cwd=directory,
        check=True,
        capture_output=True,
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (directory / "htpasswd").write_text(ENTRY)
    (directory / "config.yml").write_text(SETTINGS.format(directory=directory, port=port))
    with subprocess.Popen(["docker-registry", "serve", directory / "config.yml"]) as server:
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert server.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            yield f"127.0.0.1:{port}", directory
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def environment(desk: Desk, registry: tuple[str, Path]) -> dict[str, str]:
    """The variables of a user who has logged in."""
    host, directory = registry
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    logins = desk.write("auth.json", json.dumps({"auths": {host: {"auth": auth}}}))
    return {"REGISTRY_AUTH_FILE": str(logins), "SSL_CERT_FILE": str(directory / "own.crt"), **NO_OTHERS}

from __future__ import annotations

import io
from pathlib import Path

import pytest
import requests

from envbuild.system import network
from envbuild.system.certificates import trusted
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
    assert trusted() == str(bundle)
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    assert trusted() is True  # an empty directory trusts nobody: the package's own are used
    (tmp_path / "1234abcd.0").touch()
    assert trusted() == str(tmp_path)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (requests.exceptions.SSLError(), "its certificate is not trusted here"),
        (requests.exceptions.InvalidURL(), "cannot be asked: it is no usable address"),
    ],
)
def test_errors_of_a_connection(error: Exception, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(requests.Session, "request", fail)
    with network.Client() as client, pytest.raises(network.NetworkError, match=problem):
        client.page("https://index.example.org/simple/x/", accept="text/html")


def test_a_page_without_end_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = requests.Response()
    answer.status_code, answer.raw = 200, io.BytesIO(b"x" * 100)
    monkeypatch.setattr(network, "_PAGE_LIMIT_BYTES", 10)
    monkeypatch.setattr(requests.Session, "request", lambda *_, **__: answer)
    with network.Client() as client, pytest.raises(network.NetworkError, match="is longer than a page"):
        client.page("https://index.example.org/simple/x/", accept="text/html")

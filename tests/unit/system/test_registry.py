"""The client of container registries, against one in memory that behaves and misbehaves as real ones do."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from envbuild.errors import EnvbuildError, RequestError
from envbuild.system import registry as registries
from envbuild.system.network import NetworkError, RequestLimits
from envbuild.system.references import MANIFEST, Reference
from envbuild.system.registry import RegistryError, Repository
from tests.support.registry import PASSWORD, TOKEN, USER, Registry, serving

QUICK = RequestLimits(attempts=3, pause_s=0.01, longest_pause_s=0.05)
DATA = bytes(range(256)) * 4096


@pytest.fixture(autouse=True)
def no_logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_RUNTIME_DIR", "REGISTRY_AUTH_FILE", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as registry:
        yield registry


def repository(registry: Registry, name: str = "lab/image:1") -> Repository:
    return Repository(Reference.parse(f"{registry.host}/{name}"), limits=QUICK)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def push(registry: Registry, tmp_path: Path, data: bytes = DATA) -> tuple[str, list[int]]:
    sent: list[int] = []
    path = tmp_path / "data"
    path.write_bytes(b"before" + data)
    with repository(registry) as pushing, path.open("rb") as file:
        pushing.push_blob(digest_of(data), len(data), file, len(b"before"), sent.append)
    return digest_of(data), sent


def pull(registry: Registry, digest: str, target: Path, size_bytes: int = len(DATA)) -> bytes:
    with repository(registry) as pulling:
        for _ in pulling.pull_blob(digest, size_bytes, target):
            pass
    return target.read_bytes()


def log_in(path: Path, host: str, password: str = PASSWORD, **more: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {host: {"auth": auth}}, **more}))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "registry.example.org/team/pytorch:2026.11",
            ("registry.example.org", "team/pytorch", "2026.11", ""),
        ),
        ("docker://localhost:5000/a", ("localhost:5000", "a", "latest", "")),
        ("oras://localhost/a__b/c-d.e:1", ("localhost", "a__b/c-d.e", "1", "")),
        ("[::1]:5000/a:1", ("[::1]:5000", "a", "1", "")),
        (f"h.org/a@sha256:{'0' * 64}", ("h.org", "a", "", f"sha256:{'0' * 64}")),
        (f"h.org/a:1@sha256:{'0' * 64}", ("h.org", "a", "1", f"sha256:{'0' * 64}")),
    ],
)
def test_names_of_images(text: str, parts: tuple[str, ...]) -> None:
    found = Reference.parse(text)
    assert (found.host, found.repository, found.tag, found.digest) == parts


@pytest.mark.parametrize(
    "text",
    [
        *("pytorch", "team/pytorch:1", "h.org/", "h.org/A:1", "h.org/../x:1", "h.org/a/../b", "h.org/a:b:c"),
        *("h.org/a@sha256:12", "http://h.org/a", "h.org/a?x=1", "u:p@h.org/a:1", "h.org/a:1\n", "x" * 2000),
    ],
)
def test_other_texts_are_no_names_and_show_no_password(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        Reference.parse(text)
    assert "u:p" not in str(caught.value)


def test_a_text_that_is_not_a_name_is_shown_with_its_tag() -> None:
    with pytest.raises(RequestError, match=r"`ubuntu:24\.04` does not name an image in a registry"):
        Reference.parse("docker://ubuntu:24.04")


def test_a_blob_goes_and_comes_back_and_is_not_sent_twice(registry: Registry, tmp_path: Path) -> None:
    digest, sent = push(registry, tmp_path)
    assert registry.blobs == {digest: DATA}
    assert sum(sent) == len(DATA)
    registry.forget()
    push(registry, tmp_path)
    assert registry.received_bytes == 0
    assert pull(registry, digest, tmp_path / "got") == DATA


@pytest.mark.parametrize("kind", ["basic", "token"])
@pytest.mark.parametrize(
    "place", [".config/containers/auth.json", ".apptainer/docker-config.json", ".docker/config.json"]
)
def test_logins_of_other_tools_are_used(registry: Registry, tmp_path: Path, kind: str, place: str) -> None:
    registry.authentication = kind
    log_in(tmp_path / "home" / place, registry.host)
    digest, _ = push(registry, tmp_path)
    assert pull(registry, digest, tmp_path / "got") == DATA


def test_the_login_of_a_longer_name_comes_first(registry: Registry, tmp_path: Path) -> None:
    registry.authentication = "basic"
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    other = base64.b64encode(b"eve:x").decode()
    path = tmp_path / "home/.docker/config.json"
    path.parent.mkdir(parents=True)
    logins = {registry.host: {"auth": other}, f"{registry.host}/lab": {"auth": auth}}
    path.write_text(json.dumps({"auths": logins}))
    push(registry, tmp_path)
    assert registry.blobs


def test_a_credential_helper_is_asked(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.authentication = "token"
    helper = tmp_path / "bin/docker-credential-lab"
    helper.parent.mkdir()
    helper.write_text(f'#!/bin/sh\ncat >&2\necho \'{{"Username": "{USER}", "Secret": "{PASSWORD}"}}\'\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
    path = tmp_path / "home/.docker/config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"credHelpers": {registry.host: "lab"}}))
    push(registry, tmp_path)
    assert registry.blobs


@pytest.mark.parametrize("kind", ["basic", "token"])
def test_a_refused_login_says_what_was_tried_and_no_secret(
    registry: Registry, tmp_path: Path, kind: str
) -> None:
    registry.authentication = kind
    with pytest.raises(RegistryError) as without:
        push(registry, tmp_path)
    assert "no login was found in" in without.value.problem
    assert f"podman login {registry.host}" in without.value.hint
    path = tmp_path / "home/.docker/config.json"
    log_in(path, registry.host, "Wr0ng-Password")
    with pytest.raises(RegistryError) as refused:
        push(registry, tmp_path)
    assert f"the login of `{USER}` in `{path}` was refused" in refused.value.problem
    assert "Wr0ng" not in f"{refused.value.problem}{refused.value.hint}"


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"auths": {"HOST": {"auth": "%%"}}}', '{"auths": {"HOST": {"auth": "YQ=="}}}']
)
def test_a_damaged_file_with_logins_is_named(registry: Registry, tmp_path: Path, text: str) -> None:
    registry.authentication = "basic"
    path = tmp_path / "home/.docker/config.json"
    path.parent.mkdir(parents=True)
    path.write_text(text.replace("HOST", registry.host))
    with pytest.raises(RequestError) as caught:
        push(registry, tmp_path)
    assert caught.value.at is not None
    assert caught.value.at.path == path


def logins_elsewhere(registry: Registry, digest: str, directory: Path) -> set[str]:
    """Pull a blob that the registry redirects to another host; return the logins that this host got."""
    with serving() as elsewhere:
        elsewhere.blobs[digest] = DATA
        elsewhere.repositories.add(("lab/image", digest))
        # Another name of the same address: only the host differs.
        registry.redirect_to = f"http://localhost:{elsewhere.port}"
        assert pull(registry, digest, directory / "got") == DATA
        return {given for _, _, given in elsewhere.requests}


def test_another_host_gets_no_credentials(registry: Registry, tmp_path: Path) -> None:
    registry.authentication = "basic"
    log_in(tmp_path / "home/.docker/config.json", registry.host)
    digest, _ = push(registry, tmp_path)
    assert logins_elsewhere(registry, digest, tmp_path) == {""}


@pytest.mark.parametrize("version", [":2", f"@sha256:{'0' * 64}"])
def test_an_image_that_is_not_there_is_named_as_it_was_asked_for(registry: Registry, version: str) -> None:
    with repository(registry) as opened, pytest.raises(RegistryError) as caught:
        opened.manifest(version[1:])
    assert f"has no `lab/image{version}`: status 404" in caught.value.problem


def test_a_proxy_that_compresses_answers_changes_nothing(registry: Registry, tmp_path: Path) -> None:
    registry.authentication, registry.compresses = "token", True
    log_in(tmp_path / "home/.docker/config.json", registry.host)
    with repository(registry) as opened:
        put = opened.put_manifest({"schemaVersion": 2, "mediaType": MANIFEST, "layers": []}, "1")
        assert opened.manifest("1").digest == opened.manifest(put.digest).digest == put.digest


def test_the_first_of_several_challenges_is_taken(registry: Registry, tmp_path: Path) -> None:
    registry.authentication, registry.more_challenges = "token", ', Basic realm="elsewhere"'
    log_in(tmp_path / "home/.docker/config.json", registry.host)
    digest, _ = push(registry, tmp_path)
    assert pull(registry, digest, tmp_path / "got") == DATA


def test_another_host_gets_no_password_of_a_netrc(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine localhost login ada password Hunter2\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    digest, _ = push(registry, tmp_path)
    assert logins_elsewhere(registry, digest, tmp_path) == {""}


@pytest.mark.parametrize("more", [{}, {"identitytoken": "Hunter2"}])
def test_a_login_does_not_follow_a_token_server_that_redirects(
    registry: Registry, tmp_path: Path, more: dict[str, str]
) -> None:
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    logins = tmp_path / "home/.docker/config.json"
    logins.parent.mkdir(parents=True)
    logins.write_text(json.dumps({"auths": {registry.host: {"auth": auth, **more}}}))
    registry.authentication = "token"
    with serving() as elsewhere:
        registry.redirect_tokens_to = f"http://localhost:{elsewhere.port}"
        with pytest.raises(RegistryError, match="redirects elsewhere, where envbuild sends no login"):
            push(registry, tmp_path)
        assert elsewhere.requests == []


def test_a_registry_with_tls_that_names_itself_without_gets_uploads_by_tls() -> None:
    answer = requests.Response()
    with Repository(Reference.parse("registry.example.org/a:1")) as secure:
        for location, address in (
            ("http://registry.example.org/v2/a/1?state=b", "https://registry.example.org/v2/a/1?state=b"),
            ("/v2/a/1", "https://registry.example.org/v2/a/1"),
            # A login goes to neither.
            ("http://storage.example.org/1", "http://storage.example.org/1"),
            ("http://registry.example.org:80/1", "http://registry.example.org:80/1"),
        ):
            answer.headers["Location"] = location
            assert secure._location(answer) == address


def test_a_token_server_without_tls_does_not_see_the_login_of_a_registry_with_it() -> None:
    with Repository(Reference.parse("registry.example.org/a:1")) as secure:
        assert not secure._may_ask("http://example.org/token")
        assert not secure._may_ask("file:///etc/passwd")
        assert secure._may_ask("https://example.org/token")


def test_a_registry_without_tls_is_reached_if_it_is_named(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "_LOOPBACK", re.compile("nothing"))
    with pytest.raises(NetworkError, match="does not answer by TLS") as caught:
        push(registry, tmp_path)
    assert caught.value.hint.endswith(f"for a registry of your own ENVBUILD_PLAIN_HTTP={registry.host}")
    for hosts in (f"other.example.org:5000,{registry.host}", f"{registry.host}, other"):
        monkeypatch.setenv("ENVBUILD_PLAIN_HTTP", hosts)
        push(registry, tmp_path)
    monkeypatch.setenv("ENVBUILD_PLAIN_HTTP", f"127.0.0.1,{registry.host}0")
    with pytest.raises(NetworkError):
        push(registry, tmp_path)


@pytest.mark.parametrize("after", [0, 1, 4096, 500_000, len(DATA) - 1])
def test_broken_transfers_are_continued(registry: Registry, tmp_path: Path, after: int) -> None:
    registry.cut_after = [after, after // 2]
    digest, sent = push(registry, tmp_path)
    assert registry.blobs == {digest: DATA}
    assert sum(sent) == len(DATA)
    registry.forget()
    registry.cut_after = [after, after // 2]
    assert pull(registry, digest, tmp_path / "got") == DATA
    assert registry.sent_bytes == len(DATA)


@pytest.fixture
def in_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Send blobs in chunks of this length."""
    monkeypatch.setattr(registries, "CHUNK_BYTES", 100_000)
    return 100_000


def bodies(registry: Registry) -> list[str]:
    """Return the methods of the requests that brought bytes of blobs and were answered."""
    return [method for method, path, _ in registry.requests if method != "GET" and "/upload/" in path]


@pytest.mark.parametrize("status", [202, 204])
@pytest.mark.parametrize("authentication", ["", "basic", "token"])
def test_a_long_blob_is_sent_in_chunks(
    registry: Registry, tmp_path: Path, in_chunks: int, status: int, authentication: str
) -> None:
    registry.chunk_status, registry.authentication = status, authentication
    log_in(tmp_path / "home/.docker/config.json", registry.host)
    digest, sent = push(registry, tmp_path)
    assert registry.blobs == {digest: DATA}
    assert sum(sent) == registry.received_bytes == len(DATA)
    assert bodies(registry) == ["PATCH"] * 11 + ["PUT"]


@pytest.mark.parametrize("after", [0, 1, 99_999])
def test_a_chunk_that_breaks_off_is_resumed_or_its_blob_begun_again(
    registry: Registry, tmp_path: Path, in_chunks: int, after: int
) -> None:
    # The fourth chunk breaks off twice.
    whole = [2 * in_chunks] * 3
    registry.forgets_broken, registry.cut_after = False, [*whole, after, after // 2]
    digest, sent = push(registry, tmp_path)
    assert registry.blobs == {digest: DATA}
    assert sum(sent) == len(DATA)
    assert registry.received_bytes <= len(DATA)
    registry.blobs.clear()
    registry.repositories.clear()
    registry.forget()
    registry.forgets_broken, registry.cut_after = True, [*whole, after, *whole, after // 2]
    digest, sent = push(registry, tmp_path)
    assert registry.blobs == {digest: DATA}
    assert sum(sent) == len(DATA)
    assert registry.received_bytes == len(DATA) + 2 * 3 * in_chunks


@pytest.mark.parametrize("status", [400, 404, 405, 416])
def test_a_registry_without_chunks_gets_the_whole_blob(
    registry: Registry, tmp_path: Path, in_chunks: int, status: int
) -> None:
    registry.chunk_status = status
    digest, _ = push(registry, tmp_path)
    assert registry.blobs == {digest: DATA}
    assert bodies(registry) == ["PATCH", "PUT"]


@pytest.mark.parametrize("chunk", [100_000, 1 << 30])
@pytest.mark.parametrize("forgets", [True, False])
def test_an_upload_that_always_breaks_off_is_tried_as_often_as_the_limits_say(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, forgets: bool
) -> None:
    monkeypatch.setattr(registries, "CHUNK_BYTES", chunk)
    registry.forgets_broken, registry.cut_after = forgets, [0] * 100
    with pytest.raises(NetworkError):
        push(registry, tmp_path)
    assert len(registry.cut_after) == 100 - QUICK.attempts
    # A busy one, too.
    registry.cut_after, registry.busy, registry.busy_methods = [], 100, ("PATCH", "PUT")
    with pytest.raises(NetworkError, match="answered with status 429"):
        push(registry, tmp_path)
    assert registry.busy == 100 - QUICK.attempts


def test_what_a_run_that_failed_has_fetched_is_not_fetched_again(registry: Registry, tmp_path: Path) -> None:
    digest, _ = push(registry, tmp_path)
    registry.forget()
    registry.cut_after = [100_000] * 5
    with pytest.raises(NetworkError):
        pull(registry, digest, tmp_path / "got")
    assert pull(registry, digest, tmp_path / "got") == DATA
    assert registry.sent_bytes == len(DATA)


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "PATCH"])
def test_a_busy_registry_is_asked_again(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(registries, "CHUNK_BYTES", 100_000 if method == "PATCH" else len(DATA))
    registry.busy, registry.busy_methods = 2, (method,)
    digest, _ = push(registry, tmp_path)
    assert registry.blobs == {digest: DATA}
    registry.busy, registry.busy_methods = 2, ("GET",)
    assert pull(registry, digest, tmp_path / "got") == DATA
    assert registry.busy == 0


def test_a_registry_that_does_not_answer_is_named_with_what_helps(tmp_path: Path) -> None:
    with serving() as gone:
        pass
    with pytest.raises(NetworkError) as caught:
        push(gone, tmp_path)
    assert gone.host in caught.value.problem
    # It is not an index of packages.
    assert "origins" not in caught.value.hint


@pytest.mark.parametrize("forged", [b"x" * len(DATA), DATA[:-1], DATA + b"x"])
def test_other_bytes_are_refused_and_not_kept(registry: Registry, tmp_path: Path, forged: bytes) -> None:
    digest, _ = push(registry, tmp_path)
    registry.forged[digest] = forged
    with pytest.raises(EnvbuildError):
        pull(registry, digest, tmp_path / "got")
    # The next run compares what was kept.
    assert not (tmp_path / "got").exists() or DATA.startswith((tmp_path / "got").read_bytes())
    registry.forged.clear()
    assert pull(registry, digest, tmp_path / "got") == DATA


def test_a_manifest_has_the_digest_that_was_asked_for(registry: Registry) -> None:
    with repository(registry) as both:
        written = both.put_manifest({"mediaType": MANIFEST, "layers": []}, "1")
        assert both.manifest("1") == both.manifest(written.digest)
        registry.manifests[f"lab/image@{written.digest}"] = b"{}"
        with pytest.raises(RegistryError, match="sent a manifest of"):
            both.manifest(written.digest)
        with pytest.raises(RegistryError, match="status 404"):
            both.manifest("2")


@pytest.mark.parametrize("body", [b"[]", b"{", b"[" * 100_000, b"{" + b" " * (5 << 20) + b"}", b"\xff"])
def test_a_hostile_manifest_is_refused(registry: Registry, body: bytes) -> None:
    registry.manifests["lab/image:1"] = body
    with repository(registry) as pulling, pytest.raises(EnvbuildError):
        pulling.manifest("1")


def test_no_secret_stands_in_an_error(registry: Registry, tmp_path: Path) -> None:
    registry.authentication = "token"
    log_in(tmp_path / "home/.docker/config.json", registry.host)
    digest, _ = push(registry, tmp_path)
    registry.cut_after = [10] * 5
    with pytest.raises(NetworkError) as caught:
        pull(registry, digest, tmp_path / "got")
    text = f"{caught.value.problem} {caught.value.hint} {caught.value!r}"
    assert PASSWORD not in text
    assert TOKEN not in text

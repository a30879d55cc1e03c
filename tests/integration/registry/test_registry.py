"""`push` and `pull` with Debian's registry (`distribution`), by TLS and with logins."""

from __future__ import annotations

import base64
import filecmp
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


def test_an_image_and_one_package_more_travel(
    desk: Desk, small_image: Path, registry: tuple[str, Path], environment: dict[str, str]
) -> None:
    name = f"{registry[0]}/team/small"
    first = json.loads(desk.envbuild("push", small_image, f"{name}:1", "--json", env=environment).stdout)
    assert first["sent"] == first["parts"]
    again = json.loads(desk.envbuild("push", small_image, f"{name}:1", "--json", env=environment).stdout)
    assert again["sent_bytes"] == 0
    desk.envbuild("extend", small_image, "--env", "TRAVELS=yes", "-o", "more.sif")
    more = json.loads(desk.envbuild("push", "more.sif", f"{name}:2", "--json", env=environment).stdout)
    assert more["sent_bytes"] < first["size_bytes"] / 10
    empty = desk.place / "another-store"
    words: list[str | Path] = ["pull", f"{name}:2", "-o", "pulled.sif", "--store", empty, "--json"]
    pulled = json.loads(desk.envbuild(*words, "--have", small_image, env=environment).stdout)
    assert pulled["fetched_bytes"] == more["sent_bytes"]
    assert filecmp.cmp(desk.place / "more.sif", desk.place / "pulled.sif", shallow=False)
    assert "yes" in desk.run(["apptainer", "exec", "pulled.sif", "printenv", "TRAVELS"]).stdout


def test_from_nothing_all_of_it_comes(
    desk: Desk, small_image: Path, registry: tuple[str, Path], environment: dict[str, str]
) -> None:
    name = f"{registry[0]}/team/small:1"
    desk.envbuild("push", small_image, name, env=environment)
    desk.envbuild("pull", name, "-o", "alone.sif", "--store", desk.place / "a-third-store", env=environment)
    assert filecmp.cmp(small_image, desk.place / "alone.sif", shallow=False)


def test_apptainer_pulls_the_same_tag(
    desk: Desk, small_image: Path, registry: tuple[str, Path], environment: dict[str, str]
) -> None:
    name = f"{registry[0]}/team/both:1"
    first = desk.envbuild("push", small_image, name, "--sif", "--json", env=environment)
    size_bytes = small_image.stat().st_size
    assert "--sif sends the whole file besides its parts" in first.stderr
    assert size_bytes < json.loads(first.stdout)["sent_bytes"] <= 2 * size_bytes
    again = json.loads(desk.envbuild("push", small_image, name, "--sif", "--json", env=environment).stdout)
    assert again["sent_bytes"] == 0
    # Apptainer reads logins of Docker, and certificates as Go does.
    logins = desk.place / "docker/config.json"
    logins.parent.mkdir()
    logins.write_text(Path(environment["REGISTRY_AUTH_FILE"]).read_text())
    variables = {
        **environment,
        "DOCKER_CONFIG": str(logins.parent),
        "APPTAINER_CACHEDIR": str(desk.place / "c"),
    }
    desk.apptainer("pull", "--authfile", logins, "theirs.sif", f"oras://{name}", env=variables)
    assert filecmp.cmp(small_image, desk.place / "theirs.sif", shallow=False)
    store = desk.place / "a-fourth-store"
    desk.envbuild("pull", name, "-o", "ours.sif", "--store", store, env=environment)
    assert filecmp.cmp(small_image, desk.place / "ours.sif", shallow=False)


def test_another_name_of_the_registry_costs_nothing(
    desk: Desk, small_image: Path, registry: tuple[str, Path], environment: dict[str, str]
) -> None:
    words: list[str | Path] = ["push", small_image, f"{registry[0]}/mine/copy:1", "--json"]
    desk.envbuild("push", small_image, f"{registry[0]}/team/small:1", env=environment)
    pushed = desk.envbuild(*words, "--from", f"{registry[0]}/team/small", env=environment)
    assert json.loads(pushed.stdout)["sent_bytes"] == 0
    name = f"{registry[0]}/mine/copy:1"
    desk.envbuild("pull", name, "-o", "copy.sif", "--store", desk.place / "a-fifth-store", env=environment)
    assert filecmp.cmp(small_image, desk.place / "copy.sif", shallow=False)


def test_commands_run_an_image_of_the_registry(
    desk: Desk, small_image: Path, registry: tuple[str, Path], environment: dict[str, str]
) -> None:
    name = f"{registry[0]}/team/run:1"
    pushed = json.loads(desk.envbuild("push", small_image, name, "--json", env=environment).stdout)
    variables = {**environment, "ENVBUILD_STORE": str(desk.place / "store-of-images")}
    assert name in desk.envbuild("inspect", name, env=variables).stdout
    program = ["python3", "-c", "import mpi4py; print(mpi4py.__file__)"]
    first = desk.envbuild("exec", name, *program, env=variables)
    assert "mpi4py" in first.stdout
    assert f"pull {name}: done" in first.stderr
    # By its digest, no registry is needed again.
    by_digest = f"{registry[0]}/team/run@{pushed['digest']}"
    elsewhere = {"ENVBUILD_STORE": variables["ENVBUILD_STORE"], "REGISTRY_AUTH_FILE": "none.json"}
    second = desk.envbuild("exec", by_digest, *program, env=elsewhere)
    assert (second.stdout, "pull" in second.stderr) == (first.stdout, False)
    tested = desk.envbuild("test", by_digest, "--quick", env=elsewhere).stderr
    assert "PASS" in tested


def test_an_empty_store_takes_layers_that_were_signed(
    desk: Desk, small_image: Path, registry: tuple[str, Path], environment: dict[str, str]
) -> None:
    name, spec = f"{registry[0]}/team/layers", small_image.with_suffix(".yaml")
    desk.envbuild("sign", "--new-key", "layers.key")
    words: list[str | Path] = ["build", spec, "--json", "--push-layers", name, "--key", "layers.key"]
    pushed = json.loads(desk.envbuild(*words, env=environment).stdout)["pushed"]
    assert pushed["sent_bytes"] > small_image.stat().st_size / 2
    again = json.loads(desk.envbuild(*words, env=environment).stdout)["pushed"]
    assert (again["layers"], again["sent_bytes"]) == (pushed["layers"], 0)
    # Layers and images share their data.
    image = desk.envbuild("push", small_image, f"{name}:image", "--json", env=environment)
    assert json.loads(image.stdout)["sent_bytes"] < pushed["sent_bytes"] / 10
    site = desk.place / "centre/envbuild/site.yaml"
    site.parent.mkdir(parents=True)
    key = desk.place / "layers.key.pub"
    site.write_text(f"name: centre\nupstreams: [{{registry: '{name}', trust: {key}}}]\n")
    variables = {**environment, "XDG_CONFIG_HOME": str(desk.place / "centre")}
    words = ["build", spec, "--locked", "-o", "taken.sif", "--store", desk.place / "a-sixth-store"]
    said = desk.envbuild(*words, env=variables).stderr
    assert f"layers: 0 built, {pushed['layers']} reused" in said
    assert filecmp.cmp(small_image, desk.place / "taken.sif", shallow=False)


def test_without_a_login_it_says_where_it_looked(
    desk: Desk, small_image: Path, registry: tuple[str, Path], environment: dict[str, str]
) -> None:
    nobody = {**environment, "REGISTRY_AUTH_FILE": "none.json"}
    said = desk.envbuild("push", small_image, f"{registry[0]}/team/x:1", env=nobody, code=5).stderr
    assert f"{registry[0]} asks for a login: no login was found in `none.json`" in said
    assert f"podman login {registry[0]}" in said


def test_a_certificate_that_is_not_trusted_is_named(
    desk: Desk, small_image: Path, registry: tuple[str, Path], environment: dict[str, str]
) -> None:
    strict = {**environment, "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt"}
    said = desk.envbuild("push", small_image, f"{registry[0]}/team/x:1", env=strict, code=5).stderr
    assert "its certificate is not trusted here" in said

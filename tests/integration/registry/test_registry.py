"""`push` and `pull` with Debian's registry (`distribution`), by TLS and with logins."""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
from pathlib import Path

import pytest

from envbuild.system import registry as registries
from envbuild.system.references import Reference
from envbuild.system.registry import Range, Repository
from tests.integration.conftest import Desk
from tests.support.podman import podman, podman_home


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


@pytest.mark.slow  # `make travel` pulls by podman, too
def test_podman_pulls_an_oci_image_and_one_package_more(
    desk: Desk, small_image: Path, registry: tuple[str, Path], environment: dict[str, str]
) -> None:
    name = f"{registry[0]}/team/oci"
    words: list[str | Path] = ["--format", "oci", "--json"]
    first = json.loads(desk.envbuild("push", small_image, f"{name}:1", *words, env=environment).stdout)
    assert first["sent"] == first["parts"]
    again = json.loads(desk.envbuild("push", small_image, f"{name}:1", *words, env=environment).stdout)
    assert (again["sent_bytes"], again["digest"]) == (0, first["digest"])
    desk.envbuild("extend", small_image, "tabulate", "--env", "TRAVELS=yes", "-o", "more-oci.sif")
    more = json.loads(desk.envbuild("push", "more-oci.sif", f"{name}:2", *words, env=environment).stdout)
    assert more["sent_bytes"] < 2_000_000 < first["sent_bytes"]
    login = ("--authfile", environment["REGISTRY_AUTH_FILE"], "--tls-verify=false")
    with podman_home() as home:
        podman(home, "pull", "--quiet", *login, f"{name}:2")
        (shown,) = json.loads(podman(home, "image", "inspect", f"{name}:2"))
        assert shown["Digest"] == more["digest"]
        assert "TRAVELS=yes" in shown["Config"]["Env"]
        podman(home, "create", "--name", "one", f"{name}:2", "true")
        podman(home, "cp", "one:/.envbuild/manifest.json", home / "manifest.json")
        assert json.loads((home / "manifest.json").read_text())["name"] == "on-mpich"


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


def test_a_long_blob_goes_in_chunks(
    registry: tuple[str, Path],
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And begins again if it breaks off within one: this registry then forgets the upload."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(registries, "CHUNK_BYTES", 1 << 20)
    data = os.urandom(5 << 20)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    (tmp_path / "blob").write_bytes(data)
    sent: list[int] = []

    class Broken(Range):
        """A body that ends early, once."""

        def read(self, size: int = -1) -> bytes:
            piece = super().read(size)
            if sum(sent) > 5 << 19 and not broken:
                broken.append(True)
                raise ConnectionResetError
            return piece

    broken: list[bool] = []
    monkeypatch.setattr(registries, "Range", Broken)
    reference = Reference.parse(f"{registry[0]}/lab/chunks:1")
    with Repository(reference) as repository, (tmp_path / "blob").open("rb") as file:
        assert repository.push_blob(digest, len(data), file, 0, sent.append)
        assert broken
        assert sum(sent) == len(data)
        assert [*repository.pull_blob(digest, len(data), tmp_path / "got")][-1] == len(data)
    assert (tmp_path / "got").read_bytes() == data


@pytest.mark.slow  # unit/workflows/registries/test_layers has signed layers
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
    config = desk.place / "centre/envbuild/config.yaml"
    config.parent.mkdir(parents=True)
    key = desk.place / "layers.key.pub"
    config.write_text(f"upstreams: [{{registry: '{name}', trust: {key}}}]\n")
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

"""Images that podman pushed to Debian's registry, as bases: layers by gzip and zstd, an index, whiteouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.support.podman import podman, podman_home
from tests.support.torture.ground import Ground

SPEC = 'name: on-image\nversion: "1"\nbase: {base}\n'


@pytest.fixture(scope="module")
def image(ground: Ground, registry: tuple[str, Path], environment: dict[str, str]) -> str:
    """Push a root, and a layer that hides and adds files, by gzip, zstd and as an index; return its name."""
    name = f"{registry[0]}/team/root"
    trust = ("--tls-verify=false", "--authfile", environment["REGISTRY_AUTH_FILE"])
    with podman_home() as home:
        podman(home, "import", ground.place / "root.tar", "localhost/root:1")
        container = podman(home, "create", "localhost/root:1", "true").strip()
        storage = f"--root {home}/storage --runroot {home}/run --storage-driver vfs"
        change = "rm $1/usr/bin/sleep && mkdir $1/opt/own && echo mine > $1/opt/own/file"
        mounted = f'set -- "$(podman {storage} mount {container})" && {change}'
        podman(home, "unshare", "sh", "-c", mounted)
        podman(home, "commit", "--quiet", container, "localhost/root:2")
        for form in ("gzip", "zstd"):
            podman(home, "push", *trust, "--compression-format", form, "localhost/root:2", f"{name}:{form}")
        for tag, architectures in (("both", ("arm64", "amd64")), ("other", ("arm64",))):
            podman(home, "manifest", "create", tag)
            for architecture in architectures:
                podman(home, "manifest", "add", *trust, "--arch", architecture, tag, f"docker://{name}:gzip")
            podman(home, "manifest", "push", *trust, "--all", tag, f"docker://{name}:{tag}")
    return name


@pytest.fixture(scope="module")
def lock(desk: Desk, image: str, environment: dict[str, str]) -> Callable[..., str]:
    def lock(tag: str, base: str, *words: str, code: int = 0) -> str:
        desk.write(f"on-{tag}.yaml", SPEC.format(base=base.format(image=image)))
        return desk.envbuild("lock", f"on-{tag}.yaml", *words, env=environment, code=code).stderr

    return lock


def test_a_base_of_the_registry_is_locked_built_and_runs(
    desk: Desk, image: str, lock: Callable[..., str], environment: dict[str, str]
) -> None:
    said = lock("both", "{{image: {image}:both}}")
    assert f"fetch 2 layers of {image}:both into the store: " in said
    assert f"base: {image}:both is debian 12, Python 3.11, glibc 2.36" in said
    assert "fetch" not in lock("again", "{image}:both")
    desk.envbuild("build", "on-both.yaml", env=environment)
    program = "import os; print(open('/opt/own/file').read().strip(), os.path.exists('/usr/bin/sleep'))"
    shown = desk.envbuild("exec", "on-both.sif", "python3", "-c", program).stdout
    assert shown.split() == ["mine", "False"]


@pytest.mark.slow  # unit/workflows/registries has layers by zstd
def test_layers_by_zstd_give_the_same_base(
    desk: Desk, lock: Callable[..., str], environment: dict[str, str]
) -> None:
    bases = set()
    for form in ("both", "zstd"):
        lock(form, f"{{image}}:{form}")
        desk.envbuild("build", f"on-{form}.yaml", env=environment)
        shown = json.loads(desk.envbuild("inspect", f"on-{form}.sif", "--json").stdout)
        layers = shown["file_system"]["layers"]
        bases.add(next(layer["digest"] for layer in layers if layer["name"] == "base"))
    assert len(bases) == 1


@pytest.mark.slow  # test_a_base_of_the_registry has the build
def test_kept_layers_build_it_where_no_registry_is(
    desk: Desk, lock: Callable[..., str], environment: dict[str, str]
) -> None:
    lock("both", "{image}:both")
    desk.envbuild("build", "on-both.yaml", "-o", "here.sif", env=environment)
    desk.envbuild("fetch", "on-both.yaml", "--to", "kept-layers", env=environment)
    away = {"ENVBUILD_STORE": str(desk.place / "store-without-registry"), "REGISTRY_AUTH_FILE": "none.json"}
    words = ["build", "on-both.yaml", "--locked", "--offline", "-o", "away.sif"]
    assert "2 locked files" in desk.envbuild(*words, env=away, code=2).stderr
    desk.envbuild(*words, "--from", "kept-layers", env=away)
    assert (desk.place / "away.sif").read_bytes() == (desk.place / "here.sif").read_bytes()
    # A copy of the image says itself where its base came from.
    env = {**environment, "ENVBUILD_STORE": str(desk.place / "store-to-reproduce")}
    assert "the same bytes" in desk.envbuild("reproduce", "here.sif", env=env).stderr


def test_what_cannot_be_is_said_in_words(
    image: str, lock: Callable[..., str], desk: Desk, environment: dict[str, str]
) -> None:
    said = lock("other", "{image}:other", code=2)
    assert f"`{image}:other` is not made for linux/amd64" in said
    assert "it is made for linux/arm64" in said
    assert "has no `team/root:nosuch`: status 404" in lock("nosuch", "{image}:nosuch", code=5)
    nobody = {**environment, "REGISTRY_AUTH_FILE": "none.json"}
    desk.write("nobody.yaml", SPEC.format(base=f"{image}:gzip"))
    assert (
        "asks for a login: no login was found"
        in desk.envbuild("lock", "nobody.yaml", env=nobody, code=5).stderr
    )

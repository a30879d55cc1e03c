"""Images of registries as bases: what a lock says of them, what is fetched, and what is refused."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.build.roots import make_imported_root
from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.events import Event, Note
from envbuild.lock.model import all_pins
from envbuild.lock.text import dump, load, load_file
from envbuild.resolve.fetch import export, origins_of
from envbuild.store.store import Store
from envbuild.system import host
from envbuild.system.references import Reference
from envbuild.system.registry_logins import find_login
from envbuild.workflows.fetch import fetch_pins
from envbuild.workflows.lock import check_lock, lock_spec, read_locked
from envbuild.workflows.members import Members
from envbuild.workflows.plan import plan_image, show_plans
from envbuild.workflows.settings import Settings
from tests.support.oci_images import CONFIG, LAYER, OS_RELEASE, ROOT, Shelf, gzipped, tar, zstd
from tests.support.registry import Registry
from tests.support.roots import TEXTS, entry

BELOW = gzipped(*ROOT, entry("opt/old", content="old"), entry("opt/kept/a"), entry("opt/closed/a"))
ABOVE = zstd(
    entry("opt/.wh.old"),
    entry("opt/closed/.wh..wh..opq"),
    entry("opt/closed/b", content="b"),
    entry("usr/local/cuda-12.9", "dir"),
    entry("opt/hpcx/lib/libmpi.so.40", "link", "libmpi.so.40.30.5"),
)


@pytest.fixture
def shelf(registry: Registry) -> Shelf:
    return Shelf(registry)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def settings(
    settings: Settings, events: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    monkeypatch.delenv("ENVBUILD_SITE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return replace(settings, emit=events.append)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(base: str, name: str = "spec.yaml") -> Path:
        path = tmp_path / name
        path.write_text(f'name: demo\nversion: "1"\nbase: {base}\n')
        return path

    return write


def push(shelf: Shelf, tag: str = "1", *layers: bytes) -> str:
    return shelf.image(layers or (BELOW, ABOVE), tag)


def notes(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Note)]


def test_a_lock_names_the_image_of_an_index_its_layers_and_its_facts(
    shelf: Shelf, settings: Settings, events: list[Event], write: Callable[..., Path]
) -> None:
    mine, other = push(shelf, ""), shelf.image([BELOW], architecture="arm64")
    shelf.index([(other, "arm64"), (mine, "amd64")], "1")
    name = shelf.reference("1")
    locked = lock_spec(write(f"{{image: {name}}}"), settings)
    lock = locked.lock
    assert lock.base_image is not None
    assert (lock.base_image.image, lock.base_image.digest) == (name, mine)
    assert (lock.base.name, lock.base.python, lock.base.abi) == ("root-1", "3.11", "cp311")
    assert lock.base.glibc == "2.36"
    assert (lock.base_image.distribution, lock.base_image.suite, lock.base_image.version) == (
        "debian",
        "bookworm",
        "12",
    )
    assert lock.base_image.packages == ("git", "libc6")
    assert lock.base_image.brings == ("CUDA 12.9", "MPI (libmpi.so.40)")
    assert [pin.size_bytes for pin in lock.base_root] == [len(BELOW), len(ABOVE)]
    assert {pin.media_type for pin in lock.base_root} == {LAYER}
    assert lock.base_debs == ()
    said = notes(events)
    assert any(text.startswith(f"fetch 2 layers of {name} into the store: ") for text in said)
    facts = "debian 12, Python 3.11, glibc 2.36, CUDA 12.9, MPI (libmpi.so.40)"
    assert f"base: {name} is {facts}" in said
    text = locked.path.read_bytes()
    assert load(text, locked.path) == lock
    assert dump(lock).encode() == text


def test_a_distribution_whose_version_is_a_month(
    shelf: Shelf, settings: Settings, write: Callable[..., Path]
) -> None:
    ubuntu = 'ID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n'
    push(shelf, "1", BELOW, gzipped(entry("usr/lib/os-release", content=ubuntu)), ABOVE)
    locked = lock_spec(write(shelf.reference("1")), settings)
    image = locked.lock.base_image
    assert image is not None
    assert (image.distribution, image.suite, image.version) == ("ubuntu", "noble", "24.04")
    assert load(locked.path.read_bytes(), locked.path) == locked.lock
    plan_image(locked)


def test_names_as_people_type_them(shelf: Shelf, settings: Settings, write: Callable[..., Path]) -> None:
    digest, name = push(shelf), shelf.reference("1")
    for written, image in (
        (name, name),
        (f"docker://{name}", name),
        (f"{{image: 'docker://{name}'}}", name),
        (f"{{image: '{shelf.reference(digest)}'}}", shelf.reference(digest)),
    ):
        lock = lock_spec(write(written, f"{len(image)}-{len(written)}.yaml"), settings).lock
        assert lock.base_image is not None
        assert (lock.base_image.image, lock.base_image.digest) == (image, digest)


def test_the_base_is_unpacked_from_the_layers(
    shelf: Shelf, settings: Settings, write: Callable[..., Path], tmp_path: Path
) -> None:
    push(shelf)
    locked = lock_spec(write(shelf.reference("1")), settings)
    plan = plan_image(locked)
    assert plan.image[0] == "base"
    lock = locked.lock
    cache = fetch_pins(lock.base_root, origins_of(locked.resolved), settings, sources=(), offline=True)
    paths = [cache.path(pin) for pin in lock.base_root]
    tree = tmp_path / "tree"
    make_imported_root(paths, kind="oci", python=lock.base.python, texts=TEXTS, tree=tree)
    files = {path.relative_to(tree / "opt").as_posix() for path in (tree / "opt").rglob("*")}
    assert {"closed/b", "hpcx/lib/libmpi.so.40", "kept/a"} <= files
    assert not {"old", "closed/a"} & files


def test_a_second_lock_of_the_same_image_downloads_nothing(
    shelf: Shelf, registry: Registry, settings: Settings, write: Callable[..., Path]
) -> None:
    digest = push(shelf)
    first = lock_spec(write(shelf.reference("1")), settings).lock
    # As after `cache prune`: the facts are kept, not the layers.
    shutil.rmtree(settings.store.root / "files/sha256")
    registry.forget()
    second = lock_spec(write(shelf.reference("1"), "other.yaml"), settings).lock
    assert second == first
    assert registry.sent_bytes == 0
    by_digest = write(shelf.reference(digest), "by-digest.yaml")
    registry.forget()
    assert lock_spec(by_digest, settings, offline=True).lock.base_root == first.base_root
    assert registry.requests == []


def test_an_index_by_its_digest_is_known_without_the_registry(
    shelf: Shelf, registry: Registry, settings: Settings, write: Callable[..., Path]
) -> None:
    index = shelf.index([(push(shelf), "amd64")])
    lock_spec(write(shelf.reference(index)), settings)
    registry.forget()
    lock_spec(write(shelf.reference(index), "other.yaml"), settings)
    assert registry.requests == []


def test_a_lock_stays_when_its_tag_moves_until_it_is_upgraded(
    shelf: Shelf, registry: Registry, settings: Settings, write: Callable[..., Path]
) -> None:
    old, spec = push(shelf), write(shelf.reference("1"))
    before = lock_spec(spec, settings)
    new = push(shelf, "1", BELOW, ABOVE, gzipped(entry("etc/moved")))
    registry.forget()
    assert lock_spec(spec, settings).changes == ()
    assert read_locked(spec, settings).lock == before.lock
    assert check_lock(spec, settings).changes == ()
    assert registry.requests == []

    sentence = f"base {shelf.reference('1')} is {new[:19]}…, the lock has {old[:19]}…"
    outdated = lock_spec(spec, settings, upgrade=(), write=False)
    assert outdated.changes == (sentence,)
    assert registry.sent_bytes < 1000, "the configuration alone"
    assert read_locked(spec, settings).lock == before.lock

    upgraded = lock_spec(spec, settings, upgrade=())
    assert upgraded.changes == (sentence,)
    assert upgraded.lock.base_image is not None
    assert upgraded.lock.base_image.digest == new
    assert len(upgraded.lock.base_root) == 3
    assert lock_spec(spec, settings, upgrade=()).changes == ()


def test_another_image_in_the_spec_needs_a_new_lock(
    shelf: Shelf, settings: Settings, write: Callable[..., Path]
) -> None:
    push(shelf)
    push(shelf, "2", BELOW)
    lock_spec(write(shelf.reference("1")), settings)
    spec = write(shelf.reference("2"))
    with pytest.raises(RequestError, match="the lock does not have the base") as caught:
        read_locked(spec, settings)
    assert caught.value.at is not None
    assert caught.value.at.line == 3
    changed = lock_spec(spec, settings).changes
    assert changed == (f"base is {shelf.reference('2')}, the lock has {shelf.reference('1')}",)
    spec = write("debian-12")
    assert "base is debian-12, the lock has root-2" in check_lock(spec, settings).changes


def test_kept_layers_are_enough_elsewhere(
    shelf: Shelf, registry: Registry, settings: Settings, write: Callable[..., Path], tmp_path: Path
) -> None:
    push(shelf)
    locked = lock_spec(write(shelf.reference("1")), settings)
    pins, origins = all_pins(locked.lock), origins_of(locked.resolved)
    cache = fetch_pins(pins, origins, settings, sources=(), offline=False)
    export(pins, cache, tmp_path / "kept")
    assert len(list((tmp_path / "kept/roots").iterdir())) == 2
    elsewhere = replace(settings, store=Store(tmp_path / "another-store"))
    with pytest.raises(RequestError, match=r"offline: 2 locked files .* missing on this machine"):
        fetch_pins(pins, origins, elsewhere, sources=(), offline=True)
    registry.forget()
    fetch_pins(pins, origins, elsewhere, sources=(tmp_path / "kept",), offline=True)
    assert registry.requests == []
    third = replace(settings, store=Store(tmp_path / "a-third-store"))
    fetch_pins(pins, origins, third, sources=(), offline=False)
    assert registry.sent_bytes == len(BELOW) + len(ABOVE)


def test_a_plan_says_how_large_the_layers_are(
    shelf: Shelf, settings: Settings, write: Callable[..., Path], tmp_path: Path
) -> None:
    push(shelf)
    spec = write(shelf.reference("1"))
    lock_spec(spec, settings)
    elsewhere = replace(settings, store=Store(tmp_path / "another-store"))
    plans, _ = show_plans(Members.of([spec], many=False), elsewhere, offline=True)
    plan = plans.only
    assert (plan.files, plan.size_bytes) == (2, len(BELOW) + len(ABOVE))


def test_each_architecture_has_its_own_image(
    shelf: Shelf, settings: Settings, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = push(shelf, ""), shelf.image([BELOW], architecture="arm64")
    shelf.index([(other, "arm64"), (mine, "amd64")], "1")
    spec = write(shelf.reference("1"))
    monkeypatch.setattr(host, "architecture", lambda: "arm64")
    lock_spec(spec, settings)
    monkeypatch.setattr(host, "architecture", lambda: "amd64")
    locked = lock_spec(spec, settings)
    assert locked.stale_targets == ()
    digests = {
        lock.architecture: lock.base_image.digest
        for lock in load_file(locked.path.read_bytes(), locked.path).locks
        if lock.base_image is not None
    }
    assert digests == {"amd64": mine, "arm64": other}


def test_a_layer_that_breaks_off_is_continued_by_the_next_run(
    shelf: Shelf, registry: Registry, settings: Settings, write: Callable[..., Path]
) -> None:
    layer = gzip.compress(tar(*ROOT, entry("noise", content=os.urandom(200_000))))
    push(shelf, "1", layer)
    spec = write(shelf.reference("1"))
    # The configuration comes first, and whole.
    registry.cut_after = [10_000, 10_000, *[0] * 4]
    with pytest.raises(MachineError, match="the transfer ended after"):
        lock_spec(spec, settings)
    registry.cut_after = []
    registry.forget()
    lock_spec(spec, settings)
    assert 0 < registry.sent_bytes < len(layer)
    assert not list((settings.store.root / "files").glob(".unverified-*"))


REFUSED: dict[str, tuple[Callable[[Shelf], object], str, str]] = {
    "no such tag": (lambda shelf: None, "has no `team/root:1`: status 404", "the name and the tag are right"),
    "another processor": (
        lambda shelf: shelf.image([BELOW], "1", "arm64"),
        "is for linux/arm64",
        "this machine is linux/amd64",
    ),
    "an index of others": (
        lambda shelf: shelf.index([(shelf.image([BELOW]), "arm64"), (shelf.image([ABOVE]), "s390x")], "1"),
        "is not made for linux/amd64",
        "it is made for linux/arm64, linux/s390x",
    ),
    "an index without platforms": (
        lambda shelf: shelf.manifest({"manifests": [None, {"platform": 3}, {}]}, "1"),
        "is not made for linux/amd64",
        "no platform that it names",
    ),
    "an index within an index": (
        lambda shelf: shelf.index([(shelf.index([]), "amd64")], "1"),
        "is an index within an index",
        "name an image",
    ),
    "no Python": (
        lambda shelf: push(shelf, "1", gzipped(*(one for one in ROOT if "python" not in one[0].name))),
        "has no /usr/bin/python3",
        "`envbuild extend`",
    ),
    "Python elsewhere": (
        lambda shelf: push(
            shelf,
            "1",
            gzipped(
                *(one for one in ROOT if "python" not in one[0].name),
                entry("usr/local/bin/python3", "link", "x"),
            ),
        ),
        "it has `/usr/local/bin/python3`",
        "`envbuild extend`",
    ),
    "an old Python": (
        lambda shelf: push(
            shelf,
            "1",
            gzipped(*ROOT),
            gzipped(entry("usr/bin/python3", "link", "python3.6"), entry("usr/bin/python3.6")),
        ),
        "is 3.6, and a base has 3.7 or newer",
        "`envbuild extend`",
    ),
    "a Python that a layer hides": (
        lambda shelf: push(shelf, "1", gzipped(*ROOT), gzipped(entry("usr/bin/.wh..wh..opq"))),
        "has no /usr/bin/python3",
        "`envbuild extend`",
    ),
    "musl": (
        lambda shelf: push(
            shelf,
            "1",
            gzipped(*(one for one in ROOT if "libc" not in one[0].name), entry("lib/ld-musl-x86_64.so.1")),
        ),
        "its C library is musl",
        "glibc",
    ),
    "no os-release": (
        lambda shelf: push(shelf, "1", gzipped(entry("a"))),
        "has no os-release",
        "name an image",
    ),
    "a layer of an unknown kind": (
        lambda shelf: shelf.image([{**shelf.blob(BELOW), "mediaType": "text/html"}], "1"),
        "a layer of an unknown kind",
        "tar archives",
    ),
    "a foreign layer": (
        lambda shelf: shelf.image([{**shelf.blob(BELOW), "urls": ["https://example.org/x"]}], "1"),
        "has its data elsewhere",
        "skopeo copy",
    ),
    "a foreign layer by its type": (
        lambda shelf: shelf.image(
            [{**shelf.blob(BELOW), "mediaType": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"}],
            "1",
        ),
        "has its data elsewhere",
        "skopeo copy",
    ),
    "an encrypted layer": (
        lambda shelf: shelf.image([{**shelf.blob(BELOW), "mediaType": f"{LAYER}+gzip+encrypted"}], "1"),
        "is encrypted",
        "not encrypted",
    ),
    "schema 1": (
        lambda shelf: shelf.manifest({"schemaVersion": 1, "fsLayers": [], "history": []}, "1"),
        "manifest of schema 1",
        "push it again",
    ),
    "what is not an image": (
        lambda shelf: shelf.image(
            [BELOW], "1", config=shelf.blob(b"{}", "application/vnd.oci.empty.v1+json")
        ),
        "is not an image",
        "`envbuild pull`",
    ),
    "a configuration without end": (
        lambda shelf: shelf.image([BELOW], "1", config={**shelf.blob(b"{}", CONFIG), "size": 1 << 40}),
        "has a configuration of more than 4 MiB",
        "",
    ),
    "a configuration that is not JSON": (
        lambda shelf: shelf.image([BELOW], "1", config=shelf.blob(b"[", CONFIG)),
        "that is not JSON",
        "",
    ),
    "too many layers": (
        lambda shelf: shelf.image([shelf.blob(BELOW)] * 513, "1"),
        "more than 512",
        "",
    ),
    "no layers": (lambda shelf: shelf.image([], "1"), "names no layers", ""),
    "a huge layer": (
        lambda shelf: shelf.image([{**shelf.blob(BELOW), "size": 1 << 50}], "1"),
        "a layer of an unknown kind",
        "",
    ),
    "a digest that is not one": (
        lambda shelf: shelf.image([{**shelf.blob(BELOW), "digest": "sha256:../../x"}], "1"),
        "names no sha256",
        "",
    ),
    "a path upwards": (
        lambda shelf: push(shelf, "1", gzipped(*ROOT, entry("a/../../x"))),
        "leads out of the root",
        "push or copy it again",
    ),
    "an absolute path": (
        lambda shelf: push(shelf, "1", gzipped(*ROOT, entry("/x"))),
        "leads out of the root",
        "push or copy it again",
    ),
    "a hard link upwards": (
        lambda shelf: push(shelf, "1", gzipped(*ROOT, entry("x", "hard", "../../etc/passwd"))),
        "leads out of the root",
        "push or copy it again",
    ),
    "a layer that ends too early": (
        lambda shelf: push(shelf, "1", BELOW[:-100]),
        "is damaged",
        "push or copy it again",
    ),
    "a layer that is not a tar archive": (
        lambda shelf: push(shelf, "1", b"hello" * 1000),
        "no tar archive",
        "push or copy it again",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_image_that_cannot_be_a_base_is_refused_in_words(
    case: str, shelf: Shelf, settings: Settings, write: Callable[..., Path]
) -> None:
    prepare, problem, hint = REFUSED[case]
    prepare(shelf)
    spec = write(shelf.reference("1"))
    with pytest.raises(EnvbuildError) as caught:
        lock_spec(spec, settings)
    error = next(iter(caught.value.each()))
    assert problem in error.problem
    assert hint in error.hint
    assert error.at is not None
    assert (error.at.path, error.at.line) == (spec, 3)
    assert not spec.with_suffix(".lock.yaml").exists()


def test_a_login_that_is_missing_is_said(
    shelf: Shelf, registry: Registry, settings: Settings, write: Callable[..., Path]
) -> None:
    push(shelf)
    registry.authentication = "basic"
    with pytest.raises(MachineError, match="asks for a login") as caught:
        lock_spec(write(shelf.reference("1")), settings)
    assert f"podman login {registry.host}" in caught.value.hint


def test_layers_are_as_long_as_the_manifest_says(
    shelf: Shelf, settings: Settings, write: Callable[..., Path]
) -> None:
    layer = shelf.blob(BELOW)
    shelf.image([{**layer, "size": layer["size"] - 1}], "short")
    shelf.image([{**layer, "size": layer["size"] + 1}], "long")
    with pytest.raises(MachineError, match="longer than"):
        lock_spec(write(shelf.reference("short")), settings)
    with pytest.raises(MachineError, match="the transfer ended after"):
        lock_spec(write(shelf.reference("long")), settings)


def test_other_bytes_of_a_layer_are_refused(
    shelf: Shelf, registry: Registry, settings: Settings, write: Callable[..., Path]
) -> None:
    push(shelf)
    digest = shelf.blob(BELOW)["digest"]
    registry.forged[digest] = BELOW[:-1] + b"x"
    with pytest.raises(MachineError, match=f"for {digest[:19]}"):
        lock_spec(write(shelf.reference("1")), settings)
    assert not list((settings.store.root / "files").glob(f"sha256/*/{digest[7:]}/*"))


@pytest.mark.redteam
def test_a_layer_without_end_is_refused(
    shelf: Shelf, settings: Settings, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuild.resolve.image_facts.MAX_ROOT_BYTES", 8 << 20)
    push(shelf, "1", gzipped(*ROOT, entry("zeros", content=bytes(16 << 20))))
    with pytest.raises(RequestError, match="larger than 8 MiB when it is unpacked"):
        lock_spec(write(shelf.reference("1")), settings)


def test_a_large_layer_leaves_less_for_those_above(
    shelf: Shelf, settings: Settings, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuild.resolve.image_facts.MAX_ROOT_BYTES", 8 << 20)
    zeros = [gzipped(entry(f"zeros{number}", content=bytes(5 << 20))) for number in range(2)]
    push(shelf, "1", gzipped(*ROOT), *zeros)
    with pytest.raises(RequestError, match="MiB when it is unpacked"):
        lock_spec(write(shelf.reference("1")), settings)


def test_facts_are_those_of_the_topmost_layer(
    shelf: Shelf, settings: Settings, write: Callable[..., Path]
) -> None:
    newer = OS_RELEASE.replace('"12"', '"13"').replace("bookworm", "trixie")
    push(
        shelf,
        "1",
        tar(*ROOT),
        gzipped(
            entry("usr/bin/.wh.python3.11"),
            entry("usr/bin/python3.13"),
            entry("usr/bin/python3", "link", "/etc/alternatives/python3"),
            entry("etc/alternatives/python3", "link", "/usr/bin/python3.13"),
            entry("usr/lib/os-release", content=newer),
            entry("var/lib/.wh.dpkg"),
        ),
    )
    lock = lock_spec(write(shelf.reference("1")), settings).lock
    assert lock.base_image is not None
    assert (lock.base.python, lock.base_image.version, lock.base_image.suite) == ("3.13", "13", "trixie")
    assert lock.base_image.packages == ()


def test_the_host_of_docker_s_hub_is_another_than_its_images_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = Reference.parse("docker.io/rocm/pytorch:latest")
    assert (str(reference), reference.server) == ("docker.io/rocm/pytorch:latest", "registry-1.docker.io")
    assert str(Reference.parse("docker.io/ubuntu:24.04")) == "docker.io/library/ubuntu:24.04"
    # As `docker login` writes it.
    auth = base64.b64encode(b"ada:secret").decode()
    logins = tmp_path / "auth.json"
    logins.write_text(json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": auth}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(logins))
    login = find_login("docker.io", "rocm/pytorch")
    assert login is not None
    assert login.user == "ada"
    assert find_login("registry.example.org", "rocm/pytorch") is None


def test_a_layer_without_files_is_one(shelf: Shelf, settings: Settings, write: Callable[..., Path]) -> None:
    empty = gzip.compress(bytes(1024))
    push(shelf, "1", BELOW, empty, ABOVE, empty)
    assert len(lock_spec(write(shelf.reference("1")), settings).lock.base_root) == 4


def test_packages_that_the_image_lacks_are_named(
    shelf: Shelf, settings: Settings, write: Callable[..., Path]
) -> None:
    push(shelf)
    spec = write(f"{shelf.reference('1')}\npackages: {{system: [git, vim]}}")
    with pytest.raises(RequestError, match="`vim` cannot be added") as caught:
        lock_spec(spec, settings)
    assert "name an image in which it is installed" in caught.value.hint
    spec.write_text(spec.read_text().replace(", vim", ""))
    assert lock_spec(spec, settings).lock.system_requests == ()

"""`push` and `pull`: an image comes back bit for bit, and nothing travels twice."""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from envbuild.cli.main import main
from envbuild.digests import canonical_json, sha256_of
from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.events import Event, Note, ignore
from envbuild.image import parts as parts_module
from envbuild.image.file import ImageFile
from envbuild.image.parts import ARTIFACT, Parts, packed, parts_of
from envbuild.store.store import Store
from envbuild.system import squashfs
from envbuild.system.references import INDEX, Document
from envbuild.workflows import arguments
from envbuild.workflows.pull import pull_image
from envbuild.workflows.push import push_image
from envbuild.workflows.settings import Settings
from tests.support.registry import PASSWORD, USER, Registry
from tests.support.small_images import BASE, small_image
from tests.unit.workflows.registries.conftest import NOISE, PACKAGE


def test_an_image_comes_back_bit_for_bit_and_is_sent_once(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path
) -> None:
    name = f"{registry.host}/lab/one:1"
    pushed = push_image(image, name, ignore)
    assert pushed.sent == pushed.parts
    again = push_image(image, name, ignore)
    assert (again.sent, again.sent_bytes, again.digest) == (0, 0, pushed.digest)
    pulled = pull_image(name, tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()
    assert pulled.fetched_bytes == pushed.sent_bytes
    by_digest = pull_image(f"{name}@{pushed.digest}", tmp_path / "by-digest.sif", settings)
    assert by_digest.digest == pushed.digest
    # What was fetched lies in the image now.
    assert list((settings.store.root / "parts").iterdir()) == []


def test_a_further_layer_costs_its_own_size(registry: Registry, image: Path, tmp_path: Path) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    more = small_image(tmp_path, BASE, PACKAGE, {"/opt/env/small": NOISE[:5000]}, name="more.sif")
    pushed = push_image(more, f"{registry.host}/lab/one:2", ignore)
    assert pushed.sent_bytes < 60_000 < len(NOISE)


def test_tables_travel_in_pieces_of_which_a_further_layer_changes_few(
    registry: Registry, settings: Settings, tmp_path: Path
) -> None:
    # The further layer is neither the last nor the lowest one, as a wheel in the order of names.
    many = {
        f"/opt/env/m{number % 9}/{name}": NOISE[9 * number : 9 * number + 9]
        for number, name in enumerate(random_names(4000))
    }
    one = small_image(tmp_path, BASE, many, name="one.sif")
    more = small_image(tmp_path, BASE, {"/opt/env/a/small": NOISE[:5000]}, many, name="more.sif")
    push_image(one, f"{registry.host}/lab/one:1", ignore)
    pushed = push_image(more, f"{registry.host}/lab/one:2", ignore)
    with ImageFile.open(more) as image:
        system = image.manifest.file_system
        parts = parts_of(image).parts
    assert system is not None
    tables_bytes = system.size_bytes - system.tables_offset
    around_bytes = more.stat().st_size - system.size_bytes
    assert pushed.sent_bytes - around_bytes < tables_bytes // 2
    # `oras pull` writes each part to a file of its name.
    assert len({part.name for part in parts}) == len(parts)
    pulled = pull_image(f"{registry.host}/lab/one:2", tmp_path / "got.sif", settings, have=one)
    assert (tmp_path / "got.sif").read_bytes() == more.read_bytes()
    assert pulled.fetched_bytes == pushed.sent_bytes


@pytest.mark.parametrize("form", ["sif", "oci"])
def test_what_push_prints_can_be_pasted(
    registry: Registry, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    name, store = f"{registry.host}/lab/one:1", str(tmp_path / "store")
    words = ["push", str(image), name, "--plain-http", "--format", form, "--store", store]
    run(*words, *(["--sif"] if form == "sif" else []))
    printed = capsys.readouterr().err
    (digest,) = re.findall(r"MB sent, (sha256:[0-9a-f]{64})\)", printed)
    if form == "oci":
        assert f"next: podman pull --tls-verify=false {name}\n" in printed
        return
    assert f"next: envbuild pull --plain-http {name}\n" in printed
    assert f"or: apptainer pull --no-https oras://{name}\n" in printed
    got = tmp_path / "got.sif"
    run("pull", "--plain-http", f"{name}@{digest}", "-o", str(got), "--store", store)
    assert digest in capsys.readouterr().err
    assert got.read_bytes() == image.read_bytes()


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0


def random_names(count: int) -> list[str]:
    rng = random.Random(7)  # noqa: S311  # the same each time
    return [rng.randbytes(12).hex() for _ in range(count)]


def test_parts_of_an_older_image_are_not_fetched(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path
) -> None:
    more = small_image(tmp_path, BASE, PACKAGE, {"/opt/env/small": NOISE[:5000]}, name="more.sif")
    push_image(more, f"{registry.host}/lab/one:2", ignore)
    registry.forget()
    pulled = pull_image(f"{registry.host}/lab/one:2", tmp_path / "got.sif", settings, have=image)
    assert (tmp_path / "got.sif").read_bytes() == more.read_bytes()
    assert registry.sent_bytes == pulled.fetched_bytes < 60_000


@pytest.mark.parametrize("piece_bytes", [256 << 20, 100_000])
def test_layers_of_the_store_are_not_fetched(
    registry: Registry,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    piece_bytes: int,
) -> None:
    # A long layer travels in pieces.
    monkeypatch.setattr(parts_module, "_PIECE_BYTES", piece_bytes)
    image = small_image(tmp_path, BASE, PACKAGE, name="one.sif")
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    blob = tmp_path / "one.sif-1.sqfs"
    with settings.store.stage() as stage:
        (stage / "layer").write_bytes(blob.read_bytes())
        settings.store.publish(key="sha256:" + "a" * 64, name="big", squashfs=stage / "layer", tree={})
    registry.forget()
    pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()
    assert registry.sent_bytes < 60_000


def test_an_image_of_another_tool_travels_too(
    registry: Registry, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_module, "_FOREIGN_PIECE_BYTES", 65536)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "big").write_bytes(NOISE)
    bare = tmp_path / "bare.sqfs"
    squashfs.make(tree, bare)
    push_image(bare, f"{registry.host}/lab/bare:1", ignore)
    pull_image(f"{registry.host}/lab/bare:1", tmp_path / "got.sqfs", settings)
    assert (tmp_path / "got.sqfs").read_bytes() == bare.read_bytes()


@pytest.mark.parametrize("status", [201, 202, 403, 404])
def test_parts_of_another_name_are_taken_from_there(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, status: int
) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    more = small_image(tmp_path, BASE, PACKAGE, {"/opt/env/small": NOISE[:5000]}, name="more.sif")
    registry.forget()
    registry.mount_status = status
    pushed = push_image(more, f"{registry.host}/ada/mine:1", ignore, source=f"{registry.host}/lab/one")
    # A registry may do without, and then gets them all.
    assert (pushed.sent_bytes < 60_000) == (status == 201)
    assert pushed.sent_bytes <= registry.received_bytes < pushed.sent_bytes + 100
    pull_image(f"{registry.host}/ada/mine:1", tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == more.read_bytes()


def test_a_token_for_both_names_is_asked_for(
    registry: Registry, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    logins = tmp_path / "auth.json"
    logins.write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(logins))
    registry.authentication = "token"
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    pushed = push_image(image, f"{registry.host}/ada/mine:1", ignore, source=f"{registry.host}/lab/one:1")
    assert pushed.sent_bytes == 0
    asked = [parse_qs(urlsplit(path).query)["scope"] for _, path, _ in registry.requests if "/token" in path]
    assert ["repository:ada/mine:pull,push", "repository:lab/one:pull"] in asked


def test_parts_come_from_the_same_registry(registry: Registry, image: Path) -> None:
    with pytest.raises(RequestError, match="is in another registry than"):
        push_image(image, f"{registry.host}/ada/mine:1", ignore, source="registry.example.org/lab/one")
    assert registry.requests == []


def test_the_whole_sif_is_under_the_same_tag(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path
) -> None:
    name, notes = f"{registry.host}/lab/one:1", list[Event]()
    parts = push_image(image, name, ignore)
    both = push_image(image, name, notes.append, with_sif=True)
    size_bytes = image.stat().st_size
    assert (both.sent, both.sent_bytes, both.digest) == (0, size_bytes, parts.digest)
    assert any(isinstance(note, Note) and f"{size_bytes / 1e6:.1f} MB" in note.text for note in notes)
    index = json.loads(registry.manifests["lab/one:1"])
    chosen = next(entry for entry in index["manifests"] if "platform" in entry)
    assert chosen["platform"] == {"architecture": "amd64", "os": "linux"}
    (layer,) = json.loads(registry.manifests[f"lab/one@{chosen['digest']}"])["layers"]
    assert registry.blobs[layer["digest"]] == image.read_bytes()
    # `pull` takes the parts, by the tag and by each digest.
    registry.forget()
    for version in ("1", f"1@{both.digest}", f"1@{sha256_of(registry.manifests['lab/one:1'])}"):
        target = tmp_path / f"got-{len(version)}.sif"
        pulled = pull_image(f"{registry.host}/lab/one:{version}", target, settings, have=image)
        assert target.read_bytes() == image.read_bytes()
        assert (pulled.digest, pulled.fetched_bytes) == (parts.digest, 0)
        target.unlink()
    again = list[Event]()
    assert push_image(image, name, again.append, with_sif=True).sent_bytes == 0
    assert not any(isinstance(note, Note) for note in again)


def test_a_bare_squashfs_is_not_sent_as_a_sif(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    squashfs.make(tmp_path / "tree", tmp_path / "bare.sqfs")
    with pytest.raises(RequestError, match="is not a SIF"):
        push_image(tmp_path / "bare.sqfs", f"{registry.host}/lab/bare:1", ignore, with_sif=True)
    assert registry.blobs == {}


@pytest.mark.parametrize(
    "manifests",
    [None, {}, ["a"], [{"artifactType": 1}], [{"artifactType": ARTIFACT, "digest": "sha256:../x"}]],
)
def test_an_index_without_parts_is_no_image_of_push(
    registry: Registry, settings: Settings, tmp_path: Path, manifests: object
) -> None:
    registry.manifests["lab/one:1"] = canonical_json({"mediaType": INDEX, "manifests": manifests}).encode()
    with pytest.raises(RequestError, match="is not an image that `envbuild push` sent"):
        pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)


def test_a_changed_image_is_not_pushed(registry: Registry, image: Path) -> None:
    content = bytearray(image.read_bytes())
    at = content.index(b'"format"')
    content[at + 1] ^= 1
    image.write_bytes(content)
    with pytest.raises(RequestError):
        push_image(image, f"{registry.host}/lab/one:1", ignore)
    assert registry.manifests == {}


def test_nothing_is_overwritten(registry: Registry, image: Path, settings: Settings) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    before = image.read_bytes()
    with pytest.raises(RequestError, match="exists already"):
        pull_image(f"{registry.host}/lab/one:1", image, settings)
    assert image.read_bytes() == before


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_that_appears_meanwhile_is_not_overwritten(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, kind: str
) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    path = tmp_path / "got.sif"

    def appear() -> None:
        if not path.is_symlink() and not path.exists():
            path.write_bytes(b"mine") if kind == "file" else path.symlink_to("nowhere")

    registry.on_blob = appear
    for _ in range(2):
        with pytest.raises(RequestError, match="exists already"):
            pull_image(f"{registry.host}/lab/one:1", path, settings)
    assert path.is_symlink() if kind == "link" else path.read_bytes() == b"mine"


@pytest.mark.parametrize("seed", range(8))
def test_cut_anywhere_the_next_run_ends_it(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, seed: int
) -> None:
    offsets = random.Random(seed)  # noqa: S311  # the same each time
    registry.cut_after = [offsets.randrange(200_000) for _ in range(3)]
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    registry.cut_after = [offsets.randrange(200_000) for _ in range(12)]
    for _ in range(6):
        try:
            pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)
            break
        except EnvbuildError:
            assert not (tmp_path / "got.sif").exists()
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".partial")] == []


def test_a_forged_part_leaves_no_image(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path
) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    digest = max(registry.blobs, key=lambda each: len(registry.blobs[each]))
    registry.forged[digest] = bytes(len(registry.blobs[digest]))
    with pytest.raises(EnvbuildError, match="for sha256"):
        pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)
    assert not (tmp_path / "got.sif").exists()


def changed(registry: Registry, change: Any) -> None:
    """Change the manifest of `lab/one:1` as a stranger would."""
    data = json.loads(registry.manifests["lab/one:1"])
    change(data)
    registry.manifests["lab/one:1"] = canonical_json(data).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(layers=[]),
        lambda data: data.update(layers=data["layers"] * 2),
        lambda data: data.update(layers=[{}] * 100_000),
        lambda data: data.update(layers={"a": 1}),
        lambda data: data["layers"].reverse(),
        lambda data: data["layers"].pop(1),
        lambda data: data["layers"][0].update(size=-1),
        lambda data: data["layers"][0].update(size=True),
        lambda data: data["layers"][0].update(size=1 << 60),
        lambda data: data["layers"][0].update(digest="sha256:../../../etc/passwd"),
        lambda data: data["layers"][0]["annotations"].update({"io.envbuild.offset": "-1"}),
        lambda data: data["layers"][1]["annotations"].update({"io.envbuild.layer.offset": "9" * 40}),
        # The last part is compressed.
        lambda data: data["layers"][-1]["annotations"].update({"io.envbuild.part.size": "1"}),
        lambda data: data["layers"][-1]["annotations"].update({"io.envbuild.part.size": str(1 << 30)}),
        lambda data: data["layers"][-1]["annotations"].pop("io.envbuild.part.digest"),
        lambda data: data["layers"][-1].update(mediaType=data["layers"][1]["mediaType"]),
        lambda data: data["layers"][-1].update(size=1 << 30),
        lambda data: data["annotations"].update({"io.envbuild.file.size": "1"}),
        lambda data: data["annotations"].update({"io.envbuild.file.digest": "sha256:" + "0" * 64}),
        lambda data: data.update(annotations=None),
        lambda data: data.update(artifactType="application/vnd.oci.image"),
    ],
)
def test_a_hostile_manifest_leaves_no_image(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, change: Any
) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    changed(registry, change)
    with pytest.raises(EnvbuildError) as caught:
        pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)
    assert caught.value.hint
    assert not (tmp_path / "got.sif").exists()


@pytest.mark.parametrize("content", [b"not zstd", packed(bytes(1 << 20)), packed(b"short"), packed(b"")])
def test_a_compressed_part_of_a_stranger_leaves_no_image(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, content: bytes
) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    digest = sha256_of(content)
    registry.blobs[digest] = content
    registry.repositories.add(("lab/one", digest))
    changed(registry, lambda data: data["layers"][-1].update(digest=digest, size=len(content)))
    with pytest.raises(EnvbuildError, match="is damaged: a compressed part"):
        pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)
    assert not (tmp_path / "got.sif").exists()


def test_parts_that_an_earlier_version_pushed_as_they_are_come_back(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(parts_module, "MAX_PACKED_BYTES", 0)
        pushed = push_image(image, f"{registry.host}/lab/one:1", ignore)
    assert pushed.sent_bytes > pushed.size_bytes - (1 << 20)
    again = push_image(image, f"{registry.host}/lab/one:2", ignore)
    assert 0 < again.sent_bytes < 10_000
    pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()


@pytest.mark.parametrize("flaw", ["another layer", "damaged", "cut short", "gone"])
def test_a_layer_of_the_store_that_has_other_bytes_is_fetched(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, flaw: str
) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    with settings.store.stage() as stage:
        (stage / "layer").write_bytes((tmp_path / "one.sif-1.sqfs").read_bytes())
        record, _ = settings.store.publish(
            key="sha256:" + "a" * 64, name="big", squashfs=stage / "layer", tree={}
        )
    blob = settings.store.blob_path(record.blob)
    content = bytearray(blob.read_bytes())
    blob.chmod(0o644)
    if flaw == "another layer":
        # As a stranger's manifest may say.
        layer = {"io.envbuild.layer.offset": "0", "io.envbuild.layer.digest": record.data}
        changed(registry, lambda data: data["layers"][-1]["annotations"].update(layer))
    elif flaw == "damaged":
        content[5000] ^= 1
        blob.write_bytes(content)
    elif flaw == "cut short":
        blob.write_bytes(content[:-100_000])
    else:
        blob.unlink()
    pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()


def test_another_pull_that_ends_meanwhile_takes_nothing_away(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path
) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    parts = settings.store.directory("parts")

    def end_the_other() -> None:
        for path in parts.iterdir():
            if not path.name.startswith("."):
                path.unlink(missing_ok=True)

    registry.on_blob = end_the_other
    pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()


@pytest.mark.parametrize("has_locks", [True, False])
def test_pulls_of_one_image_at_once_all_end(
    registry: Registry, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_locks: bool
) -> None:
    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if not has_locks:
        monkeypatch.setattr(fcntl, "flock", refuse)
    push_image(image, f"{registry.host}/lab/one:1", ignore)

    def pull(number: int) -> None:
        store = Store(tmp_path / "shared")
        pull_image(f"{registry.host}/lab/one:1", tmp_path / f"got-{number}.sif", Settings(store=store))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(pull, range(4)))
    assert {(tmp_path / f"got-{number}.sif").read_bytes() for number in range(4)} == {image.read_bytes()}


def test_a_gap_of_a_stranger_takes_no_memory(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path
) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)

    def move(data: Any) -> None:
        last, gap = data["layers"][-1], 1 << 36
        annotations = last["annotations"]
        annotations["io.envbuild.offset"] = str(int(annotations["io.envbuild.offset"]) + gap)
        size = int(data["annotations"]["io.envbuild.file.size"]) + gap
        data["annotations"]["io.envbuild.file.size"] = str(size)

    changed(registry, move)
    with pytest.raises(EnvbuildError, match="damaged"):
        pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)


def test_a_store_without_room_for_what_is_fetched_is_named_before(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    settings.store.directory("parts")
    here = tmp_path / "here"
    here.mkdir()
    free = {str(here.absolute()): 1 << 40}
    monkeypatch.setattr(arguments, "free_bytes", lambda path: free.get(str(path), 10_000))
    registry.forget()
    with pytest.raises(MachineError, match=r"there is no space for 0\.[1-9] MB in .*: 0\.0 MB are free"):
        pull_image(f"{registry.host}/lab/one:1", here / "got.sif", settings)
    assert registry.sent_bytes == 0


def test_the_parts_and_zeros_between_them_are_the_file(image: Path) -> None:
    with ImageFile.open(image) as opened:
        found = parts_of(opened)
    content = image.read_bytes()
    whole = bytearray(len(content))
    for part in found.parts:
        piece = content[part.offset : part.offset + part.size_bytes]
        assert sha256_of(piece) == part.digest
        whole[part.offset : part.offset + part.size_bytes] = piece
    assert bytes(whole) == content
    assert Parts.parse(Document(data=found.document("one.sif"), digest="", size_bytes=0), "one") == found

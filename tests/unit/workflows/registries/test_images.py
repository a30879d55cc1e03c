"""Commands take references in place of files: images of registries are pulled into the store once."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envbuild.cli.main import main
from envbuild.errors import EnvbuildError
from envbuild.events import ignore
from envbuild.store.inventory import items
from envbuild.store.store import Store
from envbuild.store.verify import verify
from envbuild.system import squashfs
from envbuild.workflows.cache import prune_cache, verify_cache
from envbuild.workflows.images import image_file
from envbuild.workflows.push import push_image
from envbuild.workflows.settings import Settings
from tests.support.registry import Registry
from tests.support.small_images import BASE, small_image


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be in an empty directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


def test_a_tag_is_asked_for_each_time_and_the_image_fetched_once(
    registry: Registry, image: Path, settings: Settings
) -> None:
    name = f"{registry.host}/lab/one:1"
    push_image(image, name, ignore)
    first = image_file(Path(name), settings)
    assert first.read_bytes() == image.read_bytes()
    assert (first.name, first.stat().st_mode & 0o222) == ("one.sif", 0)
    registry.forget()
    assert image_file(Path(f"oras://{name}"), settings) == first
    assert [path for _, path, _ in registry.requests if "/blobs/" in path] == []
    more = small_image(image.parent, BASE, name="two.sif")
    push_image(more, name, ignore)
    moved = image_file(Path(name), settings)
    assert moved.read_bytes() == more.read_bytes()
    assert first.exists()


def test_a_digest_needs_no_registry_again(registry: Registry, image: Path, settings: Settings) -> None:
    name = f"{registry.host}/lab/one"
    pushed = push_image(image, f"{name}:1", ignore)
    first = image_file(Path(f"{name}:1"), settings)
    registry.forget()
    assert image_file(Path(f"{name}@{pushed.digest}"), settings) == first
    assert registry.requests == []


def test_the_same_image_of_another_name_is_kept_once(
    registry: Registry, image: Path, settings: Settings
) -> None:
    copy = image.with_name("copy.sif")
    copy.write_bytes(image.read_bytes())
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    other = push_image(copy, f"{registry.host}/ada/other:2", ignore)
    first = image_file(Path(f"{registry.host}/lab/one:1"), settings)
    registry.forget()
    assert image_file(Path(f"{registry.host}/ada/other:2"), settings) == first
    assert registry.sent_bytes == 0
    registry.forget()
    assert image_file(Path(f"{registry.host}/ada/other@{other.digest}"), settings) == first
    assert registry.requests == []


def test_a_file_of_that_name_counts_first(registry: Registry, image: Path, settings: Settings) -> None:
    path = Path(f"{registry.host}/lab/one:1")
    path.parent.mkdir(parents=True)
    path.write_bytes(image.read_bytes())
    assert image_file(path, settings) == path
    assert registry.requests == []


@pytest.mark.parametrize(
    "name", ["missing.sif", "a.d/missing", "lab/one:1", "./127.0.0.1:5000/one:1", "/x.y/z:1"]
)
def test_other_names_are_paths(name: str, settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert image_file(Path(name) if name[0] != "." else Path.cwd() / name, settings).name == Path(name).name
    assert not settings.store.path.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["sbom", "IMAGE"],
        ["inspect", "IMAGE"],
        ["check", "IMAGE"],
        ["extend", "IMAGE", "--show"],
        ["export", "IMAGE", "--format", "squashfs", "-o", "out.sqfs"],
        ["push", "IMAGE", "REGISTRY/lab/again:1"],
        ["pull", "REGISTRY/lab/one:1", "-o", "got.sif", "--have", "IMAGE"],
    ],
    ids=lambda words: words[0],
)
def test_commands_say_the_same_of_a_reference_and_its_file(
    registry: Registry, image: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{registry.host}/lab/one:1"
    push_image(image, name, ignore)

    def outcome(argument: str) -> tuple[int, str, dict[str, bytes]]:
        code = run(*(word.replace("IMAGE", argument).replace("REGISTRY", registry.host) for word in words))
        files = {path.name: path.read_bytes() for path in Path().iterdir()}
        for path in Path().iterdir():
            path.unlink()
        return code, capsys.readouterr().out.replace(argument, "IMAGE"), files

    of_reference = outcome(name)
    assert of_reference == outcome(str(image))


def test_an_image_of_another_tool_is_taken_too(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("text")
    squashfs.make(tree, tmp_path / "bare.sif")
    push_image(tmp_path / "bare.sif", f"{registry.host}/lab/bare:1", ignore)
    assert run("extend", f"{registry.host}/lab/bare:1", "--env", "A=b") == 0
    # Without -o the new image lies here, and not in the store.
    new = Path("bare+files.sif")
    assert run("extend", str(tmp_path / "bare.sif"), "--env", "A=b") == 0
    assert new.read_bytes() == (tmp_path / new).read_bytes()
    push_image(new, f"{registry.host}/lab/more:1", ignore)
    capsys.readouterr()
    assert run("inspect", f"{registry.host}/lab/more:1") == 0
    assert "A = b" in capsys.readouterr().out


def test_inspect_fetches_no_data_of_layers(
    registry: Registry, image: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{registry.host}/lab/one:1"
    push_image(image, name, ignore)
    registry.forget()
    assert run("inspect", name, "--json") == 0
    assert json.loads(capsys.readouterr().out)["name"]
    assert 0 < registry.sent_bytes < 60_000 < image.stat().st_size
    assert [item.kind for item in items(settings.store)] == []
    assert list((settings.store.root / "stage").iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["kernel", "install", "NAME"],
        ["module", "install", "NAME", "--root", "modules", "--link"],
        ["export", "NAME", "--format", "edf", "-o", "a.toml"],
    ],
    ids=lambda words: words[0],
)
def test_what_refers_to_the_file_later_takes_files_alone(
    registry: Registry, image: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{registry.host}/lab/one:1"
    push_image(image, name, ignore)
    assert run(*(word.replace("NAME", name) for word in words)) == 2
    assert f"hint: `envbuild pull {name} -o FILE.sif`, and name that file" in capsys.readouterr().err


def test_pulled_images_are_pruned_like_layers(
    registry: Registry, image: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{registry.host}/lab/one"
    pushed = push_image(image, f"{name}:1", ignore)
    path = image_file(Path(f"{name}:1"), settings)
    assert run("cache", "ls") == 0
    assert "one.sif  needed by nothing" in capsys.readouterr().out
    assert run("cache", "du", "--json") == 0
    assert json.loads(capsys.readouterr().out)["free_bytes"] >= image.stat().st_size
    for file in path.parent.iterdir():
        os.utime(file, (0, 0))
    # Its use counts, and not when it was pulled.
    image_file(Path(f"{name}@{pushed.digest}"), settings)
    assert path.stat().st_mtime == 0
    pruned, _ = prune_cache(settings)
    assert (pruned.removed, [item.kind for item in pruned.recently_used]) == ((), ["image"])
    pruned, _ = prune_cache(settings, unused_s=0)
    assert [item.kind for item in pruned.removed] == ["image"]
    assert pruned.freed_bytes == image.stat().st_size
    assert not path.exists()
    assert image_file(Path(f"{name}@{pushed.digest}"), settings) == path
    assert path.read_bytes() == image.read_bytes()


def test_a_damaged_image_is_found_removed_and_pulled_again(
    registry: Registry, image: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{registry.host}/lab/one:1"
    push_image(image, name, ignore)
    path = image_file(Path(name), settings)
    assert (verify(settings.store).images, verify(settings.store).damages) == (1, ())
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.chmod(0o755)
    path.write_bytes(content)
    assert run("cache", "verify") == 4
    assert "pulls it again" in capsys.readouterr().out
    assert verify_cache(settings, repair=True).sound
    assert image_file(Path(name), settings).read_bytes() == image.read_bytes()


def test_an_image_that_others_can_write_is_pulled_again(
    registry: Registry, image: Path, settings: Settings
) -> None:
    name = f"{registry.host}/lab/one:1"
    push_image(image, name, ignore)
    path = image_file(Path(name), settings)
    path.chmod(0o777)
    path.write_bytes(b"of another")
    assert image_file(Path(name), settings).read_bytes() == image.read_bytes()


def test_a_store_that_others_can_rename_holds_no_images_to_run(
    registry: Registry, image: Path, public: Path
) -> None:
    push_image(image, f"{registry.host}/lab/one:1", ignore)
    above = public / "above"
    above.mkdir()
    above.chmod(0o777)
    shared = Settings(store=Store(above / "store"))
    with pytest.raises(EnvbuildError, match="others can replace the store") as caught:
        image_file(Path(f"{registry.host}/lab/one:1"), shared)
    assert "envbuild pull" in (caught.value.hint or "")


def test_several_commands_pull_it_once(registry: Registry, image: Path, tmp_path: Path) -> None:
    pushed = push_image(image, f"{registry.host}/lab/one:1", ignore)
    registry.forget()

    def find(_: int) -> bytes:
        settings = Settings(store=Store(tmp_path / "shared"))
        return image_file(Path(f"{registry.host}/lab/one:1"), settings).read_bytes()

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(find, range(4))) == {image.read_bytes()}
    assert registry.sent_bytes == pushed.sent_bytes

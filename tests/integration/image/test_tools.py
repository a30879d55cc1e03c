"""Whose bytes decide ours: identities of the real tools, remembered and forgotten when due."""

import hashlib
import json
import os
from importlib import metadata
from pathlib import Path

import pytest

from envbuild.errors import ManyErrors
from envbuild.system import process, tools
from envbuild.system.sealing import sealed
from tests.support import trees


def test_the_real_tools(tmp_path: Path) -> None:
    found = {tool.name: tool for tool in tools.identify(tmp_path / "cache")}
    assert list(found) == ["installer", "mksquashfs", "mmdebstrap", "zstandard"]
    assert all(tool.version.startswith(f"{name} ") for name, tool in found.items())
    script = hashlib.sha256(tools.locate("mmdebstrap").read_bytes()).hexdigest()
    assert found["mmdebstrap"].digest == f"sha256:{script}"
    # The compression libraries count too.
    program = hashlib.sha256(tools.locate("mksquashfs").read_bytes()).hexdigest()
    assert found["mksquashfs"].digest != f"sha256:{program}"
    remembered = json.loads((tmp_path / "cache/tools.json").read_text())["programs"]
    names = [Path(path).name for path in remembered[str(tools.locate("mksquashfs"))]["files"]]
    assert [name.partition(".so")[0] for name in names] == ["ld", "mksquashfs", "libz", "libzstd"]


def test_in_the_store_of_a_group_what_is_remembered_is_the_groups(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    before = os.umask(0o077)
    try:
        tools.identify(tmp_path / "cache", ["mksquashfs"])
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o070 for name in ("cache", "cache/tools.json")]
    assert modes == [0o070, 0o040]


def test_what_is_remembered_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tools.identify(tmp_path)

    def refuse(*_: object, **__: object) -> process.Finished:
        raise AssertionError("a process was started")

    monkeypatch.setattr(process, "run", refuse)
    assert tools.identify(tmp_path) == first


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin/mmdebstrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho mmdebstrap 1.0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def test_a_changed_tool_is_another(tmp_path: Path, fake: Path) -> None:
    cache = tmp_path / "cache"
    before = tools.identify(cache, ["mmdebstrap"])
    fake.write_text("#!/bin/sh\necho mmdebstrap 1.1\n")
    os.utime(fake, ns=(1, 1))
    after = tools.identify(cache, ["mmdebstrap"])
    assert (before[0].version, after[0].version) == ("mmdebstrap 1.0", "mmdebstrap 1.1")
    assert before[0].digest != after[0].digest


def test_a_tool_rewritten_in_place_with_its_old_time_is_another(tmp_path: Path, fake: Path) -> None:
    before, status = tools.identify(tmp_path, ["mmdebstrap"]), fake.stat()
    with fake.open("r+") as file:
        file.write("#!/bin/sh\necho mmdebstrap 1.1\n")
    os.utime(fake, ns=(status.st_atime_ns, status.st_mtime_ns))
    now = fake.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (status.st_size, status.st_mtime_ns, status.st_ino)
    assert tools.identify(tmp_path, ["mmdebstrap"]) != before


def test_another_list_of_the_loader_has_it_look_again(
    tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "ld.so.cache"
    listed.write_text("one")
    monkeypatch.setattr(tools, "_LOADERS_LIST", listed)
    tools.identify(tmp_path, ["mmdebstrap"])
    known = json.loads((tmp_path / "tools.json").read_text())["programs"][str(fake)]
    listed.write_text("two")
    tools.identify(tmp_path, ["mmdebstrap"])
    assert json.loads((tmp_path / "tools.json").read_text())["programs"][str(fake)] != known


def test_a_digest_that_somebody_changed_is_not_believed(tmp_path: Path, fake: Path) -> None:
    expected = tools.identify(tmp_path, ["mmdebstrap"])
    digest = expected[0].digest
    other = digest[:-1] + ("1" if digest.endswith("0") else "0")
    text = (tmp_path / "tools.json").read_text()
    (tmp_path / "tools.json").write_text(text.replace(digest, other))
    assert tools.identify(tmp_path, ["mmdebstrap"]) == expected


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        sealed('{"format": 2}'),
        sealed('{"format": 2, "programs": {"x": 5}}'),
        sealed('{"format": 1, "programs": {}}'),
        '{"format": 2, "programs": {}}',
        "[" * 9999,
    ],
)
def test_a_damaged_cache_costs_time_only(tmp_path: Path, fake: Path, content: str) -> None:
    (tmp_path / "tools.json").write_text(content)
    expected = tools.identify(tmp_path / "fresh", ["mmdebstrap"])
    assert tools.identify(tmp_path, ["mmdebstrap"]) == expected
    assert json.loads((tmp_path / "tools.json").read_text())["format"] == 2


def test_entries_that_lie_about_their_form_are_forgotten(tmp_path: Path, fake: Path) -> None:
    expected = tools.identify(tmp_path, ["mmdebstrap"])
    document = json.loads((tmp_path / "tools.json").read_text())
    changes: list[dict[str, object]] = [{"digest": "sha256:no"}, {"version": 5}, {"files": {}}]
    for change in changes:
        entry = {**document["programs"][str(fake)], **change}
        text = json.dumps({"format": 2, "programs": {str(fake): entry}})
        (tmp_path / "tools.json").write_text(sealed(text))
        assert tools.identify(tmp_path, ["mmdebstrap"]) == expected


def test_an_unwritable_cache(tmp_path: Path, fake: Path) -> None:
    (tmp_path / "file").write_text("")
    assert tools.identify(tmp_path / "file/cache", ["mmdebstrap"])[0].version == "mmdebstrap 1.0"


def test_all_missing_tools_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ManyErrors) as caught:
        tools.identify(tmp_path, ["mksquashfs", "mmdebstrap"])
    assert [error.problem for error in caught.value.each()] == [
        "`mksquashfs` is not on this machine",
        "`mmdebstrap` is not on this machine",
    ]
    assert caught.value.exit_code == 5


def install(monkeypatch: pytest.MonkeyPatch, tree: Path, files: dict[str, str]) -> None:
    """Put a distribution named installer before the one that is there."""
    record = "".join(f"{name},,\n" for name in files)
    about = {"METADATA": "Metadata-Version: 2.1\nName: installer\nVersion: 9.9\n", "RECORD": record}
    trees.write(tree, {f"installer-9.9.dist-info/{name}": (text, 0o644) for name, text in about.items()})
    trees.write(tree, {name: (text, 0o644) for name, text in files.items()})
    monkeypatch.syspath_prepend(str(tree))


@pytest.mark.parametrize("name", ["installer", "zstandard"])
def test_a_python_package_has_the_version_that_is_installed(tmp_path: Path, name: str) -> None:
    (found,) = tools.identify(tmp_path, [name])
    assert (found.name, found.version) == (name, f"{name} {metadata.version(name)}")
    assert not (tmp_path / "tools.json").exists(), "no program, nothing to remember"


def test_the_code_of_a_python_package_is_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"installer/a.py": "1\n", "installer/b.so": "2\n", "installer/note.txt": "x\n"}
    changes = {
        "the same": {},
        "a note": {"installer/note.txt": "y\n"},
        "a module": {"installer/a.py": "3\n"},
        "a library": {"installer/b.so": "3\n"},
        "another module": {"installer/c.py": "1\n"},
    }
    found = {}
    for what, change in changes.items():
        with monkeypatch.context() as patched:
            install(patched, tmp_path / what, {**files, **change})
            (found[what],) = tools.identify(tmp_path / "cache", ["installer"])
    assert {tool.version for tool in found.values()} == {"installer 9.9"}
    assert found["the same"].digest == found["a note"].digest
    others = ("the same", "a module", "a library", "another module")
    assert len({found[what].digest for what in others}) == len(others)

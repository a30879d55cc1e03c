"""`envbuild build` of layers of a few files: what is written, what stays, and what the options change.

The lock and its plan are given; layers are packed, spliced and checked as ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.plan.model import BaseStep
from envbuild.squashfs.format import Compressor
from envbuild.system import emulation, host
from tests.support.images import file_system, read_manifest, read_sif
from tests.support.json_documents import result_of
from tests.support.planned_builds import Bench
from tests.support.stores import flip

Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def build(run: Run) -> Run:
    def call(*words: str) -> tuple[int, Any, str]:
        code, out, err = run("build", "--json", *words)
        return code, result_of(out), err

    return call


def events(err: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in err.splitlines() if line.startswith("{")]


def built_layers(err: str) -> list[str]:
    tasks = [str(event.get("task")) for event in events(err) if event["event"] == "task-started"]
    return sorted(task.removeprefix("layer:") for task in tasks if task.startswith("layer:"))


def compressor_of(image: Path) -> Compressor:
    with file_system(image) as content:
        return Compressor(content.superblock.compressor)


def content_of(image: Path) -> dict[str, bytes]:
    with file_system(image) as content:
        files = [entry for entry in content.walk() if entry.kind == "file"]
        return {entry.path: content.open(entry).read() for entry in files}


def test_an_image_has_the_layers_of_its_plan_from_bottom_to_top(build: Run, bench: Bench) -> None:
    code, data, err = build()
    assert code == 0
    assert built_layers(err) == ["base", "venv"]
    manifest = read_manifest(bench.image)
    assert manifest.file_system is not None
    assert [each.name for each in manifest.file_system.layers] == ["base", "venv"]
    assert (data["image"], data["digest"], data["layers"]) == (str(bench.image), manifest.digest, 2)
    assert data["size_bytes"] == bench.image.stat().st_size
    assert f"{bench.image}: built (0 MB, 2 layers, {manifest.digest[:19]})" in err
    lines = err.splitlines()[-4:]
    assert lines[1:] == [
        "layers: 2 built, 0 reused",
        "check: passed (0 ELF files, 0 Python distributions)",
        f"next: envbuild test {bench.image}",
    ]


def test_a_build_without_a_terminal_writes_a_line_for_each_phase(run: Run, bench: Bench) -> None:
    _, _, err = run("build")
    done = [line.partition(":")[0] for line in err.splitlines() if ": done in" in line]
    assert set(done[:2]) == {"build layer base", "build layer venv"}
    assert done[2:] == ["build 2 layers", "write demo.sif", "check demo.sif"]
    assert run("build", "-q") == (0, "", "")


def test_a_second_build_writes_nothing(build: Run, bench: Bench) -> None:
    _, first, _ = build()
    before = bench.image.stat()
    code, again, err = build()
    assert code == 0
    assert again == {**first, "unchanged": True}
    assert events(err) == [event for event in events(err) if event.get("task") == "check"]
    assert f"{bench.image}: is up to date (0 MB, 2 layers, " in err
    after = bench.image.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_what_changes_is_built_and_the_rest_used_again(build: Run, bench: Bench) -> None:
    build()
    bench.files["venv"] = {"motd": "hello again\n"}
    _, data, err = build()
    assert data["unchanged"] is False
    assert built_layers(err) == ["venv"]
    assert content_of(bench.image)["/etc/motd"] == b"hello again\n"


def test_a_store_of_an_earlier_version_is_refused(build: Run, bench: Bench) -> None:
    (bench.spec.parent / "old/layers").mkdir(parents=True)
    (bench.spec.parent / "old/unchanged").mkdir()
    code, _, err = build("--store", "old")
    assert code == 2
    assert "an earlier version of envbuild made the store" in err
    assert "delete it with `rm -rf " in err
    assert not bench.image.exists()


def test_a_processor_whose_programs_cannot_start_here_is_refused_before_any_layer_is_built(
    build: Run, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "architecture", lambda: "amd64")
    monkeypatch.setattr(emulation, "_QEMU", ("no-such-qemu",))
    # The machine itself may have a handler.
    monkeypatch.setattr(emulation, "_program_that_exits", lambda: b"\x7fELF of another processor")
    emulation.emulator_of.cache_clear()
    bench.architecture = "arm64"
    bench.steps["root"] = BaseStep(suite="bookworm", architecture="arm64", debs=(), texts={}, tools=())
    code, _, err = build()
    emulation.emulator_of.cache_clear()
    assert (code, built_layers(err)) == (5, [])
    assert "programs for arm64 cannot start on amd64" in err
    assert "`--upstream`, `envbuild layer import`" in err


@pytest.mark.parametrize("harm", ["cut", "tables", "gone"])
def test_an_image_that_is_not_that_of_the_plan_is_written_anew(build: Run, bench: Bench, harm: str) -> None:
    build()
    whole = bench.image.read_bytes()
    system, root = read_manifest(bench.image).file_system, read_sif(bench.image).root
    assert system is not None
    assert root is not None
    content = bytearray(whole)
    if harm == "tables":
        content[root.offset + system.tables_offset] ^= 1
    bench.image.write_bytes(content[: -4096 if harm == "cut" else None])
    if harm == "gone":
        bench.image.unlink()
    code, data, err = build()
    assert (code, data["unchanged"]) == (0, False)
    assert built_layers(err) == []
    assert bench.image.read_bytes() == whole


def test_rebuild_builds_all_layers_anew(build: Run, bench: Bench) -> None:
    build()
    whole = bench.image.read_bytes()
    _, data, err = build("--rebuild")
    assert data["unchanged"] is False
    assert built_layers(err) == ["base", "venv"]
    assert bench.image.read_bytes() == whole


def test_gzip_has_layers_of_its_own_and_the_store_keeps_both(build: Run, bench: Bench) -> None:
    build()
    whole = bench.image.read_bytes()
    assert compressor_of(bench.image) is Compressor.ZSTD
    _, data, err = build("--compression", "gzip")
    assert data["unchanged"] is False
    assert built_layers(err) == ["base", "venv"]
    assert compressor_of(bench.image) is Compressor.GZIP
    assert build("--compression", "gzip")[1]["unchanged"] is True
    _, data, err = build("--compression", "zstd")
    assert (data["unchanged"], built_layers(err)) == (False, [])
    assert bench.image.read_bytes() == whole


def test_the_image_goes_where_it_is_to_go(build: Run, bench: Bench, tmp_path: Path) -> None:
    _, data, _ = build("-o", "other.sif")
    assert read_manifest(tmp_path / "other.sif").digest == data["digest"]
    assert not bench.image.exists()
    (tmp_path / "letter.txt").write_text("Dear")
    for place, told in (
        ("letter.txt", "error: "),
        ("demo.yaml", "error: "),
        ("demo.lock.yaml", "is where the spec's lock will be"),
        ("nowhere/x.sif", "error: "),
    ):
        code, out, err = build("-o", place)
        assert (code, out) == (2, None), place
        assert told in err
    assert (tmp_path / "letter.txt").read_text() == "Dear"
    assert bench.spec.read_text().startswith("name: demo")


def test_two_layers_that_disagree_make_no_image(build: Run, bench: Bench) -> None:
    build()
    whole = bench.image.read_bytes()
    bench.files["files"] = {"motd": "goodbye\n"}
    code, _, err = build()
    assert code == 3
    assert "layers conflict in 1 file\n  /etc/motd: venv and files\n" in err
    assert bench.image.read_bytes() == whole
    # The same file in two layers is no conflict.
    bench.files["files"] = {"motd": "hello\n", "more": ""}
    assert build()[1]["layers"] == 3


def test_of_two_wheels_the_later_wins_and_it_is_told(build: Run, bench: Bench) -> None:
    bench.files |= {"wheel:nose": {"LICENSE": "of nose\n"}, "wheel:six": {"LICENSE": "of six\n"}}
    code, _, err = build()
    assert code == 0
    (warned,) = (event for event in events(err) if event["event"] == "warned")
    assert warned["text"] == "nose and six both bring `/etc/LICENSE`: that of six is taken"
    assert content_of(bench.image)["/etc/LICENSE"] == b"of six\n"


def test_packages_of_the_system_may_change_the_base(build: Run, bench: Bench) -> None:
    bench.files = {"base": {"passwd": "root\n"}, "system": {"passwd": "root\nmunge\n"}}
    code, _, err = build()
    assert (code, [event for event in events(err) if event["event"] == "warned"]) == (0, [])
    assert content_of(bench.image)["/etc/passwd"] == b"root\nmunge\n"


def test_a_layer_whose_tables_are_damaged_makes_no_image(build: Run, bench: Bench, tmp_path: Path) -> None:
    build()
    bench.image.unlink()
    blob = max((tmp_path / "store/blobs").rglob("*"), key=lambda path: path.is_file())
    flip(blob)
    code, _, err = build()
    assert code == 5
    assert "`envbuild cache verify --repair`" in err
    assert not bench.image.exists()


def test_a_plan_tells_what_each_compression_would_build(build: Run, run: Run, bench: Bench) -> None:
    def states(*words: str) -> list[tuple[str, str]]:
        data = json.loads(run("plan", "--json", *words)[1])
        assert data["image"] == ["base", "venv"]
        return [(row["name"], row["state"]) for row in data["layers"]]

    assert states() == [("base", "build"), ("venv", "build")]
    build()
    assert states() == [("base", "cached"), ("venv", "cached")]
    assert states("--compression", "gzip") == [("base", "build"), ("venv", "build")]
    assert run("plan") == (0, "to fetch: nothing\nto build: nothing; 2 in the store\n", "")
    code, out, err = run("plan", "-v")
    assert (code, err) == (0, "")
    rows = [line.split()[:2] for line in out.splitlines()]
    assert rows[2:] == [["cached", "base"], ["cached", "venv"], ["image:", "2"]]


def test_a_plan_of_many_layers_is_short_and_v_lists_them(run: Run, bench: Bench) -> None:
    bench.files |= {f"wheel:p{number}": {f"{number}": "text"} for number in range(9)}
    bench.files |= {f"framework:f{number}": {f"f{number}": "text"} for number in range(9)}
    _, out, _ = run("plan")
    assert out.splitlines() == [
        "to fetch: nothing",
        "to build: 20 layers; 0 in the store",
        "  base          first build",
        "  venv          first build",
        "  framework:f0  first build",
        "                and 9 more (`-v` lists them)",
    ]
    assert len(run("plan", "-v")[1].splitlines()) == 23
    bench.files = {name: files for name, files in bench.files.items() if "framework" not in name}
    assert "  9 wheels  first build: p0, p1, p2, p3 and 5 more\n" in run("plan")[1]

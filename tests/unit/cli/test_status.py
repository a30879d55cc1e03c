"""`envbuild status`: which image a line is about, and what to do."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from envbuild.activate.installed import find_installed
from envbuild.activate.retirement import retire
from envbuild.cli.main import main
from envbuild.image.sif import LOCK
from envbuild.lock.text import dump, load
from envbuild.system import squashfs
from tests.support.images import read_data
from tests.support.module_roots import put_module
from tests.support.resolved_specs import wheel
from tests.support.small_images import UNREAD, small_image


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(capsys: pytest.CaptureFixture[str], *images: str) -> list[str]:
    """Return what is printed of images, of which none has passed."""
    with pytest.raises(SystemExit) as ended:
        main(["status", *images])
    assert ended.value.code == 4
    return capsys.readouterr().out.splitlines()


def test_images_of_one_name_are_told_apart_by_their_files(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = small_image(desk, UNREAD, name="one.sif")
    shutil.copy(one, "two.sif")
    (line,) = lines(capsys, "one.sif")
    assert "one.sif" not in line
    first, second = lines(capsys, "one.sif", "two.sif")
    assert first.split(maxsplit=2)[:2] == ["UNTESTED", "one.sif"]
    assert second.split(maxsplit=2)[:2] == ["UNTESTED", "two.sif"]
    assert "demo/2026.11: never tested here" in second


def test_an_image_of_another_tool_is_not_sent_to_a_test_that_refuses_it(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "root").mkdir()
    squashfs.make(desk / "root", desk / "foreign.sqfs")
    (line,) = lines(capsys, "foreign.sqfs")
    assert line.startswith("UNTESTED foreign.sqfs: an image of another tool")
    assert "`envbuild extend`" in line


def test_modules_and_images_below_a_directory_are_shown_together(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = small_image(desk, UNREAD, name="one.sif")
    for version in ("1", "2", "3"):
        put_module(image, desk / "apps", f"demo/{version}")
    (desk / "apps/envs/demo/2/image.sif").unlink()
    retired = next(module for module in find_installed(desk / "apps") if module.layout.version == "3")
    retire(retired, date(2027, 1, 31))
    shutil.copy(image, "apps/one.sif")
    (desk / "apps/two.sif").write_bytes(b"no image")
    shown = lines(capsys, "--all", "apps")
    assert [line.split()[:2] for line in shown] == [
        ["UNTESTED", "demo/1"],
        ["BROKEN", "demo/2"],
        ["UNTESTED", "demo/3"],
        ["UNTESTED", "one.sif"],
        ["failed", "two.sif"],
    ]
    assert "image.sif is missing" in shown[1]
    assert "retired until 2027-01-31" in shown[2]
    document = json.loads("\n".join(lines(capsys, "--all", "apps", "--json")))
    assert [member["exit_code"] for member in document["members"]] == [4, 4, 4, 4, 2]
    assert document["members"][1]["result"]["state"] == "broken"
    assert document["members"][2]["result"]["retired_until"] == "2027-01-31"
    assert document["members"][2]["result"]["deprecated_on"] is None


def test_an_image_that_its_lock_or_spec_has_left_behind_says_so(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, lock_file = small_image(desk, UNREAD, name="one.sif"), desk / "one.lock.yaml"
    lock_file.write_bytes(read_data(image, LOCK))
    (desk / "one.yaml").write_text("name: demo\n")
    os.utime(image, (1, 1))
    os.utime("one.yaml", (1, 1))
    # The lock is the image's.
    (line,) = lines(capsys, "one.sif")
    assert "one.lock.yaml" not in line
    assert "one.yaml" not in line
    os.utime(lock_file, (0, 0))
    (line,) = lines(capsys, "one.sif")
    assert "its spec `one.yaml` was saved after its lock" in line
    lock = load(lock_file.read_bytes(), lock_file)
    lock_file.write_text(dump(replace(lock, python=(*lock.python, wheel("tabulate")))))
    (line,) = lines(capsys, "one.sif")
    assert "`one.sif` is older than its lock `one.lock.yaml`" in line

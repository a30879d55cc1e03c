"""`envbuild status`: which image a line is about, and what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from envbuild.cli.main import main
from envbuild.system import squashfs
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
    assert "(one.sif): never tested here" in first
    assert "(two.sif): never tested here" in second


def test_an_image_of_another_tool_is_not_sent_to_a_test_that_refuses_it(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "root").mkdir()
    squashfs.make(desk / "root", desk / "foreign.sqfs")
    (line,) = lines(capsys, "foreign.sqfs")
    assert line.startswith("UNTESTED foreign.sqfs: an image of another tool")
    assert "`envbuild extend`" in line

"""Where the forms of an image go: read from words, and refused before any work is done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, MachineError
from envbuild.image.outputs import FORMATS, Output, check_outputs, parse_output, places, publish


def problems(error: EnvbuildError) -> list[str]:
    return [one.problem for one in error.each()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("image.sif", Path("image.sif")),
        ("sif:image.sif", Path("image.sif")),
        ("./odd:name.sif", Path("./odd:name.sif")),
        ("squashfs:a:b", Output(format="squashfs", path=Path("a:b"))),
        ("shifter:/images", Output(format="shifter", path=Path("/images"))),
        ("sif-flat:x", Output(format="sif-flat", path=Path("x"))),
        ("def:x", Output(format="def", path=Path("x"))),
    ],
)
def test_words(text: str, expected: object) -> None:
    assert parse_output(text) == expected


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("squash:x", "`squash` is no format of an image", "did you mean `squashfs`?"),
        ("tarball:x", "`tarball` is no format of an image", f"there are {', '.join(FORMATS)}; a file"),
        ("def:", "`def:` names no place", "write def:PATH"),
    ],
)
def test_words_that_mean_nothing(text: str, problem: str, hint: str) -> None:
    with pytest.raises(EnvbuildError) as error:
        parse_output(text)
    assert error.value.problem == problem
    assert (error.value.hint or "").startswith(hint)


@pytest.mark.parametrize("text", ["made.sif/", "sif:made/", "oci:made/"])
def test_a_directory_s_name_is_no_files(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvbuildError, match="is the name of a directory, and a file is to be written"):
        parse_output(text)
    assert parse_output("shifter:made/") == Output(format="shifter", path=Path("made"))


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("mine\n")
    (tmp_path / "spec.yaml").write_text("name: x\n")
    texts = [
        "nonsense:x",
        f"squashfs:{tmp_path}/text",
        f"sif-flat:{tmp_path}/no/where",
        f"shifter:{tmp_path}/text",
        f"def:{tmp_path}/spec.yaml",
        f"squashfs:{tmp_path}/new",
        f"def:{tmp_path}/./new",
        f"{tmp_path}/one.sif",
        f"{tmp_path}/two.sif",
    ]
    with pytest.raises(EnvbuildError) as error:
        places(texts, default=tmp_path / "x.sif", keep=[tmp_path / "spec.yaml"])
    assert sorted(problems(error.value)) == sorted(
        [
            "`nonsense` is no format of an image",
            f"`{tmp_path}/text` is there already and is no squashfs: it is left alone",
            f"there is no directory `{tmp_path}/no` for `where`",
            f"`{tmp_path}/text` is there already and is no directory",
            f"`{tmp_path}/text` is named twice",
            f"`{tmp_path}/spec.yaml` is there already and is no def: it is left alone",
            f"`{tmp_path}/new` is named twice",
            f"`{tmp_path}/two.sif` is a second place for the image",
        ]
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spec.yaml", "text"]


@pytest.mark.parametrize("place", ["there", "there/new"])
def test_a_directory_without_write_permission_is_rejected(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    # Root may write everywhere.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(EnvbuildError, match=f"nothing can be written in `{tmp_path}/there`"):
        check_outputs([Output(format="shifter", path=tmp_path / place)], keep=())


@pytest.mark.parametrize("text", ["-", "sif:-", "oci:-", "def:./-", "shifter:-"])
def test_nothing_is_written_to_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvbuildError, match="is not written to standard output") as error:
        places([text], default=tmp_path / "x.sif", keep=())
    assert str(error.value.hint).startswith("name a")


def test_the_image_itself_is_no_output(tmp_path: Path) -> None:
    with pytest.raises(EnvbuildError, match="is named twice"):
        places([f"sif-flat:{tmp_path}/x.sif"], default=tmp_path / "x.sif", keep=())


def test_the_place_of_a_lock_that_is_not_there_yet_is_kept(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock.yaml"
    with pytest.raises(EnvbuildError, match="where the spec's lock will be"):
        places([str(lock)], default=tmp_path / "x.sif", keep=(tmp_path / "x.yaml", lock))


def test_what_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hsqs and more")
    (tmp_path / "b").write_text("Bootstrap: docker\n")
    (tmp_path / "c").mkdir()
    (tmp_path / "d").write_bytes(b"oci-layout\0")
    (tmp_path / "empty").touch()
    check_outputs(
        [
            Output(format="squashfs", path=tmp_path / "a"),
            Output(format="def", path=tmp_path / "b"),
            Output(format="shifter", path=tmp_path / "c"),
            Output(format="oci", path=tmp_path / "d"),
            Output(format="sif-flat", path=tmp_path / "empty"),
        ],
        keep=(),
    )


@pytest.mark.parametrize("keep", [True, False])
def test_a_file_takes_its_place(tmp_path: Path, keep: bool) -> None:
    made = tmp_path / "work" / "made"
    made.parent.mkdir()
    made.write_text("new")
    target = tmp_path / "target"
    target.write_text("old")
    before = target.open()
    publish(made, target, keep=keep)
    assert (target.read_text(), made.exists()) == ("new", keep)
    assert before.read() == "old", "whoever reads the old one goes on reading it"
    before.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target", "work"]


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "made"
    made.write_text("new")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="cannot be written: No space left on device"):
        publish(made, tmp_path / "target", keep=True)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]

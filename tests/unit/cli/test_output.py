"""The standard streams, in whatever state a command is given them; and what they are written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.cli import output
from envbuild.quoting import shell_path
from envbuild.store.gc_roots import Root, add_root
from envbuild.store.store import Store

COMMAND = Path(sys.executable).with_name("envbuild")
CLOSED = "error: standard output cannot be written: it is closed\n\nhint: write elsewhere: `> FILE`\n"
FULL = (
    "error: standard output cannot be written: No space left on device\n\n"
    "hint: free some space behind it, or write elsewhere\n"
)
BAD = "bad\udcff"


def envbuild(
    words: str, redirected: str, cwd: Path, locale: str = "C.UTF-8"
) -> subprocess.CompletedProcess[bytes]:
    """Run a command with its streams redirected as a shell does it."""
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": locale, "HOME": str(cwd), "ENVBUILD_STORE": str(cwd / "store")}
    line = f'exec "$0" {words} {redirected}'
    return subprocess.run(["sh", "-c", line, COMMAND], env=env, cwd=cwd, capture_output=True, timeout=60)


@pytest.mark.parametrize("words", ["--help", "schema spec", "recipes ls"])
@pytest.mark.parametrize(("redirected", "told"), [(">&-", CLOSED), (">/dev/full", FULL)])
def test_data_that_cannot_be_written(words: str, redirected: str, told: str, tmp_path: Path) -> None:
    done = envbuild(words, redirected, tmp_path)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (5, b"", told)


@pytest.mark.parametrize("redirected", [">/dev/full", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_what_need_not_be_written_fails_nothing(redirected: str, tmp_path: Path) -> None:
    """A spec is written, and nothing of what is told lands in it."""
    done = envbuild("init spec.yaml --yes", redirected, tmp_path)
    told = b"" if "2>" in redirected else b"spec.yaml: written\nnext: envbuild build spec.yaml\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", told)
    assert b"written" not in (tmp_path / "spec.yaml").read_bytes()


@pytest.mark.parametrize(
    ("words", "redirected"),
    [
        ("plan nosuch.yaml", "2>&-"),
        ("plan nosuch.yaml", ">&- 2>&- <&-"),
        ("nonsense", "2>/dev/full"),
        ("", "2>&-"),
    ],
)
def test_the_code_tells_when_nothing_else_can(words: str, redirected: str, tmp_path: Path) -> None:
    done = envbuild(words, redirected, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


def test_data_is_written_whatever_becomes_of_progress(tmp_path: Path) -> None:
    for redirected in ("", "2>&-", "2>/dev/full"):
        done = envbuild("recipes ls --json", redirected, tmp_path)
        assert (done.returncode, bool(json.loads(done.stdout))) == (0, True)


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    prepare = "from envbuild.cli.output import prepare_streams; prepare_streams()"
    text = f"{prepare}; f = open('x', 'w'); f.write(str(f.fileno()))"
    line = 'exec "$0" -c "$1" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", line, sys.executable, text], cwd=tmp_path).returncode == 0
    assert (tmp_path / "x").read_text() == "3"


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_json_is_utf_8_and_keeps_every_name(locale: str, tmp_path: Path) -> None:
    name = f"/nowhere/{BAD} \x1b[31m \x9b \u202e \n é 𝄞.sif"
    add_root(Store(tmp_path / "store"), Root(path=name, pinned=True))
    told = envbuild("cache ls --json", "", tmp_path, locale).stdout.decode()
    assert [root["path"] for root in json.loads(told)["roots"]] == [name]
    assert not [char for char in told if not char.isprintable() and char != "\n"]
    people = envbuild("cache ls", "", tmp_path, locale).stdout.decode()
    assert "bad\\udcff \\u001b[31m \\u009b \\u202e" in people


def test_names_do_not_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_message(f"a\x1b[31m\r\u202e{BAD}\nerror: none\tof\nours")
    assert capsys.readouterr().err == "a\\u001b[31m\\u000d\\u202ebad\\udcff\\nerror: none\tof\\nours\n"
    output.print_messages("one\ntwo\x07")
    assert capsys.readouterr().err == "one\ntwo\\u0007\n"
    output.print_data("one\ntwo\x07\U000e0001")
    assert capsys.readouterr().out == "one\ntwo\\u0007\\udb40\\udc01\n"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("t.sif", "t.sif"),
        ("a b.sif", "'a b.sif'"),
        ("-x.sif", "./-x.sif"),
        ("--json.sif", "./--json.sif"),
        (f"{BAD}/t.sif", r"$'bad\xff/t.sif'"),
        ("esc\x1b1'\\.sif", r"$'esc\x1b1\'\\.sif'"),
        ("a\nb", r"$'a\x0ab'"),
        ("\u202eé", r"$'\xe2\x80\xaeé'"),
    ],
)
def test_a_shell_takes_what_it_is_told_to_take(name: str, word: str) -> None:
    assert shell_path(name) == word
    read = subprocess.run(
        ["bash", "-c", f"printf %s {word}"], env={"LC_ALL": "C.UTF-8"}, capture_output=True, check=True
    ).stdout
    assert os.path.normpath(read) == os.fsencode(name)


def test_a_line_break_in_a_table_starts_no_row() -> None:
    rows = [["unknown", "a.sif\nholds  b.sif", "here"], ["holds", "c.sif", "here"]]
    assert output.columns(rows).splitlines() == [
        r"unknown  a.sif\u000aholds  b.sif  here",
        "holds    c.sif                    here",
    ]

"""With `--json`, an error that ends a command is JSON, too: one document in every case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.cli.main import main


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("name: x\nversio: 1\nbase: [\n")
    Path("wrong.yaml").write_text("name: x\nversio: 1\n")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


@pytest.mark.parametrize(
    "words",
    [
        "build wrong.yaml",
        "lock wrong.yaml",
        "lock wrong.yaml --check",
        "lock wrong.yaml --system",
        "plan wrong.yaml",
        "explain wrong.yaml",
        "check none.sif",
        "status none.sif",
        "test none.sif",
        "inspect none.sif",
        "module default x --root none",
        "module ls --root none",
        "site show none",
        "cache ls --store wrong.yaml",
    ],
)
def test_an_error_is_one_document(capsys: pytest.CaptureFixture[str], words: str) -> None:
    code, out, err = run(capsys, *words.split(), "--json")
    document = json.loads(out)
    assert (document["exit_code"], code > 0) == (code, True)
    (error, *_) = document["errors"]
    assert f"error: {error['problem']}" in err
    assert error["hint"]
    # Without --json, and after a command with it, standard output stays empty.
    assert run(capsys, *words.split())[1] == ""


def test_all_errors_are_there_with_their_places(capsys: pytest.CaptureFixture[str]) -> None:
    Path("two.yaml").write_text("name: x\nversio: 1\nbas: 2\n")
    _, out, _ = run(capsys, "build", "two.yaml", "--json")
    assert [error["at"] for error in json.loads(out)["errors"]] == ["two.yaml:2:1", "two.yaml:3:1"]


def test_of_several_the_table_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", "wrong.yaml", "bad.yaml", "--json")
    assert code == 2
    assert [member["exit_code"] for member in json.loads(out)["members"]] == [2, 2]

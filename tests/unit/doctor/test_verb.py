"""The command: one verb or all, texts and JSON, exit codes, and the configuration of origins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.cli.main import app, main
from envbuild.doctor import checks
from envbuild.doctor.model import VERBS, Diagnostic
from envbuild.workflows import doctor


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *words])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_a_verb_that_cannot_work_is_exit_code_5(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "apptainer"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    words = ("--apptainer", str(broken), "--store", str(tmp_path / "store"))
    code, out, _ = run(capsys, "test", *words)
    assert code == 5
    assert "ERROR   apptainer.broken" in out
    assert out.splitlines()[-1] == "cannot work here: test"
    code, out, _ = run(capsys, "test", "--json", *words)
    assert code == 5
    assert json.loads(out)["verbs"] == {"test": False}
    code, out, _ = run(capsys, "cache", *words)
    assert code == 0
    assert out == "cache can work here\n"


def test_what_only_hampers_keeps_no_verb_from_working(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = Diagnostic(
        "slurm.no-srun", "warning", ("test",), "no srun", "ranks", "module load", "an administrator"
    )
    monkeypatch.setattr(doctor, "check_machine", lambda *_: [finding])
    code, out, _ = run(capsys, "test")
    assert code == 0
    assert out.splitlines() == [
        "WARNING slurm.no-srun: no srun",
        "        test: ranks",
        "        fix (an administrator): module load",
        "test can work here, with the warnings above",
    ]
    _, out, _ = run(capsys, "test", "--json")
    assert json.loads(out) == {
        "verbs": {"test": True},
        "findings": [
            {
                "id": "slurm.no-srun",
                "severity": "warning",
                "verbs": ["test"],
                "problem": "no srun",
                "why": "ranks",
                "fix": "module load",
                "who": "an administrator",
            }
        ],
    }


def test_every_verb_of_the_command_is_known(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    named = [command.name for command in app.registered_commands if not command.hidden]
    named += [group.name for group in app.registered_groups]
    assert sorted(VERBS) == sorted(filter(None, named))
    code, out, _ = run(capsys, "schema", "--store", str(tmp_path / "store"))
    assert (code, out) == (0, "schema can work here\n")


def test_an_unknown_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "bild")
    assert code == 2
    assert "did you mean `build`?" in err


def test_find_links_that_are_gone_and_no_index(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nno-index = true\nfind-links = {tmp_path}/wheels\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    for name in ("ENVBUILD_SITE", "PIP_FIND_LINKS", "PIP_NO_INDEX", "UV_FIND_LINKS", "UV_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ("fetch", "--json", "--store", str(tmp_path / "store"))
    _, out, _ = run(capsys, *words)
    assert {"index.find-links", "index.none"} <= {each["id"] for each in json.loads(out)["findings"]}
    (tmp_path / "wheels").mkdir()
    _, out, _ = run(capsys, *words)
    assert not {"index.find-links", "index.none"} & {each["id"] for each in json.loads(out)["findings"]}


def test_a_site_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("nonsense: [\n")
    code, out, _ = run(capsys, "lock", "--site", str(site))
    assert code == 5
    assert "ERROR   site.configuration" in out
    assert f"({site}:" in out


def test_a_site_that_nobody_knows_and_one_of_the_users_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVBUILD_SITE", "nosuch")
    for verb in ("build", "plan", "check"):
        code, out, _ = run(capsys, verb)
        assert code == 5
        assert "ERROR   site.configuration: unknown site `nosuch`, which ENVBUILD_SITE names\n" in out
    monkeypatch.delenv("ENVBUILD_SITE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = tmp_path / "envbuild/site.yaml"
    own.parent.mkdir()
    own.write_text("{{{\n")
    code, out, _ = run(capsys, "plan")
    assert code == 5
    assert f"site.configuration: a value is missing here ({own}:" in out
    assert "site.configuration" not in run(capsys, "check")[1]


def test_an_index_that_does_not_answer_is_named_without_its_password(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = http://me:hunter2@127.0.0.1:9/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    for name in ("ENVBUILD_SITE", "PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(checks, "unreachable_reason", lambda *_, **__: "")
    for words, resolved in (([], False), (["--online"], True)):
        _, out, _ = run(capsys, "lock", *words, "--store", str(tmp_path / "store"))
        assert ("index.unreachable" in out) == resolved
        assert "hunter2" not in out
    _, out, err = run(capsys, "extend", "--online", "-v", "--store", str(tmp_path / "store"))
    address = "http://127.0.0.1:9/simple"
    assert f"ERROR   index.unreachable: {address} cannot be reached\n" in out
    assert out.endswith("cannot work here: extend\n")
    assert f"pypi: asking {address}\n" in err
    assert "hunter2" not in out + err

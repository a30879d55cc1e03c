"""Which images hold a package: by what they say; those that do not say are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.system import squashfs
from tests.support.module_roots import put_module
from tests.support.small_images import UNREAD, small_image


def bill(*refs: str, excluded: str = "") -> bytes:
    """Return a bill of materials of ``deb:NAME@VERSION``, ``pypi:…`` and ``root:…``."""
    components = []
    for ref in refs:
        name, _, version = ref.partition(":")[2].partition("@")
        scope = {"scope": "excluded"} if ref == excluded else {}
        components.append({"bom-ref": ref, "name": name, "version": version, **scope})
    return json.dumps({"components": components}).encode()


@pytest.fixture
def apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    apps = tmp_path / "apps"
    apps.mkdir()
    old = bill("deb:libssl3@3.0.14-1~deb12u2", "pypi:six@1.16.0")
    new = bill("deb:libssl3@3.0.15-1~deb12u1", "pypi:six@1.17.0")
    build = bill("deb:libssl3@3.0.14-1~deb12u2", "pypi:numpy@2.3", excluded="deb:libssl3@3.0.14-1~deb12u2")
    root = bill("root:0123", "pypi:numpy@2.3")
    for label, text in (("old/1", old), ("new/1", new), ("build/1", build), ("root/1", root)):
        image = small_image(tmp_path, UNREAD, name=f"{label[:-2]}.sif", bill=text)
        put_module(image, apps, label)
    (apps / "foreign").mkdir()
    (tmp_path / "tree").mkdir()
    squashfs.make(tmp_path / "tree", apps / "foreign/other.sif")
    (apps / "foreign/damaged.sif").write_bytes(b"no image")
    return apps


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["status", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


def states(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    _, text = ask(capsys, "--all", "apps", "--json", *words)
    document: Any = json.loads(text)
    return {
        member["name"].removeprefix("foreign/"): member["result"]["state"] for member in document["members"]
    }


def test_each_image_holds_it_lacks_it_or_does_not_say(apps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert states(capsys, "--package", "libssl3<3.0.15-1~deb12u1") == {
        "old/1": "holds",
        "new/1": "lacks",
        # A build used it: the image does not hold it.
        "build/1": "lacks",
        # Its root's packages are not listed.
        "root/1": "unknown",
        "other.sif": "unknown",
        "damaged.sif": "unknown",
    }
    assert states(capsys, "--package", "pypi:numpy")["root/1"] == "holds"


def test_the_answer_names_packages_and_reasons(apps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ask(
        capsys, "--all", "apps", "--package", "libssl3<3.0.15-1~deb12u1", "--package", "SIX>=1.17"
    )
    assert code == 4
    lines = text.splitlines()
    assert lines[0].split() == ["holds", "new/1", "six", "1.17.0", "(pypi)"]
    assert lines[1].split() == ["holds", "old/1", "libssl3", "3.0.14-1~deb12u2", "(deb)"]
    assert lines[-1] == "libssl3<3.0.15-1~deb12u1 or SIX>=1.17: 2 of 6 hold it, 3 do not say"
    assert any("another tool built the image" in line for line in lines)
    assert not any("build/1" in line for line in lines)


def test_the_exit_code_is_0_only_if_all_say_that_they_lack_it(
    apps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--root", "apps", "new/1", "build/1", "--package", "libssl3<3.0.15-1~deb12u1")
    assert ask(capsys, *words)[0] == 0
    assert ask(capsys, "--root", "apps", "root/1", "--package", "deb:libssl3")[0] == 4
    assert ask(capsys, "--all", "apps", "--package", "<3")[0] == 2


def test_an_image_that_was_changed_does_not_say(apps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = apps / "envs/new/1/image.sif"
    image.write_bytes(image.read_bytes().replace(b"libssl3", b"libssl4"))
    assert states(capsys, "--package", "libssl3")["new/1"] == "unknown"


def test_a_bill_of_another_form_is_unknown(apps: Path, tmp_path: Path, capsys: Any) -> None:
    for number, text in enumerate((b"[]", b'{"components": 3}', b'{"components": [1, {"name": 2}]}', b"{")):
        image = small_image(tmp_path, UNREAD, name=f"odd{number}.sif", bill=text)
        put_module(image, apps, f"odd/{number}")
    found = states(capsys, "--package", "libssl3")
    assert {found[f"odd/{number}"] for number in range(4)} == {"unknown"}

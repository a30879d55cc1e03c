"""What an Apptainer says of how it was built, and the settings file that it names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.system.apptainer import Configuration, configuration
from envbuild.system.survey import Survey

CONF = "APPTAINER_CONF_FILE=/etc/a.conf\n"


def found(root: Path, told: str, settings: str | None = None) -> Configuration:
    if settings is not None:
        (root / "etc").mkdir(exist_ok=True)
        (root / "etc/a.conf").write_text(settings)
    return configuration(told, Survey(root=root, architecture="amd64", variables={}))


@pytest.mark.parametrize(
    ("settings", "setuid"),
    [
        ("allow setuid = no\n", False),
        ("\tallow setuid=yes # or not\n# allow setuid = no\n", True),
        ("allow setuid = no\nallow setuid = yes\n", True),
        ("disallow setuid = no\nallow setuids = no\n", None),
        (None, None),
    ],
)
def test_the_last_setting_counts(tmp_path: Path, settings: str | None, setuid: bool | None) -> None:
    assert found(tmp_path, "PREFIX=/usr\n" + CONF, settings).setuid is setuid


@pytest.mark.parametrize("told", ["", "APPTAINER_CONF_FILE=etc/a.conf\n", "APPTAINER_CONF_FILE=\n"])
def test_no_settings_but_those_it_names(tmp_path: Path, told: str) -> None:
    assert found(tmp_path, told, "allow setuid = no\n") == Configuration()


def test_settings_that_are_no_file_of_settings(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/a.conf")
    assert found(tmp_path, CONF) == Configuration()
    (tmp_path / "etc/a.conf").unlink()
    assert found(tmp_path, CONF, "allow setuid = no\n" + "#" * (1 << 20)) == Configuration()


@pytest.mark.parametrize(
    ("installed", "settings", "setuid"),
    [
        ("1", "allow setuid = yes\n", True),
        ("1", "allow setuid = no\n", False),
        ("0", "allow setuid = yes\n", False),
        ("0", "", False),
        ("1", "", None),
    ],
)
def test_root_s_powers_are_built_in_and_allowed(
    tmp_path: Path, installed: str, settings: str, setuid: bool | None
) -> None:
    told = f"{CONF}APPTAINER_SUID_INSTALL={installed}\n"
    assert found(tmp_path, told, settings).setuid is setuid


@pytest.mark.parametrize("installed", ["0", "1"])
def test_singularityce_names_its_settings_after_itself(tmp_path: Path, installed: str) -> None:
    # As SingularityCE 4.5.1 prints it (cmd/internal/cli/buildconfig.go).
    names = {"SINGULARITY_CONF_FILE": "/etc/a.conf", "SINGULARITY_SUID_INSTALL": installed}
    text = "".join(f"{name}={value}\n" for name, value in {"LIBEXECDIR": "/libexec", **names}.items())
    assert found(tmp_path, text, "allow setuid = no\n").setuid is False
    assert found(tmp_path, text, "allow setuid = yes\n").setuid is (installed == "1")
    starter = tmp_path / "libexec/singularity/bin/starter-suid"
    starter.parent.mkdir(parents=True)
    starter.touch()
    starter.chmod(0o4755)
    assert found(tmp_path, text).starter is (starter.stat().st_uid == 0)


@pytest.mark.parametrize("mode", [0o755, 0o4755])
def test_a_starter_is_root_s_and_has_its_bit(tmp_path: Path, mode: int) -> None:
    starter = tmp_path / "libexec/apptainer/bin/starter-suid"
    assert not found(tmp_path, "LIBEXECDIR=/libexec\n").starter
    starter.parent.mkdir(parents=True)
    starter.touch()
    starter.chmod(mode)
    ours = mode == 0o4755 and starter.stat().st_uid == 0
    assert found(tmp_path, "LIBEXECDIR=/libexec\n").starter is ours
    assert not found(tmp_path, "LIBEXECDIR=libexec\n").starter

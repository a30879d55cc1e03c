"""This machine, looked at for real: the draft loads back, holds, and is the same twice."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from envbuild.spec.load import load
from envbuild.spec.site import Site

COMMAND = Path(sys.executable).with_name("envbuild")


def envbuild(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "ENVBUILD_SITE"}
    return subprocess.run([COMMAND, *words], env=env, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_the_draft_of_this_machine_says_what_is_so(tmp_path: Path) -> None:
    said = envbuild("site", "probe", "-o", "here.yaml", cwd=tmp_path)
    assert (said.returncode, said.stdout) == (0, "")
    text = (tmp_path / "here.yaml").read_bytes()
    site = load(Site, text, tmp_path / "here.yaml").value
    assert site.glibc == platform.libc_ver()[1]
    assert site.architecture == {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    assert site.libstdcxx
    (apptainer,) = site.runtimes
    assert apptainer.name == "apptainer"
    version = subprocess.run(["apptainer", "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.split()[-1].startswith(str(apptainer.version))
    assert apptainer.user_namespaces is not None
    assert site.modules == "lmod"

    # The same machine gives the same text, and what somebody may have edited is never written over.
    (tmp_path / "other").mkdir()
    again = envbuild("site", "probe", "-o", "other/here.yaml", cwd=tmp_path)
    assert again.returncode == 0
    assert (tmp_path / "other/here.yaml").read_bytes() == text
    over = envbuild("site", "probe", "-o", "here.yaml", cwd=tmp_path)
    assert (over.returncode, over.stdout) == (2, "")
    assert "error: `here.yaml` already exists" in over.stderr
    held = envbuild("site", "check", "here.yaml", cwd=tmp_path)
    assert (held.returncode, held.stdout) == (0, "")

    (tmp_path / "here.yaml").write_bytes(text.replace(f"'{site.glibc}'".encode(), b"'2.5'"))
    differs = envbuild("site", "check", "here.yaml", cwd=tmp_path)
    assert differs.returncode == 4
    assert differs.stdout == f"changed     glibc: 2.5: the machine has {site.glibc}\n"

"""Completion in the shells that people have, pressed for real; and how long a press takes."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("envbuild")
SHELLS = ("bash", "zsh", "fish")
# What is typed before the key is pressed → what the line becomes. What is added stands nowhere else in it.
WORDS = {
    "envbuild rec": "envbuild recipes ",
    "envbuild module inst": "envbuild module install ",
    "envbuild recipes show horo": "envbuild recipes show horovod ",
    "envbuild init --mpi openmpi-d": "envbuild init --mpi openmpi-debian ",
    "envbuild init --base debian-11-p": "envbuild init --base debian-11-python2 ",
    "envbuild build --site leon": "envbuild build --site leonardo-booster ",
    "envbuild schema reci": "envbuild schema recipe ",
    "envbuild build --offl": "envbuild build --offline ",
    "envbuild build only-fi": "envbuild build only-file.yaml ",
    "envbuild build -o only-fi": "envbuild build -o only-file.yaml ",
    "envbuild recipes check horo": "envbuild recipes check horovod ",
    "envbuild recipes check --recipes ours alo": "envbuild recipes check --recipes ours alone ",
    "envbuild module uninstall --root modules sol": "envbuild module uninstall --root modules solo/1.2 ",
}


def environment(home: Path) -> dict[str, str]:
    return {"PATH": f"{COMMAND.parent}:/usr/bin:/bin", "HOME": str(home), "TERM": "dumb", "LC_ALL": "C.UTF-8"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose shells have completion as its help says."""
    for file in ("only-file.yaml", "ours/alone/recipe.yaml", "modules/modulefiles/solo/1.2"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "modules/envs/solo/1.2").mkdir(parents=True)
    line = "unset PS1; PS1='$ '\neval \"$(envbuild completion {})\"\n"
    (tmp_path / ".bashrc").write_text(line.format("bash"))
    (tmp_path / ".zshrc").write_text("autoload -U compinit; compinit -u -D\n" + line.format("zsh"))
    place = tmp_path / ".config/fish/completions"
    place.mkdir(parents=True)
    script = subprocess.run([COMMAND, "completion", "fish"], capture_output=True, text=True, check=True)
    (place / "envbuild.fish").write_text(script.stdout)
    return tmp_path


def press(shell: str, typed: str, home: Path) -> str:
    """Type words and the tabulator into a shell, and let it say what stands on its line."""
    if shell == "fish":
        argv = ["fish", "--command", f"complete --do-complete {typed!r}"]
        said = subprocess.run(
            argv, env=environment(home), cwd=home, capture_output=True, text=True, timeout=60, check=True
        )
        (only,) = said.stdout.splitlines()
        return f"{typed.rpartition(' ')[0]} {only.partition(chr(9))[0]} "
    outer, inner = pty.openpty()
    argv = ["bash", "--rcfile", str(home / ".bashrc"), "-i"] if shell == "bash" else ["zsh", "-i"]
    process = subprocess.Popen(
        argv, stdin=inner, stdout=inner, stderr=inner, env=environment(home), cwd=home, start_new_session=True
    )
    os.close(inner)
    seen = ""

    def wait_for(pattern: str) -> None:
        nonlocal seen
        until = time.monotonic() + 60
        while not re.search(pattern, seen):
            ready, _, _ = select.select([outer], [], [], max(0, until - time.monotonic()))
            assert ready, f"`{pattern}` never came: {seen!r}"
            seen += os.read(outer, 4096).decode(errors="replace")

    try:
        os.write(outer, b"echo re''ady\r")
        wait_for(r"\nready")
        # The line begins as a word of its own command, so that nothing is carried out.
        os.write(outer, typed.encode() + b"\t")
        expected = WORDS[typed].rstrip()
        wait_for(re.escape(expected[len(typed) :]) + " ")
        os.write(outer, b"\x01: [\x05]\r")
        wait_for(r"\n?: \[.*\]")
        os.write(outer, b"exit\r")
        found = re.findall(r"(envbuild [^\[\]\r\n]*)\]", seen)
        return str(found[-1]) if found else seen
    finally:
        process.kill()
        process.wait(10)
        os.close(outer)


# All words in one shell: the answers come from the command, whatever asks. The others show that they ask.
PRESSES = [(shell, typed) for shell in SHELLS for typed in (WORDS if shell == "bash" else list(WORDS)[1:3])]


@pytest.mark.parametrize(("shell", "typed"), PRESSES)
def test_a_press_of_the_key_completes(shell: str, typed: str, home: Path) -> None:
    assert shutil.which(shell), "make setup installs it"
    assert press(shell, typed, home).rstrip() == WORDS[typed].rstrip()


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_printed_is_a_script_of_that_shell(shell: str, tmp_path: Path) -> None:
    said = subprocess.run([COMMAND, "completion", shell], capture_output=True, text=True, check=True)
    checked = subprocess.run([shell, "-n"], input=said.stdout, capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr, said.stderr) == (0, "", "")


def test_there_is_one_way_to_it(tmp_path: Path) -> None:
    said = subprocess.run(
        [COMMAND, "--install-completion"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert "No such option" in said.stderr


def test_another_shell_is_refused() -> None:
    said = subprocess.run([COMMAND, "completion", "csh"], capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in said.stderr


@pytest.mark.parametrize(
    ("typed", "offered"), [("envbuild ", '"build"'), ("envbuild recipes show ", '"pytorch"')]
)
def test_a_press_imports_nothing_slow(typed: str, offered: str, home: Path) -> None:
    env = environment(home) | {
        "_ENVBUILD_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": typed,
    }
    words: list[str | Path] = [sys.executable, "-X", "importtime", COMMAND]
    said = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert offered in said.stdout
    imported = {line.rpartition("|")[2].strip() for line in said.stderr.splitlines()}
    slow = {"rich.console", "yaml", "requests", "jinja2", "envbuild.spec.model", "packaging.version"}
    assert not slow & imported

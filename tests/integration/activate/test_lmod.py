"""`module` with the real Lmod: what is its own."""

import json
import subprocess
from pathlib import Path

import pytest

from envbuild.activate.install import Installed
from envbuild.activate.model import VerdictNote
from envbuild.activate.modulefile import lua_literal
from tests.integration.activate.conftest import Place
from tests.integration.activate.test_module_systems import HOSTILE

INIT = Path("/usr/share/lmod/lmod/init/bash")
SNAPSHOT = "/usr/bin/python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'"
# What Lmod keeps for itself, whatever is loaded.
BOOKKEEPING = ("_ModuleTable", "__LMOD_REF_COUNT_", "_")


def module(
    place: Place, active: Installed, script: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # Ends in a command of the shell's own: it would become the last one, and SHLVL differ.
    text = f"set -e\n. {INIT}\nmodule use '{active.modulefiles}'\n{script}\n:"
    return place.run("/bin/bash", "--norc", "-c", text, env=env)


def snapshots(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [
        {name: value for name, value in each.items() if not name.startswith(BOOKKEEPING)} for each in found
    ]


def test_a_program_started_by_env_runs_inside_the_image(activate, place):
    program = place.path / "train"
    program.write_text(
        "#!/usr/bin/env python\nimport framework, sys\nprint(framework.VERSION, sys.argv[1:])\n"
    )
    program.chmod(0o755)
    done = module(place, activate(), f"module load small\n{program} 'a b'")
    assert done.stdout == "2.13.0 ['a b']\n"


def test_load_changes_what_it_says_and_nothing_else(activate, place):
    active = activate()
    before, after = snapshots(module(place, active, f"{SNAPSHOT}\nmodule load small\n{SNAPSHOT}"))
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert {name for name in changed if not name.startswith("LMOD_FAMILY_")} == {
        "PATH", "ENVBUILD_IMAGE", "LOADEDMODULES",
    }  # fmt: skip
    assert after["PATH"] == f"{active.home}/bin:{before['PATH']}"
    assert after["ENVBUILD_IMAGE"] == f"{active.home}/image.sif"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("passed", "Tested:   passed (2 ranks)"),
        ("failed", "Tested:   FAILED (2 ranks)"),
        ("stale", "Tested:   stale: tested on another host, or before this one changed (2 ranks)"),
        ("absent", "Tested:   absent: this image was never tested here"),
    ],
)
def test_help_shows_the_last_verdict(activate, place, state, expected):
    note = VerdictNote(state=state, text="" if state == "absent" else "2 ranks")
    active = activate(verdict=note)
    shown = module(place, active, "module help small/1.0 2>&1").stdout
    assert expected in shown.splitlines()
    assert "small/1.0: a small image" in shown
    assert bool(active.warnings) == (state != "passed")


def test_whatis_and_spider_find_what_is_in_it(activate, place):
    active = activate()
    assert "Description: a small image" in module(place, active, "module whatis small/1.0 2>&1").stdout
    for wanted in ("framework", "framework/2.13.0"):
        assert "small/1.0" in module(place, active, f"module spider {wanted} 2>&1").stdout


@pytest.mark.parametrize("text", [*HOSTILE, "".join(map(chr, range(1, 256))), "\n\r\n", "\0001", "1\t2\x7f3"])
def test_lua_reads_back_exactly_what_was_quoted(place, text):
    program = place.path / "program.lua"
    program.write_bytes(f"io.write({lua_literal(text)})".encode())
    lua = next(
        path for name in ("lua", "lua5.4", "lua5.3", "lua5.1") if (path := Path("/usr/bin", name)).exists()
    )
    done = subprocess.run([str(lua), str(program)], capture_output=True, check=True)
    assert done.stdout == text.encode()

"""`module` with the real Lmod: what is its own."""

import json
import subprocess
from pathlib import Path

from envbuild.activate.layout import Layout
from tests.integration.activate.conftest import Place

INIT = Path("/usr/share/lmod/lmod/init/bash")
SNAPSHOT = "/usr/bin/python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'"
# What Lmod keeps for itself, whatever is loaded.
BOOKKEEPING = ("_ModuleTable", "__LMOD_REF_COUNT_", "_")


def module(
    place: Place, active: Layout, script: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # Ends in a command of the shell's own: it would become the last one, and SHLVL differ.
    text = f"set -e\n. {INIT}\nmodule use '{active.root}/modulefiles'\n{script}\n:"
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


def test_help_names_the_command_that_shows_the_verdict(activate, place):
    active = activate()
    shown = module(place, active, "module help small/1.0 2>&1").stdout
    assert f"Tested:   run envbuild status --root {active.root} small/1.0" in shown.splitlines()
    assert "small/1.0: a small image" in shown


def test_whatis_and_spider_find_what_is_in_it(activate, place):
    active = activate()
    assert "Description: a small image" in module(place, active, "module whatis small/1.0 2>&1").stdout
    for wanted in ("framework", "framework/2.13.0"):
        assert "small/1.0" in module(place, active, f"module spider {wanted} 2>&1").stdout

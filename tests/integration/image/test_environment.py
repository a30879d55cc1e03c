"""The rendered script, run by shells, does what the table says."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild.image import startup
from envbuild.image.environment import apply, render_script
from envbuild.image.model import Variable

NAMES = ("A", "B_1", "LIST")
WATCHED = (*NAMES, "PATH", "LD_LIBRARY_PATH", "PS1")
# Everything that means something to some shell; what was set before may hold line breaks, too.
_SPECIAL = "ab'\"\\$`!*?[]{}()<>|&;~#= :/ü%"
values = st.text(alphabet=_SPECIAL, max_size=12)
values_before = st.text(alphabet=f"{_SPECIAL}\t\n", max_size=12)
tables = st.lists(
    st.builds(
        lambda name, operation, value: Variable(name=name, operation=operation, value=value),
        st.sampled_from(NAMES),
        st.sampled_from(["set", "prepend", "unset"]),
        values,
    ),
    max_size=5,
)


def sourced(shell: str, text: str, before: dict[str, str], directory: Path) -> dict[str, str]:
    script = directory / "script.sh"
    script.write_text(text)
    done = subprocess.run(
        [shell, "-eu", "-c", '. "$0"; exec /usr/bin/env -0', script],
        env={"PATH": "/usr/bin:/bin", **before},
        capture_output=True,
        check=True,
    )
    pairs = (entry.partition("=") for entry in done.stdout.decode().split("\0") if entry)
    return {name: value for name, _, value in pairs if name in WATCHED or name.startswith("SING_")}


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
@settings(
    max_examples=int(0.6 * settings().max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(table=tables, before=st.dictionaries(st.sampled_from(NAMES), values_before, max_size=3))
def test_script_and_dictionary_agree(
    shell: str, tmp_path: Path, table: list[Variable], before: dict[str, str]
) -> None:
    after = sourced(shell, render_script(table), before, tmp_path)
    expected = apply(table, {"PATH": "/usr/bin:/bin", **before})
    # What is unset is empty in the script.
    assert {name: value for name, value in after.items() if value} == {
        name: value for name, value in expected.items() if value
    }


def test_runtime_scripts_leave_no_empty_elements(tmp_path: Path) -> None:
    """What Apptainer's own do, with and without something there before."""
    text = "".join(content for path, (content, _) in startup.base_files().items() if "99-" in path)
    after = sourced("/bin/sh", text, {}, tmp_path)
    assert after["LD_LIBRARY_PATH"] == "/.singularity.d/libs"
    assert after["PATH"] == "/usr/bin:/bin"
    before = {
        "LD_LIBRARY_PATH": "/a:/b",
        "SING_USER_DEFINED_PREPEND_PATH": "/front",
        "SING_USER_DEFINED_APPEND_PATH": "/back",
        "PS1": "mine",
    }
    after = sourced("/bin/sh", text, before, tmp_path)
    assert after == {
        "LD_LIBRARY_PATH": "/a:/b:/.singularity.d/libs",
        "PATH": "/front:/usr/bin:/bin:/back",
        "PS1": "mine",
    }
    replaced = {**before, "SING_USER_DEFINED_PATH": "/usr/bin:/only"}
    assert sourced("/bin/sh", text, replaced, tmp_path)["PATH"] == "/usr/bin:/only"

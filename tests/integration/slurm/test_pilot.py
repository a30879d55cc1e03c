"""`examples/pilot.sh` on a login node: each step of a pilot, and its page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Desk

SCRIPT = ROOT / "examples/pilot.sh"
STEPS = (
    *("doctor", "probe", "probe-node", "build", "check", "test", "nodes", "vet", "bench"),
    *("module", "load", "kernel"),
)
SPEC = 'name: pilot\nversion: "1"\nmpi: mpich\npackages: {python: [numpy, ipykernel]}\n'


def rows(page: Path) -> dict[str, str]:
    """Return how each step of a page ended."""
    return dict(
        re.findall(r"^<tr><td>([a-z-]+)</td><td class=\"[a-z]+\">([^<]+)</td>", page.read_text(), re.M)
    )


@pytest.mark.slow  # it builds, tests on two nodes, vets and measures: minutes
def test_a_pilot_on_two_nodes(login: Desk, build_once: Callable[[str], Path]) -> None:
    login.write("on-pilot.yaml", SPEC)
    # The cluster has no network: lock, files and layers are there.
    build_once("on-pilot")
    line: list[str | Path] = [SCRIPT, "-p", "all", "-n", "2", "-o", "trial", "-s", "on-pilot.yaml"]
    done = login.run(line, code=None, env={"ENVBUILD": str(login.command)})
    results = login.place / "trial"
    ended = rows(results / "pilot.html")
    assert tuple(ended) == (*STEPS, "extend", "extended"), done.stderr
    # Other work on this machine may slow a node, and what is measured has a time limit.
    well = {name for name, outcome in ended.items() if outcome == "worked"}
    assert well >= {*STEPS} - {"vet", "bench"}, done.stderr
    assert done.returncode == (0 if well == {*STEPS} else 4)
    assert "partition all" in (results / "pilot.html").read_text()
    assert (results / "site.yaml").read_text().startswith("#")
    for name in ("test", "nodes", "bench"):
        assert (results / f"{name}.html").exists()
    assert "certificate: passed" in (results / "nodes.txt").read_text()


FAKE = """\
#!/bin/sh
echo "$*"
case $1 in build) exit 3 ;; doctor) echo 'error: <b> & "c"'; exit 5 ;; esac
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program `envbuild` of which two commands fail."""
    path = tmp_path / "envbuild"
    path.write_text(FAKE)
    path.chmod(0o755)
    return path


def test_a_failed_step_is_noted_and_the_next_goes_on(desk: Desk, tmp_path: Path, program: Path) -> None:
    image = tmp_path / "centre.sif"
    image.touch()
    line: list[str | Path] = [SCRIPT, "-n", "0", "-o", tmp_path / "trial", image]
    done = desk.run(line, code=4, env={"ENVBUILD": str(program)})
    page = tmp_path / "trial/pilot.html"
    ended = rows(page)
    # Each step has a row, also one that could not be tried.
    assert tuple(ended) == (*STEPS, "extend", "extended")
    assert (ended["doctor"], ended["build"]) == ("ended with 5", "ended with 3")
    assert (ended["probe"], ended["extend"], ended["extended"]) == ("worked", "worked", "worked")
    assert {ended[name] for name in (*STEPS[2:3], *STEPS[4:])} == {"not tried"}
    text = page.read_text()
    assert "2 of the steps did not end well: " in text
    assert 'Read the whole output of <a href="doctor.txt">doctor</a>, <a href="build.txt">build</a>' in text
    assert "Not tried: probe-node, check, test, nodes, vet, bench, module, load, kernel." in text
    assert "begins one" not in text
    assert "error: &lt;b&gt; &amp; &quot;c&quot;</pre>" in text
    assert (tmp_path / "trial/doctor.txt").read_text().startswith("doctor\n")
    assert "results: " in done.stderr
    # All is well: review the site file, then go on.
    program.write_text('#!/bin/sh\n[ "$1" != site ] || echo \'# name: lab\' >"$4"\n')
    second: list[str | Path] = [SCRIPT, "-n", "0", "-o", tmp_path / "second", "-t", "7", image]
    desk.run(second, code=4, env={"ENVBUILD": str(program)})
    text = (tmp_path / "second/pilot.html").read_text()
    assert 'Review <a href="site.yaml">site.yaml</a>' in text
    assert (
        f"ENVBUILD_SITE={tmp_path}/second/site.yaml {SCRIPT} -o {tmp_path}/second-2 -n 0 -t 7 {image}" in text
    )
    refused = desk.run(line, code=2, env={"ENVBUILD": str(program)}).stderr
    assert "name another directory with -o" in refused


def test_a_page_that_cannot_be_written_is_not_called_a_result(
    desk: Desk, tmp_path: Path, program: Path
) -> None:
    trial = tmp_path / "trial"
    program.write_text(f"#!/bin/sh\ncase $1 in kernel) mkdir -p {trial}/pilot.html.new ;; esac\n")
    done = desk.run([SCRIPT, "-n", "0", "-o", trial], code=4, env={"ENVBUILD": str(program)})
    assert "was not written, or lacks steps" in done.stderr
    assert "results: " not in done.stderr
    # That of the step before is there.
    assert "The pilot has not ended." in (trial / "pilot.html").read_text()


@pytest.mark.parametrize("words", [["-t", "0"], ["-n", "x"], ["-x"], ["a", "b"], ["absent.sif"]])
def test_a_wrong_command_line_writes_nothing(desk: Desk, words: list[str]) -> None:
    done = desk.run([SCRIPT, "-o", "never", *words], code=2, env={"ENVBUILD": "/bin/true"})
    assert "error: " in done.stderr
    assert not (desk.place / "never").exists()

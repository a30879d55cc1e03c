"""Every finding is provoked by a machine that lacks just that, and by no sound one."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.doctor import places, rules
from envbuild.doctor.model import VERBS, Machine, Runtime
from envbuild.doctor.rules import blocked, concerning, findings
from tests.support.machines import SOUND


def without(*names: str) -> dict[str, Any]:
    return {"programs": {name: path for name, path in SOUND.programs.items() if name not in names}}


def variable(name: str, value: str = "/x") -> dict[str, Any]:
    return {"variables": {**SOUND.variables, name: value}}


def store(**changes: Any) -> dict[str, Any]:
    return {"store": replace(SOUND.store, **changes)}


def temporary(**changes: Any) -> dict[str, Any]:
    return {"temporary": replace(SOUND.temporary, **changes)}


# Finding → what makes a sound machine have it, and nothing else.
PROVOKED: Mapping[str, dict[str, Any]] = {
    "apptainer.missing": {"runtime": Runtime()},
    "apptainer.broken": {"runtime": Runtime(path="/bin/false")},
    "apptainer.too-old": {"runtime": Runtime(path="/usr/bin/apptainer", version="1.0.3", oldest="1.1")},
    "program.mksquashfs": without("mksquashfs"),
    "program.mksquashfs-corrupts": {"mksquashfs": (4, 7, 2)},
    "program.unsquashfs": without("unsquashfs"),
    "program.mmdebstrap": without("mmdebstrap"),
    "program.apt-get": without("apt-get"),
    "program.gpgv": without("gpgv"),
    "program.ldd": without("ldd"),
    "program.unshare": without("unshare"),
    "program.uv": without("uv"),
    "program.newuidmap": without("newuidmap"),
    "program.newgidmap": without("newgidmap"),
    "program.squashfuse": without("squashfuse"),
    "user-namespaces.forbidden": {"user_namespaces": False},
    "user-namespaces.subordinate-ids": {"subordinate_ids": 1000},
    "fuse.device": {"fuse": False},
    "store.read-only": store(writable=False),
    "store.space": store(free_bytes=10**9),
    "store.hard-links": store(hard_links=False),
    "store.locks": store(locks=False),
    "store.attributes": store(attributes=False),
    "store.refused": {"store_refused": {"its group can write to the store": "`chmod -R go-w /store`"}},
    "tmp.read-only": temporary(writable=False),
    "tmp.not-passable": temporary(passable=False),
    "tmp.no-exec": temporary(no_exec=True),
    "tmp.network": temporary(file_system="lustre"),
    "tmp.space": temporary(free_inodes=1000),
    "machine.architecture": {"architecture": "riscv64"},
    "module-system.missing": {"module_system": ""},
    "slurm.no-srun": {**without("srun"), "slurm": True},
    "locale.not-utf8": {"encoding": "latin-1"},
    "locale.missing": {"locale_works": False},
    "clock.wrong": {"year": 1970},
    "variable.APPTAINERENV_LD_LIBRARY_PATH": variable("APPTAINERENV_LD_LIBRARY_PATH"),
    "variable.APPTAINERENV_LD_PRELOAD": variable("APPTAINERENV_LD_PRELOAD"),
    "variable.APPTAINERENV_PATH": variable("APPTAINERENV_PATH"),
    "variable.APPTAINERENV_PYTHONPATH": variable("APPTAINERENV_PYTHONPATH"),
    "variable.SINGULARITYENV_LD_LIBRARY_PATH": variable("SINGULARITYENV_LD_LIBRARY_PATH"),
    "variable.SINGULARITYENV_LD_PRELOAD": variable("SINGULARITYENV_LD_PRELOAD"),
    "variable.SINGULARITYENV_PATH": variable("SINGULARITYENV_PATH"),
    "variable.SINGULARITYENV_PYTHONPATH": variable("SINGULARITYENV_PYTHONPATH"),
    "variable.LD_LIBRARY_PATH": variable("LD_LIBRARY_PATH"),
    "variable.LD_PRELOAD": variable("LD_PRELOAD"),
    "variable.PYTHONPATH": variable("PYTHONPATH"),
    "variable.PYTHONHOME": variable("PYTHONHOME"),
    "variable.PATH": variable("PATH", "/usr/bin::."),
    "index.configuration": {"unread": {"pip's configuration cannot be read": "mend that file"}},
    "site.configuration": {"site_unread": {"unknown site `lumy`": "did you mean `lumi`?"}},
    "index.find-links": {"wheel_directories": {"/wheels": False}},
    "index.none": {"no_index": True},
    "index.no-debian": {"debian_sources": 0},
    "index.unreachable": {"unreachable": {"https://mirror.example": "timed out"}},
}


def ids(machine: Machine) -> list[str]:
    return [finding.id for finding in findings(machine)]


def test_a_sound_machine_has_no_findings() -> None:
    assert findings(SOUND) == []


@pytest.mark.parametrize("name", sorted(PROVOKED))
def test_each_is_found_alone_and_says_what_to_do(name: str) -> None:
    (finding,) = findings(replace(SOUND, **PROVOKED[name]))
    assert finding.id == name
    assert finding.verbs, "it concerns somebody"
    assert set(finding.verbs) <= set(VERBS)
    assert min(len(finding.problem), len(finding.why), len(finding.mend)) > 8
    assert finding.by in ("you", "an administrator")
    assert finding.line().count("\n") == 2


def test_no_finding_is_left_unprovoked() -> None:
    """Every id that is written in the rules is one of the table; those of programs and variables are made."""
    trees = [ast.parse(Path(str(module.__file__)).read_text()) for module in (rules, places)]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [word.value for call in calls for word in call.keywords if word.arg == "id"]
    first = [call.args[0] for call in calls if ast.unparse(call.func) in ("_finding", "yours")]
    written = {node.value for node in (*named, *first) if isinstance(node, ast.Constant)}
    assert len(written) > 25
    assert written <= PROVOKED.keys()


def test_root_needs_no_subordinate_ids() -> None:
    machine = replace(SOUND, root=True, subordinate_ids=0, user_namespaces=False, **without("newuidmap"))
    assert findings(machine) == []


def test_a_set_user_id_starter_needs_neither_fuse_nor_namespaces_to_run() -> None:
    runtime = replace(SOUND.runtime, setuid=True)
    machine = replace(SOUND, runtime=runtime, fuse=False, user_namespaces=False, **without("squashfuse"))
    assert blocked(findings(machine)) == ["build", "reproduce"]


def test_what_is_here_and_cannot_be_started_is_named() -> None:
    machine = replace(
        SOUND, **without("mksquashfs", "uv", "newuidmap"), broken={"mksquashfs": "/x/mksquashfs"}
    )
    found = {
        finding.id: finding for finding in findings(replace(machine, broken={**machine.broken, "uv": "/uv"}))
    }
    assert found["program.mksquashfs"].problem == "`/x/mksquashfs` cannot be started"
    assert found["program.mksquashfs"].by == "you"
    assert "take it out of PATH" in found["program.mksquashfs"].mend
    assert found["program.uv"].problem == "`/uv` cannot be started"
    assert "pip install --force-reinstall uv" in found["program.uv"].mend
    assert found["program.newuidmap"].problem == "`newuidmap` is not on this machine"


def test_what_making_a_layer_needs_reproduce_needs_too() -> None:
    """It builds all of an image anew."""
    for name, changes in PROVOKED.items():
        (finding,) = findings(replace(SOUND, **changes))
        needs = "build" in finding.verbs and not name.startswith(("store.", "site."))
        assert not needs or "reproduce" in finding.verbs, name


@pytest.mark.parametrize(("named", "blocks"), [(True, True), (False, False)])
def test_check_reads_a_site_that_was_named_alone(named: bool, blocks: bool) -> None:
    machine = replace(SOUND, **PROVOKED["site.configuration"], site_named=named)
    assert ("check" in blocked(findings(machine))) == blocks
    assert {"lock", "plan", "build", "test", "launch", "module"} < set(blocked(findings(machine)))


def test_without_root_somebody_else_has_to_do_it() -> None:
    def by(**changes: Any) -> str:
        return findings(replace(SOUND, **without("mmdebstrap"), **changes))[0].by

    assert by() == "an administrator"
    assert by(root=True) == "you"


def test_setup_is_offered_on_debian_alone() -> None:
    def mend(debian: bool) -> str:
        return findings(replace(SOUND, debian=debian, **without("mksquashfs")))[0].mend

    assert "make setup" in mend(True)
    assert "make setup" not in mend(False)


def test_what_blocks_comes_first_and_is_told_by_verb() -> None:
    machine = replace(SOUND, module_system="", **without("mmdebstrap"))
    found = findings(machine)
    assert ids(machine) == ["program.mmdebstrap", "module-system.missing"]
    assert blocked(found) == ["build", "fetch", "lock", "plan", "reproduce"]
    assert blocked(found, "test") == []
    assert [finding.id for finding in concerning(found, "module")] == ["module-system.missing"]


@pytest.mark.parametrize("release", [(), (4, 5), (4, 6, 1), (4, 7, 5), (4, 7, 6), (5,)])
def test_other_releases_of_mksquashfs_pack_what_they_are_given(release: tuple[int, ...]) -> None:
    assert findings(replace(SOUND, mksquashfs=release)) == []

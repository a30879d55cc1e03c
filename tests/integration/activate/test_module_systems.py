"""The same modulefile in Lmod and in Environment Modules, in bash, zsh, dash, fish and tcsh."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest

from envbuild.activate.install import install
from envbuild.activate.installed import find_installed, select, uninstall
from envbuild.activate.launcher import stamp_of
from envbuild.activate.layout import Deprecation, Layout
from envbuild.activate.model import OWN_COMMANDS, Installation
from envbuild.activate.modulefile import ascii_literal, tcl_literal
from envbuild.activate.retirement import choose_default, retire
from envbuild.spec.python_platform import MACHINES
from envbuild.system.apptainer import find
from envbuild.system.host import architecture
from tests.integration.activate.conftest import CHANGES, TOOLS_OF_IMAGE, Place, image_of
from tests.support.images import read_manifest
from tests.support.module_systems import LMOD, OTHERS, OWN_STATE, SYSTEMS, ModuleSystem

# What Lmod keeps for itself: the table of modules in pieces, the last of which it leaves when fewer suffice,
# and the values below what `pushenv` has set, once somebody had one of their own.
LMODS_OWN = ("_ModuleTable", "__LMOD_STACK_")

HOSTILE = [
    '"); os.execute("touch BAD") --',
    "]]) os.execute('touch BAD') --[[",
    '"; exec touch BAD; #',
    "} ; exec touch BAD ; {",
    "[exec touch BAD]$env(HOME)",
    "\\",
    '\\"',
    "é\u202e\x1b[31m",
    "$(touch BAD)`id`",
]

USERS_OWN = {"ENVBUILD_IMAGE": "the user's own", "PYTHONPATH": "/mine"}

both = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
every_shell = pytest.mark.parametrize("shell", OWN_STATE)


def modulefiles(active: Layout) -> Path:
    """Return what ``module use`` takes."""
    return active.root / "modulefiles"


def run(
    place: Place,
    active: Layout,
    system: ModuleSystem,
    script: str,
    *,
    shell: str = "bash",
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a script of `module` commands."""
    words = system.words(shell, f'module use "$ROOT"\n{script}')
    return place.run(*words, env={"ROOT": str(modulefiles(active)), **(env or {})})


def snapshot(name: str, shell: str) -> str:
    """Return the lines of a script that keep all that a shell has."""
    return f"/usr/bin/env -0 >{name}.env\n{{ {OWN_STATE[shell]}; }} >{name}.own"


def kept(place: Place, name: str) -> tuple[dict[str, str], str]:
    pairs = (place.work / f"{name}.env").read_text().rstrip("\0").split("\0")
    return dict(pair.split("=", 1) for pair in pairs), (place.work / f"{name}.own").read_text()


def put_plain(active: Layout) -> None:
    """Put a module beside ours that adds to PATH alone: what remains of it is the system's bookkeeping."""
    (modulefiles(active) / "plain").write_text("#%Module1.0\nprepend-path PATH /plain\n")


@both
@every_shell
def test_load_then_python_runs_inside_the_image(activate, place, system, shell):
    script = "module load small/1.0\npython -c 'import framework; print(framework.VERSION)'"
    done = run(place, activate(), system, script, shell=shell)
    assert (done.stdout, done.stderr) == ("2.13.0\n", "")


STEPS = (
    "module load small/1.0; module unload small",
    "module load small; module load small; module purge",
    "module load small/1.0; module swap small/1.0 small/2.0; module unload small",
    "module load small/1.0; module load small/2.0 || :; module purge",
    "module load plain small/1.0; module swap small small/2.0; module purge",
)


@both
@pytest.mark.parametrize(
    ("shell", "own", "steps"),
    [
        *(("bash", USERS_OWN, steps) for steps in STEPS),
        *((shell, own, STEPS[-1]) for shell, own in (("bash", {}), ("zsh", {}), ("dash", USERS_OWN))),
        *(
            pytest.param(shell, own, steps, marks=pytest.mark.slow)  # the same module file for each shell
            for shell, own in (("bash", {}), ("zsh", {}), ("dash", USERS_OWN))
            for steps in STEPS[:-1]
        ),
    ],
)
def test_unloading_leaves_everything_exactly_as_it_was(activate, place, system, shell, steps, own):
    """All variables, functions, aliases and options; what a plain module leaves is the standard."""
    active = activate()
    activate("2.0")
    put_plain(active)
    script = "\n".join(
        [
            "module load plain; module unload plain",
            snapshot("before", shell),
            "module load small/2.0",
            snapshot("loaded", shell),
            "module unload small",
            steps,
            snapshot("after", shell),
        ]
    )
    done = run(place, active, system, script, shell=shell, env=own)
    assert done.returncode == 0, done.stderr
    before, loaded, after = (kept(place, name) for name in ("before", "loaded", "after"))
    assert loaded[0]["PATH"].startswith(f"{active.home.parent}/2.0/bin:")
    image = f"{active.home.parent}/2.0/image.sif"
    assert loaded[0]["ENVBUILD_IMAGE"] == own.get("ENVBUILD_IMAGE", image), "the user's own value stays"
    assert loaded[1] == before[1], "a module brings no functions, aliases or options"
    variables = [name for name in before[0].keys() | after[0].keys() if not name.startswith(LMODS_OWN)]
    changed = {name: (before[0].get(name), after[0].get(name)) for name in variables}
    assert not {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    assert after[1] == before[1]


@both
@pytest.mark.parametrize("shell", OTHERS)
def test_so_it_is_in_fish_and_tcsh(activate, place, system, shell):
    active = activate()
    activate("2.0")
    put_plain(active)

    def keep(name: str) -> list[str]:
        return [f"/usr/bin/env -0 > {name}.env", f"{OTHERS[shell][1]} > {name}.own"]

    script = [
        f"module use {modulefiles(active)}",
        # What a plain module leaves is the standard.
        "module load plain\nmodule unload plain",
        *keep("before"),
        "module load small/1.0",
        *keep("loaded"),
        "module unload small",
        *keep("unloaded"),
        "module load small/1.0\nmodule swap small/1.0 small/2.0",
        *keep("swapped"),
        "module purge",
        *keep("purged"),
    ]
    place.run(*system.other_words(shell, "\n".join(script)))
    states = {name: kept(place, name) for name in ("before", "loaded", "unloaded", "swapped", "purged")}
    for name, version in (("loaded", "1.0"), ("swapped", "2.0")):
        assert states[name][0]["PATH"].startswith(f"{active.home.parent}/{version}/bin:")
    for name in ("unloaded", "purged"):
        before, after = (
            ({key: value for key, value in state[0].items() if not key.startswith(LMODS_OWN)}, state[1])
            for state in (states["before"], states[name])
        )
        assert after == before, name


@both
def test_swap_gives_the_other_one(activate, place, system):
    activate("2.0")
    script = "module load small/1.0\ntool a\nmodule swap small/1.0 small/2.0\ntool b"
    assert run(place, activate(), system, script).stdout == "tool of 1.0: a\ntool of 2.0: b\n"


@both
def test_of_two_versions_one_is_loaded(activate, place, system):
    """Lmod puts the second in place of the first; Environment Modules refuses the second."""
    activate("2.0")
    done = run(place, activate(), system, 'module load small/1.0\nmodule load small/2.0 || :\necho "$PATH"')
    (version,) = {"1.0", "2.0"} & set(done.stdout.splitlines()[-1].replace(":", "/").split("/"))
    assert version == ("2.0" if system is LMOD else "1.0")


@both
@pytest.mark.parametrize("other", ["python", "cuda", "other"])
def test_a_conflicting_module_stops_the_load_and_changes_nothing(activate, place, system, other):
    active = activate()
    (modulefiles(active) / other).write_text("#%Module1.0\nsetenv OTHER loaded\n")
    steps = [f"module load {other}", snapshot("before", "bash"), "module load small && exit 9"]
    done = run(place, active, system, "\n".join([*steps, snapshot("after", "bash")]))
    assert done.returncode == 0, done.stderr
    assert kept(place, "before")[0]["OTHER"] == "loaded"
    assert kept(place, "after") == kept(place, "before")


@both
def test_of_a_family_one_is_loaded(activate, place, system):
    active = activate()
    (modulefiles(active) / "sibling").write_text("#%Module1.0\nfamily envbuild\nsetenv OTHER loaded\n")
    done = run(
        place,
        active,
        system,
        'module load sibling\nmodule load small || :\necho "${OTHER-unloaded} ${LOADEDMODULES}"',
    )
    # Here, too, Lmod exchanges and Environment Modules refuses.
    assert done.stdout == ("unloaded small/1.0\n" if system is LMOD else "loaded sibling\n")


@both
def test_help_and_whatis_say_the_same_in_both(activate, place, system):
    active = activate()
    shown = run(place, active, system, "module help small/1.0 2>&1").stdout
    assert "small/1.0: a small image" in shown.splitlines()
    assert f"Tested:   run envbuild status --root {active.root} small/1.0" in shown.splitlines()
    said = run(place, active, system, "module whatis small/1.0 2>&1").stdout
    for line in ("Description: a small image", "Contents: framework/2.13.0"):
        assert line in said


@both
def test_each_lists_a_module_once(activate, place, system):
    activate("2.0")
    shown = run(place, activate(), system, "module --terse avail small 2>&1").stdout
    assert [word for word in shown.split() if "small/" in word] == ["small/1.0", "small/2.0"]


@both
def test_without_a_version_the_highest_is_loaded(activate, place, system):
    activate("2.0")
    assert run(place, activate(), system, "module load small\ntool x").stdout == "tool of 2.0: x\n"


@both
def test_the_default_that_was_chosen_is_loaded(activate, place, system):
    activate("2.0")
    active = activate(default=True)
    assert run(place, active, system, "module load small\ntool x").stdout == "tool of 1.0: x\n"
    activate("2.0", default=True)
    assert run(place, active, system, "module load small\ntool x").stdout == "tool of 2.0: x\n"


@both
@pytest.mark.parametrize("linked", [False, True])
def test_what_was_uninstalled_is_unknown_and_the_rest_is_as_before(activate, place, system, linked):
    active = activate("2.0", linked=linked)
    image = image_of(activate(linked=linked, default=True))
    (layout,) = select(place.path / "modules", "small", "1.0", every=False)
    done = uninstall(layout)
    assert (done.default, done.default_moved) == ("2.0", True)
    assert image.exists() == linked, "a linked image is not ours to remove"
    said = run(place, active, system, "module load small/1.0 && exit 9\nmodule load small\ntool x")
    assert said.stdout == "tool of 2.0: x\n", said.stderr
    assert "small/1.0" in said.stderr
    listed = run(place, active, system, "module --terse avail small 2>&1").stdout
    assert "small/2.0" in listed
    assert "small/1.0" not in listed


def move_away(image: Path, other: Path) -> None:
    image.rename(image.with_name("away.sif"))


def put_directory(image: Path, other: Path) -> None:
    image.unlink()
    image.mkdir()


# What happens to a linked image, and what `module load` says of it then.
LOST = [(move_away, "is missing"), (put_directory, "is missing")] + [
    (change, "has changed since it was installed") for change in CHANGES
]
lost = pytest.mark.parametrize(("change", "said"), LOST, ids=lambda value: getattr(value, "__name__", ""))


@both
@every_shell
def test_a_linked_image_runs_where_it_lies(activate, place, system, shell):
    active = activate(linked=True)
    done = run(place, active, system, 'module load small/1.0\ntool x\necho "$ENVBUILD_IMAGE"', shell=shell)
    assert (done.stdout, done.stderr) == (f"tool of 1.0: x\n{place.path}/images/small-1.0.sif\n", "")
    assert not list(active.home.rglob("*.sif"))


@both
@lost
def test_a_linked_image_that_is_lost_stops_the_load_and_changes_nothing(
    activate, place, images, system, change, said
):
    active = activate(linked=True)
    image = image_of(active)
    change(image, images["2.0"])
    steps = [snapshot("before", "bash"), "module load small/1.0 && exit 9", snapshot("after", "bash")]
    done = run(place, active, system, "\n".join(steps))
    assert done.returncode == 0, done.stderr
    assert told(done) == f"the image of small/1.0 {said}: {image}"
    assert kept(place, "after") == kept(place, "before")


def told(done: subprocess.CompletedProcess[str]) -> str:
    """Return what was said of an image, where a module system may have wrapped it."""
    words = " ".join(done.stderr.split())
    return words[words.index("the image of") :].split(".sif")[0] + ".sif"


@both
def test_a_node_with_another_processor_does_not_load_it_and_nothing_changes(activate, place, system):
    ours = architecture()
    (theirs,) = MACHINES.keys() - {ours}
    active = activate(processor=theirs)
    steps = [snapshot("before", "bash"), "module load small/1.0 && exit 9", snapshot("after", "bash")]
    done = run(place, active, system, "\n".join(steps))
    assert done.returncode == 0, done.stderr
    said = f"the image of small/1.0 is for {MACHINES[theirs]}, and this node is {MACHINES[ours]}"
    assert said in " ".join(done.stderr.split())
    assert kept(place, "after") == kept(place, "before")
    # Its help can be read anywhere.
    shown = run(place, active, system, "module help small/1.0 2>&1")
    assert "Contents:" in shown.stdout


@both
@every_shell
def test_every_shell_is_told_that_a_linked_image_is_gone(activate, place, images, system, shell):
    active = activate(linked=True)
    image = image_of(active)
    move_away(image, images["2.0"])
    done = run(place, active, system, "module load small/1.0 && exit 9", shell=shell)
    assert told(done) == f"the image of small/1.0 is missing: {image}"
    assert done.returncode == 0, done.stderr


@both
@pytest.mark.parametrize("shell", OTHERS)
def test_fish_and_tcsh_are_told_as_well(activate, place, images, system, shell):
    active = activate(linked=True)
    image = image_of(active)
    move_away(image, images["2.0"])
    script = (
        f"module use {modulefiles(active)}\nmodule load small/1.0\n/usr/bin/env -0 >after.env\n: >after.own\n"
    )
    done = place.run(*system.other_words(shell, script))
    assert told(done) == f"the image of small/1.0 is missing: {image}"
    assert str(active.home) not in kept(place, "after")[0]["PATH"]


@both
def test_without_its_image_a_linked_module_can_be_read_and_unloaded(activate, place, images, system):
    active = activate(linked=True)
    put_plain(active)
    image = image_of(active)
    steps = [
        "module load plain; module unload plain",
        snapshot("before", "bash"),
        "module load small/1.0",
        # With its directory: its own times stay.
        f"mv '{image.parent}' '{image.parent}.away'",
        "module help small/1.0 2>&1",
        "module whatis small/1.0 2>&1",
        "module --terse avail small 2>&1",
        "module unload small",
        snapshot("after", "bash"),
        f"mv '{image.parent}.away' '{image.parent}'",
        "module load small/1.0",
        "tool x",
    ]
    done = run(place, active, system, "\n".join(steps))
    assert (done.stderr, done.returncode) == ("", 0)
    shown = done.stdout.splitlines()
    assert f"Tested:   run envbuild status --root {active.root} small/1.0" in shown
    assert "Description: a small image" in done.stdout
    assert [line for line in shown if line.startswith("small/1.0") and not line.endswith(": a small image")]
    assert shown[-1] == "tool of 1.0: x"
    before, after = (
        ({name: value for name, value in state[0].items() if not name.startswith(LMODS_OWN)}, state[1])
        for state in (kept(place, "before"), kept(place, "after"))
    )
    assert after == before


@both
def test_a_swap_to_a_linked_image_that_is_gone_is_told(activate, place, images, system):
    activate("1.0")
    active = activate("2.0", linked=True)
    works = run(place, active, system, "module load small/1.0\nmodule swap small/1.0 small/2.0\ntool x")
    assert works.stdout == "tool of 2.0: x\n", works.stderr
    image = image_of(active)
    move_away(image, images["1.0"])
    done = run(
        place,
        active,
        system,
        'module load small/1.0\nmodule swap small/1.0 small/2.0 && exit 9\necho "$PATH"',
    )
    assert told(done) == f"the image of small/2.0 is missing: {image}"
    assert done.returncode == 0, done.stderr
    assert str(active.home) not in done.stdout


@both
def test_installed_again_a_linked_image_that_was_changed_is_loaded(activate, place, images, system):
    active = activate(linked=True)
    os.utime(image_of(active))
    assert run(place, active, system, "module load small/1.0 && exit 9").returncode == 0
    activate(linked=True)
    assert run(place, active, system, "module load small/1.0\ntool x").stdout == "tool of 1.0: x\n"


@both
def test_a_linked_image_may_lie_in_a_place_of_any_name(images, place, system):
    image = place.directory('$(touch BAD) [exit 9] it\'s "b" \\ } é') / "a `touch BAD`.sif"
    shutil.copy(images["1.0"], image)
    installation = Installation(
        root=place.path / "modules",
        image=image,
        runnable=read_manifest(image),
        commands=(*OWN_COMMANDS, *TOOLS_OF_IMAGE),
        linked=True,
        stamp=stamp_of(image),
        apptainer=find(),
    )
    active = install(installation).layout
    steps = (
        'module load small\ntool x\necho "$ENVBUILD_IMAGE"\nmodule unload small\necho "${ENVBUILD_IMAGE-}"'
    )
    works = run(place, active, system, steps, env={"LC_ALL": "C.UTF-8"})
    assert works.stdout == f"tool of 1.0: x\n{image}\n\n", works.stderr
    image.unlink()
    done = run(place, active, system, "module load small && exit 9", env={"LC_ALL": "C.UTF-8"})
    assert told(done) == f"the image of small/1.0 is missing: {image}"
    assert not list(place.path.rglob("BAD"))


@both
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(images, place, system, text):
    manifest = read_manifest(images["1.0"]).model_copy(update={"summary": text})
    installation = Installation(
        root=place.path / "modules",
        image=images["1.0"],
        runnable=manifest,
        commands=(*OWN_COMMANDS, *TOOLS_OF_IMAGE),
        apptainer=find(),
    )
    active = install(installation).layout
    script = "module help small/1.0 2>&1\nmodule load small\ntool hello"
    shown = run(place, active, system, script, env={"LC_ALL": "C.UTF-8"})
    assert shown.stdout.endswith("tool of 1.0: hello\n"), shown.stderr
    # What is unprintable came as an escape.
    assert text.split("\u202e")[0] in shown.stdout
    assert "\x1b" not in shown.stdout
    assert not list(place.path.rglob("BAD"))


@both
def test_a_retired_version_is_hidden_and_says_so_at_each_load(activate, place, system):
    """Also where a default is chosen: both stand in one file."""
    old = activate(version="1.0")
    new = activate(version="2.0")
    for default in (False, True):
        modules = {module.layout.version: module for module in find_installed(new.root)}
        if default:
            choose_default(modules["1.0"])
        retire(modules["2.0"], date(2027, 1, 31))
        done = run(
            place,
            old,
            system,
            "module -t avail small 2>&1\nmodule load small\necho $ENVBUILD_IMAGE\nmodule unload small\n"
            "module load small/2.0 2>&1\necho $ENVBUILD_IMAGE",
        )
        assert "small/1.0" in done.stdout
        offered, _, loaded = done.stdout.partition(f"{old.home}/image.sif")
        assert "small/2.0" not in offered
        assert "small/2.0 is retired, and will be uninstalled on 2027-01-31" in loaded
        assert loaded.rstrip().endswith(f"{new.home}/image.sif")


@both
def test_a_deprecated_version_is_offered_and_names_another_at_each_load(activate, place, system):
    """By the clock of the load: a modulefile holds the day alone."""
    active = activate("1.0", deprecation=Deprecation.of(date(9999, 1, 31), "small/2.0"))
    activate("2.0", deprecation=Deprecation.of(date(2020, 1, 31), "other/4"))
    script = "module avail small 2>&1\nmodule load small/1.0\nmodule swap small/1.0 small/2.0"
    done = run(place, active, system, script)
    marks = dict(re.findall(r"small/([12])\.0(?: +\(([A-Z,]*)\))?", done.stdout))
    # The mark is Lmod's; Environment Modules has no properties.
    assert [("O" in marks[version]) for version in "12"] == [False, system is LMOD], done.stdout
    messages = [line.strip() for line in done.stderr.splitlines() if "deprecated" in line]
    assert messages == [
        "small/1.0 will be deprecated on 9999-01-31: load small/2.0",
        "small/2.0 is deprecated since 2020-01-31: load other/4",
    ]


@pytest.mark.parametrize(
    "text", [*HOSTILE, "".join(map(chr, range(1, 0x180))), "\n\r\n", "\1" + "1", "{}}{\\"]
)
@pytest.mark.parametrize("quoted", [tcl_literal, lambda text: ascii_literal(tcl_literal(text))])
def test_tcl_reads_back_exactly_what_was_quoted(place, text, quoted):
    program = place.path / "program.tcl"
    # In a body, as the help is: there braces are counted before quotes are.
    program.write_text(
        f"fconfigure stdout -encoding utf-8 -translation binary\n"
        f"fconfigure stdout -encoding utf-8\n"
        f"proc body {{}} {{\nputs -nonewline {quoted(text)}\n}}\nbody\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        ["/usr/bin/tclsh", "-encoding", "utf-8", str(program)], capture_output=True, check=True
    )
    assert done.stdout.decode() == text


def test_an_environment_modules_before_5_1_loads_it_all_the_same(activate, place):
    """It knows no `family`; a stand-in, for no such release is set up here."""
    active = activate()
    program = place.path / "old.tcl"
    program.write_text(
        "interp create old\n"
        "interp eval old {proc module-info args {return 1}}\n"
        "foreach name {conflict module-whatis prepend-path setenv} {\n"
        "    interp alias old $name {} puts-call $name\n}\n"
        "proc puts-call args {puts [join $args { }]}\n"
        "set channel [open [lindex $argv 0]]\n"
        "interp eval old [read $channel]\n"
    )
    done = subprocess.run(
        ["/usr/bin/tclsh", program, active.modulefile], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == [
        f"setenv ENVBUILD_IMAGE {active.home}/image.sif",
        f"prepend-path PATH {active.home}/bin",
    ]
    assert "conflict small" in done.stdout.splitlines()

import re
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.activate.model import OWN_COMMANDS, Installation
from envbuild.activate.modulefile import ascii_literal, modulefile_text, tcl_literal, visible
from envbuild.system.apptainer import Apptainer

EXPECTED = r"""#%Module1.0
# Made by envbuild: `envbuild module install` writes this file anew.
proc ModulesHelp {} {
    puts stderr "HELP"
}
module-whatis "Name: pytorch-mpi"
module-whatis "Version: 2026.11"
module-whatis "Description: PyTorch on MPICH"
module-whatis "Keywords: envbuild, container, mpich, pytorch"
module-whatis "Contents: mpich/5.0.1, pytorch/2.13.0"
conflict "pytorch-mpi"
conflict "cuda"
conflict "python"
conflict "tensorflow"
# The path as Tcl finds it, and as it is shown: in Lmod they differ if it is not ASCII.
set image "/sw/envs/pytorch-mpi/2026.11/image.sif"
set shown "/sw/envs/pytorch-mpi/2026.11/image.sif"
# The node may have another processor; the image may be missing, or have changed, since it was installed.
if {[module-info mode load]} {
    set label "pytorch-mpi/2026.11"
    set machine "x86_64"
    if {$::tcl_platform(machine) ne $machine} {
        puts stderr "the image of $label is for $machine, and this node is $::tcl_platform(machine)"
        puts stderr "load it in a job on nodes with that processor"
        break
    }
    if {![file isfile $image]} {
        puts stderr "the image of $label is missing: $shown"
        break
    }
    file stat $image status
    if {[list $status(size) $status(mtime) $status(ctime)] ne [list "20480" "1764000000" "1764000001"]} {
        puts stderr "the image of $label has changed since it was installed: $shown"
        puts stderr "after a copy, a restore or new permissions, this compares every byte and accepts it:"
        puts stderr "envbuild module install /sw/envs/pytorch-mpi/2026.11/image.sif --root /sw"
        break
    }
}
# Environment Modules before 5.1 has neither `family` nor `extensions`.
if {[llength [info commands family]]} {
    family "envbuild"
}
if {[llength [info commands extensions]]} {
    extensions "mpich/5.0.1, pytorch/2.13.0"
}
# No pushenv: Lmod 8.6 does not give the user's value back, and Environment Modules 5.2 loses it in a swap.
# A value of the user stays; one that another module has just unset is empty here.
if {![info exists env(ENVBUILD_IMAGE)] || [lsearch -exact [list "" $image] $env(ENVBUILD_IMAGE)] >= 0} {
    setenv ENVBUILD_IMAGE $shown
}
prepend-path PATH "/sw/envs/pytorch-mpi/2026.11/bin"
"""

HELP = """pytorch-mpi/2026.11: PyTorch on MPICH

Contents: mpich/5.0.1, pytorch/2.13.0
Base:     debian-12, Python 3.11, glibc 2.36
MPI:      mpich
Image:    DIGEST
Tested:   run envbuild status --root /sw pytorch-mpi/2026.11

Commands that run inside the image:
  python, python3, pip, pip3, envbuild-exec, envbuild-shell, mpiexec, torchrun

  python train.py                 run a program
  envbuild-exec COMMAND ...       run any command of the image
  envbuild-shell                  a shell in the image
  python -m venv --system-site-packages DIR
                                  add packages of your own on top"""


@pytest.fixture
def installation(manifest):
    return Installation(
        root=Path("/sw"),
        image=Path('/my "images"/image.sif'),
        runnable=manifest(),
        commands=(*OWN_COMMANDS, "mpiexec", "torchrun"),
        stamp="20480 1764000000 1764000001 7",
        apptainer=Apptainer(program=Path("/usr/bin/apptainer"), version="1.4.5"),
    )


def test_the_whole_text(installation, manifest):
    help_text = HELP.replace("DIGEST", manifest().digest).replace("\n", "\\u000a")
    assert modulefile_text(installation) == EXPECTED.replace("HELP", help_text)
    assert modulefile_text(replace(installation)) == modulefile_text(installation)


def test_a_linked_image_is_compared_where_it_lies(installation):
    text = modulefile_text(replace(installation, linked=True, options=("--link",)))
    assert 'set image "/my \\"images\\"/image.sif"\n' in text
    assert (
        """puts stderr "envbuild module install '/my \\"images\\"/image.sif' --root /sw --link"\n""" in text
    )


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [("amd64", 'set machine "x86_64"'), ("arm64", 'set machine "aarch64"'), ("riscv64", "")],
)
def test_nodes_with_another_processor_are_told_apart_where_their_name_is_known(
    installation, manifest, architecture, expected
):
    text = modulefile_text(replace(installation, runnable=manifest(architecture=architecture)))
    assert expected in text
    assert ("tcl_platform" in text) == bool(expected)


def test_without_recipes_there_are_no_extensions(installation, manifest):
    text = modulefile_text(replace(installation, runnable=manifest(recipes={})))
    assert "    extensions" not in text
    assert '"Contents: no framework"' in text


def test_a_version_without_proof_is_said_in_the_help(installation, manifest):
    text = modulefile_text(replace(installation, runnable=manifest(unproven=("pytorch",))))
    assert "Unproven: pytorch 2.13.0: the recipe has no test result" in text
    assert "Unproven" not in modulefile_text(installation)


def test_an_image_may_bear_the_name_of_a_host_module(installation, manifest):
    text = modulefile_text(replace(installation, runnable=manifest(name="python")))
    assert re.findall("^conflict (.*)$", text, re.MULTILINE) == ['"python"', '"cuda"', '"tensorflow"']


def test_unprintable_characters_become_escapes(installation, manifest):
    assert visible("a\x1b[31m\u202eb\n") == "a\\u001b[31m\\u202eb\\u000a"
    text = modulefile_text(replace(installation, runnable=manifest(summary="a\u202eb")))
    assert all(line.isprintable() for line in text.splitlines())


def test_text_that_is_not_ascii_is_escaped_for_lmod(installation, manifest):
    text = modulefile_text(
        replace(
            installation,
            runnable=manifest(summary="M\u00fcller"),
            image=Path("/M\u00fcller.sif"),
            linked=True,
        )
    )
    assert 'module-whatis "Description: M\\u00fcller"' in text
    assert 'set image "/M\u00fcller.sif"\nset shown "/M\\u00fcller.sif"\n' in text


@given(st.text())
def test_a_tcl_word_ends_where_it_should_and_substitutes_nothing(text):
    literal = ascii_literal(tcl_literal(text))
    inner = re.sub(r"\\.", "", literal[1:-1])
    assert literal[0] == literal[-1] == '"'
    assert not set('"$[]{}\\\n\r\0') & set(inner)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ label }}", "was not quoted"),
        ("{{ missing | quote }}", "Undefined is not text"),
        ("{{ 1 | quote }}", "not text"),
    ],
)
def test_a_template_that_forgets_to_quote_is_refused(installation, monkeypatch, source, problem):
    monkeypatch.setattr(jinja2, "PackageLoader", lambda name: jinja2.DictLoader({"module.tcl.j2": source}))
    with pytest.raises(jinja2.TemplateError, match=problem):
        modulefile_text(installation)

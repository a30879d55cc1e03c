import re
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.activate.model import VerdictNote, describe
from envbuild.activate.modulefile import DIALECTS, LUA, TCL, lua_literal, render, tcl_literal

EXPECTED = r"""-- Made by envbuild: `envbuild module install` writes this file anew.
help("pytorch-mpi/2026.11: PyTorch on MPICH\
\
Contents: mpich/5.0.1, pytorch/2.13.0\
Base:     debian-12, Python 3.11, glibc 2.36\
MPI:      mpich\
Image:    DIGEST\
Tested:   passed (2 ranks)\
\
Commands that run inside the image:\
  python, python3, pip, pip3, envbuild-exec, envbuild-shell, mpiexec, torchrun\
\
  python train.py                 run a program\
  envbuild-exec COMMAND ...       run any command of the image\
  envbuild-shell                  a shell in the image\
  python -m venv --system-site-packages DIR\
                                  add packages of your own on top")
whatis("Name: pytorch-mpi")
whatis("Version: 2026.11")
whatis("Description: PyTorch on MPICH")
whatis("Keywords: envbuild, container, mpich, pytorch")
whatis("Contents: mpich/5.0.1, pytorch/2.13.0")
extensions("mpich/5.0.1, pytorch/2.13.0")
conflict("cuda")
conflict("python")
conflict("tensorflow")
family("envbuild")
pushenv("ENVBUILD_IMAGE", "/sw/my \"envs\"/image.sif")
prepend_path("PATH", "/sw/my \"envs\"/bin")
"""

EXPECTED_TCL = r"""#%Module1.0
# Made by envbuild: `envbuild module install` writes this file anew.
proc ModulesHelp {} {
    puts stderr "HELP"
}
module-whatis "Name: pytorch-mpi"
module-whatis "Version: 2026.11"
module-whatis "Description: PyTorch on MPICH"
module-whatis "Keywords: envbuild, container, mpich, pytorch"
module-whatis "Contents: mpich/5.0.1, pytorch/2.13.0"
# The module's own name, too: Environment Modules would load two versions at once.
conflict "pytorch-mpi"
conflict "cuda"
conflict "python"
conflict "tensorflow"
# What follows came with Environment Modules 5.1; Lmod knows all of it.
if {[llength [info commands family]]} {
    family "envbuild"
}
if {[llength [info commands extensions]]} {
    extensions "mpich/5.0.1, pytorch/2.13.0"
}
# No pushenv: 5.1 brought it, and in a swap 5.2 loses what it has saved.
# A value of the user's own stays; one that another module has just unset is empty here.
set name "ENVBUILD_IMAGE"
set value "/sw/my \"envs\"/image.sif"
if {![info exists env($name)] || [lsearch -exact [list "" $value] $env($name)] >= 0} {
    setenv $name $value
}
prepend-path PATH "/sw/my \"envs\"/bin"
"""


# What stands in front of `family` where the image is not a copy.
CHECK = r"""-- The image is not a copy: it may be gone, or another one, since the module was installed.
if mode() == "load" then
    local label = "pytorch-mpi/2026.11"
    local image = "/sw/my \"envs\"/image.sif"
    local found = require("lfs").attributes(image)
    if not found or found.mode ~= "file" then
        LmodError("the image of " .. label .. " is missing: " .. image)
    elseif found.size ~= tonumber("20480") or found.modification ~= tonumber("1764000000") then
        LmodError("the image of " .. label .. " has changed since it was installed: " .. image)
    end
end
"""

CHECK_TCL = r"""# The image is not a copy: it may be gone, or another one, since the module was installed.
if {[module-info mode load]} {
    set label "pytorch-mpi/2026.11"
    set image "/sw/my \"envs\"/image.sif"
    if {![file isfile $image]} {
        puts stderr "the image of $label is missing: $image"
        break
    }
    if {[file size $image] != "20480" || [file mtime $image] != "1764000000"} {
        puts stderr "the image of $label has changed since it was installed: $image"
        break
    }
}
"""


@pytest.fixture
def module(manifest):
    home = Path('/sw/my "envs"')
    note = VerdictNote(state="passed", text="2 ranks")
    return describe(
        manifest(), commands_directory=home / "bin", image=home / "image.sif", stamp="", verdict=note
    )


@pytest.fixture
def linked(module):
    return replace(module, image='/sw/my "envs"/image.sif', size="20480", time="1764000000")


def test_the_whole_text(module, manifest):
    assert render(module) == EXPECTED.replace("DIGEST", manifest().digest)


def test_the_whole_text_in_tcl(module):
    help_text = "\\u000a".join(module.help).replace('"', '\\"')
    assert render(module, TCL) == EXPECTED_TCL.replace("HELP", help_text)


def test_an_image_that_is_no_copy_is_looked_at_before_anything_is_set(module, linked):
    before = 'family("envbuild")\n'
    assert render(linked) == render(module).replace(before, CHECK + before)
    before = "# What follows came with Environment Modules 5.1"
    assert render(linked, TCL) == render(module, TCL).replace(before, CHECK_TCL + before)


def test_the_same_module_gives_the_same_text(module):
    for dialect in DIALECTS:
        assert render(module, dialect) == render(replace(module), dialect)


def test_without_extensions_there_is_no_line_for_them(module):
    assert "extensions(" not in render(replace(module, extensions=()))
    assert "extensions" not in render(replace(module, extensions=()), TCL)


@given(st.text())
def test_a_literal_ends_where_it_should(text):
    literal = lua_literal(text)
    inner = literal[1:-1].replace("\\\\", "").replace('\\"', "").replace("\\\n", "")
    assert literal[0] == literal[-1] == '"'
    assert not set('"\n\r\0') & set(inner)


@given(st.text())
def test_a_tcl_word_ends_where_it_should_and_substitutes_nothing(text):
    literal = tcl_literal(text)
    inner = re.sub(r"\\.", "", literal[1:-1])
    assert literal[0] == literal[-1] == '"'
    assert not set('"$[]{}\\\n\r\0') & set(inner)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ module.name }}", "was not quoted"),
        ("{{ module.missing | quote }}", "Undefined is no text"),
        ("{{ 1 | quote }}", "no text"),
    ],
)
def test_a_template_that_forgets_is_refused(module, monkeypatch, source, problem):
    monkeypatch.setattr(jinja2, "PackageLoader", lambda name: jinja2.DictLoader({LUA.template: source}))
    with pytest.raises(jinja2.TemplateError, match=problem):
        render(module)


def test_another_dialect_needs_a_template_and_a_quote(module, monkeypatch):
    monkeypatch.setattr(
        jinja2, "PackageLoader", lambda name: jinja2.DictLoader({"t": "name {{ module.name | quote }}"})
    )
    assert (
        render(module, replace(LUA, template="t", quote=lambda text: f"{{{text}}}")) == "name {pytorch-mpi}"
    )

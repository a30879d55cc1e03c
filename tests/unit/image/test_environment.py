"""The table of variables, and the two forms it is rendered in."""

import pytest

from envbuild.image.environment import (
    apply,
    default_environment,
    render_enroot,
    render_script,
    render_table,
)
from envbuild.image.model import Variable
from envbuild.spec.model import Prepend

Table = dict[str, str | Prepend]


def test_every_image_has() -> None:
    assert default_environment() == (
        Variable(name="LC_ALL", operation="set", value="C.UTF-8"),
        Variable(name="LD_LIBRARY_PATH", operation="prepend", value="/opt/fabric/lib:/opt/mpi/lib"),
        Variable(name="LD_PRELOAD", operation="unset"),
        Variable(name="PATH", operation="prepend", value="/opt/env/bin:/opt/mpi/bin"),
        Variable(name="PYTHONHOME", operation="unset"),
        Variable(name="PYTHONNOUSERSITE", operation="set", value="1"),
        Variable(name="PYTHONPATH", operation="unset"),
        Variable(name="VIRTUAL_ENV", operation="set", value="/opt/env"),
    )


def test_what_recipes_and_spec_add() -> None:
    recipe: Table = {"OMP": "1", "PATH": Prepend(prepend="/recipe")}
    spec: Table = {
        "PATH": Prepend(prepend="/spec"),
        "OMP": "4",
        "PYTHONNOUSERSITE": "0",
        "PYTHONPATH": "/lib",
    }
    after = apply(default_environment(recipe, spec), {"PATH": "/bin"})
    assert after == {
        "LC_ALL": "C.UTF-8",
        "LD_LIBRARY_PATH": "/opt/fabric/lib:/opt/mpi/lib",
        "OMP": "4",
        "PATH": "/spec:/recipe:/opt/env/bin:/opt/mpi/bin:/bin",
        "PYTHONNOUSERSITE": "0",
        "PYTHONPATH": "/lib",
        "VIRTUAL_ENV": "/opt/env",
    }


def test_a_locale_of_the_host_does_not_reach_an_image() -> None:
    host = {"LC_ALL": "en_US.UTF-8", "LANG": "en_US.UTF-8"}
    assert apply(default_environment(), host)["LC_ALL"] == "C.UTF-8"
    chosen = apply(default_environment({"LANG": "de_DE.UTF-8"}), host)
    assert (chosen["LANG"], chosen.get("LC_ALL")) == ("de_DE.UTF-8", None)


def test_a_literal_path_keeps_the_image_in_front() -> None:
    after = apply(default_environment({"PATH": "/mine:/bin"}), {"PATH": "/usr/bin"})
    assert after["PATH"] == "/opt/env/bin:/opt/mpi/bin:/mine:/bin"


def test_the_order_of_a_file_does_not_matter() -> None:
    one: Table = {"B": "1", "A": Prepend(prepend="x")}
    assert default_environment(one) == default_environment({name: one[name] for name in reversed(one)})


def test_apply_leaves_its_argument_alone() -> None:
    before = {"PATH": "", "PYTHONHOME": "/x", "LD_LIBRARY_PATH": "/host"}
    after = apply(default_environment(), before)
    assert before == {"PATH": "", "PYTHONHOME": "/x", "LD_LIBRARY_PATH": "/host"}
    # No colon behind where there was nothing: an empty element means the working directory.
    assert after["PATH"] == "/opt/env/bin:/opt/mpi/bin"
    assert after["LD_LIBRARY_PATH"] == "/opt/fabric/lib:/opt/mpi/lib:/host"
    assert "PYTHONHOME" not in after


def test_the_script() -> None:
    table = (
        Variable(name="A", operation="set", value='it\'s $HOME `x` \\ "q"'),
        Variable(name="B", operation="prepend", value="/b"),
        Variable(name="C", operation="unset"),
        Variable(name="D", operation="prepend", value=""),
    )
    assert render_script(table) == (
        "#!/bin/sh\n"
        "A='it'\"'\"'s $HOME `x` \\ \"q\"'\n"
        "export A\n"
        "B='/b'\"${B:+:${B}}\"\n"
        "export B\n"
        "C=''\n"
        "export C\n"
    )


def test_tables_of_runtimes_that_take_quotes_off() -> None:
    values: Table = {"SINGLE": "'a'", "DOUBLE": '"a"', "WITHIN": "it's", "PYTHONPATH": "/lib"}
    charliecloud, enroot = (render(default_environment(values)) for render in (render_table, render_enroot))
    assert charliecloud == (
        'DOUBLE="a"\n'
        "LC_ALL=C.UTF-8\n"
        "LD_LIBRARY_PATH=/opt/fabric/lib:/opt/mpi/lib\n"
        "LD_PRELOAD=\n"
        "PATH=/opt/env/bin:/opt/mpi/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        "PYTHONHOME=\n"
        "PYTHONNOUSERSITE=1\n"
        "PYTHONPATH=/lib\n"
        "SINGLE=''a''\n"
        "VIRTUAL_ENV=/opt/env\n"
        "WITHIN=it's\n"
    )
    assert enroot == charliecloud.replace('DOUBLE="a"', "DOUBLE='\"a\"'")


def test_what_no_variable_can_be() -> None:
    with pytest.raises(ValueError, match="`A;id` is not a name of an environment variable"):
        Variable(name="A;id", operation="set")
    with pytest.raises(ValueError, match="a control character or a line break"):
        Variable(name="A", operation="set", value="\0")

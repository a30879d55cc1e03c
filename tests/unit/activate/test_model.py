from pathlib import Path

import pytest

from envbuild.activate.model import OWN_COMMANDS, check_version, choose_commands
from envbuild.errors import EnvbuildError


@pytest.fixture
def host(tmp_path: Path) -> list[Path]:
    """Directories with programs, as of a host."""
    directories = [tmp_path / "usr/bin", tmp_path / "bin"]
    for directory, names in zip(
        directories, (["git", "python", "mpiexec", "jupyter"], ["date"]), strict=True
    ):
        directory.mkdir(parents=True)
        for name in names:
            (directory / name).write_text("#!/bin/sh\n")
    (directories[0] / "vim").symlink_to("/etc/alternatives/nothing")
    return directories


def test_commands_are_ours_then_the_images_each_once(manifest, host):
    """Ours and those that start ranks may stand before the host's."""
    commands = ("torchrun", "python", "mpiexec")
    assert choose_commands(manifest(commands=commands), directories=host) == (
        (*OWN_COMMANDS, "torchrun", "mpiexec"),
        {},
    )


@pytest.mark.redteam
def test_a_command_that_only_the_image_names_has_no_wrapper(manifest, host):
    names = ("git", "curl", "rsync", "vim", "date", "uname", "which", "crontab", "srun", "fi_info", "mpiexec")
    commands, left_out = choose_commands(manifest(commands=names), of_recipes={"fi_info"}, directories=host)
    assert commands == (*OWN_COMMANDS, "fi_info", "mpiexec")
    assert left_out == {
        "git": f"it would hide the host's own `{host[0]}/git`",
        "curl": "no recipe of this installation has it; `--command curl` adds one",
        "rsync": "no recipe of this installation has it; `--command rsync` adds one",
        "vim": f"it would hide the host's own `{host[0]}/vim`",
        "date": f"it would hide the host's own `{host[1]}/date`",
        "uname": "no recipe of this installation has it; `--command uname` adds one",
        "which": "no recipe of this installation has it; `--command which` adds one",
        "crontab": "no recipe of this installation has it; `--command crontab` adds one",
        "srun": "it would hide the host's own `srun`",
    }


def test_neither_a_recipe_nor_the_user_hides_a_program_of_the_host(manifest, host):
    commands, left_out = choose_commands(
        manifest(commands=("jupyter", "jupyter-lab")), of_recipes={"jupyter", "jupyter-lab"}, directories=host
    )
    assert commands == (*OWN_COMMANDS, "jupyter-lab")
    assert left_out == {"jupyter": f"it would hide the host's own `{host[0]}/jupyter`"}
    with pytest.raises(EnvbuildError) as caught:
        choose_commands(manifest(), of_user=("git", "apptainer", "mpirun", "fine"), directories=host)
    assert [error.problem for error in caught.value.each()] == [
        f"`git` cannot have a wrapper: it would hide the host's own `{host[0]}/git`",
        "`apptainer` cannot have a wrapper: it would hide the host's own `apptainer`",
    ]


def test_what_the_user_names_has_a_wrapper_known_or_not(manifest, host):
    commands, left_out = choose_commands(
        manifest(commands=("curl", "uname")), of_user=("curl", "mine"), directories=host
    )
    assert commands == (*OWN_COMMANDS, "curl", "mine")
    assert list(left_out) == ["uname"]


def test_on_the_hosts_mpi_its_launcher_starts_ranks(manifest, host):
    commands, left_out = choose_commands(
        manifest(commands=("mpiexec", "mpirun", "torchrun")), on_host_mpi=True, directories=host
    )
    assert commands == (*OWN_COMMANDS, "torchrun")
    assert list(left_out) == ["mpiexec", "mpirun"]


@pytest.mark.redteam
@pytest.mark.parametrize(
    "command", ["apptainer", "launcher", "stat", "ssh", "sudo", "srun", "module", "squashfuse_ll"]
)
def test_some_programs_of_a_host_are_hidden_nowhere(manifest, tmp_path, command):
    assert choose_commands(manifest(commands=(command,)), of_recipes={command}, directories=[tmp_path]) == (
        OWN_COMMANDS,
        {command: f"it would hide the host's own `{command}`"},
    )


@pytest.mark.redteam
@pytest.mark.parametrize("command", ["sh", "ls", "cat"])
def test_this_hosts_programs_are_looked_at(manifest, command):
    _, left_out = choose_commands(manifest(commands=(command,)), of_recipes={command})
    assert list(left_out) == [command]


@pytest.mark.parametrize("version", ["default", "1.0.lua"])
def test_a_version_that_module_systems_read_otherwise_is_refused(version):
    with pytest.raises(EnvbuildError, match="means something else to module systems"):
        check_version(version)

from pathlib import Path

import pytest

from envbuild.activate.model import Installation, check_names
from envbuild.errors import EnvbuildError


def test_commands_are_ours_then_the_images_each_once(manifest):
    installation = Installation(
        root=Path("/sw"),
        image=Path("/image.sif"),
        manifest=manifest(commands=("torchrun", "python")),
        apptainer=Path("/usr/bin/apptainer"),
    )
    assert installation.commands == (
        "python", "python3", "pip", "pip3", "envbuild-exec", "envbuild-shell", "torchrun",
    )  # fmt: skip


@pytest.mark.redteam
@pytest.mark.parametrize(
    "command", ["sh", "apptainer", "launcher", "stat", "ssh", "sudo", "srun", "ls", "module", "squashfuse_ll"]
)
def test_a_command_of_the_host_is_refused(manifest, command):
    with pytest.raises(EnvbuildError, match="it would hide the host's own") as caught:
        check_names(manifest(commands=(command,)), "1")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("version", ["default", "1.0.lua"])
def test_a_version_that_module_systems_read_otherwise_is_refused(manifest, version):
    with pytest.raises(EnvbuildError, match="means something else to module systems"):
        check_names(manifest(), version)


def test_all_unfit_names_are_reported_at_once(manifest):
    with pytest.raises(EnvbuildError) as caught:
        check_names(manifest(commands=("stat", "sh")), "default")
    assert [error.problem for error in caught.value.each()] == [
        "the command `stat` cannot have a wrapper: it would hide the host's own",
        "the command `sh` cannot have a wrapper: it would hide the host's own",
        "the version `default` means something else to module systems",
    ]

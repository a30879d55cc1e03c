from pathlib import Path

import pytest

from envbuild.activate.model import VerdictNote, command_names, describe, visible
from envbuild.errors import EnvbuildError

PASSED = VerdictNote(state="passed", text="2 ranks")


def module_of(manifest, verdict=PASSED, stamp: str = ""):
    return describe(
        manifest,
        commands_directory=Path("/sw/bin"),
        image=Path("/sw/image.sif"),
        stamp=stamp,
        verdict=verdict,
    )


def test_what_a_module_says(manifest):
    module = module_of(manifest())
    assert (module.name, module.version, module.family) == ("pytorch-mpi", "2026.11", "envbuild")
    assert module.conflicts == ("cuda", "python", "tensorflow")
    assert module.extensions == ("mpich/5.0.1", "pytorch/2.13.0")
    assert module.variables == (("ENVBUILD_IMAGE", "/sw/image.sif"),)
    assert (module.image, module.size, module.time) == ("", "", ""), "a copy is compared with nothing"
    assert "Description: PyTorch on MPICH" in module.whatis
    assert "Tested:   passed (2 ranks)" in module.help


def test_an_image_that_is_no_copy_is_compared_when_the_module_is_loaded(manifest):
    module = module_of(manifest(), stamp="20480 1764000000")
    assert (module.image, module.size, module.time) == ("/sw/image.sif", "20480", "1764000000")
    assert module.variables == (("ENVBUILD_IMAGE", "/sw/image.sif"),)


def test_an_image_may_bear_the_name_of_a_host_module(manifest):
    assert module_of(manifest(name="python")).conflicts == ("cuda", "tensorflow")


def test_commands_are_ours_then_the_images_each_once(manifest):
    assert command_names(manifest(commands=("torchrun", "python"))) == (
        "python", "python3", "pip", "pip3", "envbuild-exec", "envbuild-shell", "torchrun",
    )  # fmt: skip


@pytest.mark.redteam
@pytest.mark.parametrize(
    "command", ["sh", "apptainer", "launcher", "stat", "ssh", "sudo", "srun", "ls", "module", "squashfuse_ll"]
)
def test_a_command_of_the_host_is_refused(manifest, command):
    with pytest.raises(EnvbuildError, match="it would hide the host's own") as caught:
        module_of(manifest(commands=(command,)))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("version", ["default", "1.0.lua"])
def test_a_version_that_module_systems_read_otherwise_is_refused(manifest, version):
    with pytest.raises(EnvbuildError, match="means something else to module systems"):
        module_of(manifest(version=version))


def test_all_of_them_are_told_at_once(manifest):
    with pytest.raises(EnvbuildError) as caught:
        module_of(manifest(version="default", commands=("stat", "sh")))
    assert [error.problem for error in caught.value.each()] == [
        "the command `stat` cannot have a wrapper: it would hide the host's own",
        "the command `sh` cannot have a wrapper: it would hide the host's own",
        "the version `default` means something else to module systems",
    ]


def test_unprintable_characters_become_escapes(manifest):
    assert visible("a\x1b[31m\u202eb\n") == "a\\u001b[31m\\u202eb\\u000a"
    module = module_of(manifest(summary="a\u202eb"), VerdictNote(state="failed", text="x\ny"))
    assert all(line.isprintable() for line in (*module.help, *module.whatis))


@pytest.mark.parametrize(
    ("state", "warns"),
    [("passed", False), ("failed", True), ("unproven", True), ("absent", True), ("stale", True)],
)
def test_all_but_a_pass_is_a_warning(state, warns):
    assert (VerdictNote(state=state).warning is not None) == warns

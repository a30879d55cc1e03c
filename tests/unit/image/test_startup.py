"""The files through which Apptainer starts an image, as text."""

import json

from envbuild.image import startup
from tests.support.trees import manifest


def test_the_base_carries() -> None:
    files = startup.base_files()
    assert {path: mode for path, (_, mode) in files.items()} == {
        "/.singularity.d/env/99-base.sh": 0o755,
        "/.singularity.d/env/99-runtimevars.sh": 0o755,
    }
    assert startup.EMPTY_DIRECTORIES == ("/.singularity.d/libs",)


def test_the_top_carries() -> None:
    files = startup.top_files(manifest())
    assert {path: mode for path, (_, mode) in files.items()} == {
        "/.singularity.d/Singularity": 0o644,
        "/.singularity.d/labels.json": 0o644,
        "/.singularity.d/runscript": 0o755,
        "/.singularity.d/runscript.help": 0o644,
        "/.singularity.d/startscript": 0o755,
        "/.singularity.d/test": 0o755,
        "/ch/environment": 0o644,
        "/etc/environment": 0o644,
    }
    assert files["/.singularity.d/test"][0] == (
        '#!/bin/sh\nexec /usr/bin/python3 -I /.envbuild/judge.py test "$@"\n'
    )


def test_base_and_top_own_different_paths() -> None:
    assert not set(startup.base_files()) & {*startup.top_files(manifest()), startup.ENVIRONMENT}


def test_labels_say_what_it_is_made_from() -> None:
    said = startup.labels(manifest(mpi="", summary="", labels={"envbuild.base": "mine"}))
    assert said == {
        "envbuild.base": "mine",
        "envbuild.lock": "sha256:" + "ab" * 32,
        "envbuild.python": "3.11",
        "envbuild.recipe.mpich": "5.0.1",
        "envbuild.recipe.pytorch": "2.13.0",
        "org.label-schema.build-arch": "amd64",
        "org.opencontainers.image.title": "demo",
        "org.opencontainers.image.version": "2026.11",
    }
    assert list(said) == sorted(said)


def test_definition_text() -> None:
    assert startup.definition_text(manifest(mpi="", recipes={})) == (
        "Bootstrap: scratch\n"
        "\n"
        "# Made by envbuild from a lock, not from a definition file; this text says from what.\n"
        "# The lock travels in the image: `envbuild inspect IMAGE.sif` shows it.\n"
        "# name: demo\n"
        "# version: 2026.11\n"
        "# base: debian-12\n"
        "# python: 3.11\n"
        "# mpi: none\n"
        "# recipes: none\n"
        f"# lock: sha256:{'ab' * 32}\n"
    )


def test_inspection_says_what_the_files_say() -> None:
    one = manifest()
    attributes = json.loads(startup.inspection(one))["data"]["attributes"]
    files = startup.top_files(one)
    assert attributes["runscript"] == files["/.singularity.d/runscript"][0]
    assert attributes["test"] == files["/.singularity.d/test"][0]
    assert attributes["deffile"] == files["/.singularity.d/Singularity"][0]
    assert attributes["labels"] == json.loads(files["/.singularity.d/labels.json"][0])
    assert list(attributes["environment"]) == [startup.ENVIRONMENT]


def test_help_names_the_commands() -> None:
    assert "Commands: torchrun\n" in startup.top_files(manifest())["/.singularity.d/runscript.help"][0]
    assert "Commands" not in startup.top_files(manifest(commands=()))["/.singularity.d/runscript.help"][0]

"""Runtimes other than Apptainer start an exported image: its files, its variables, its own command."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from envbuild.image.environment import DEFAULT_PATH, apply
from envbuild.image.model import Variable
from envbuild.system import squashfs
from envbuild.workflows.export import export_image
from tests.integration.image.conftest import LOCK, Sample
from tests.support import trees
from tests.support.other_runtimes import FORMATS, Run, started_by, unpacked
from tests.support.podman import podman, podman_home

RUNTIMES = sorted(FORMATS)
HELLO = '#!/bin/sh\necho "hello $*"\n'


def made(sample: Sample, room: Path, environment: tuple[Variable, ...], hello: str = HELLO) -> Path:
    """Write the sample with other variables, another program and a shell, which its own command starts."""
    top = room / "top"
    trees.top_tree(top, trees.manifest_of(LOCK, environment=environment))
    shell = "#!/bin/sh\nexec /bin/sh\n"
    trees.write(top, {"/bin/bash": (shell, 0o755), "/opt/env/bin/hello": (hello, 0o755)})
    squashfs.make(top, room / "top.squashfs")
    layers = {**sample.layers, "metadata": room / "top.squashfs"}
    trees.write_image(room / "image.sif", layers, lock=LOCK, environment=environment)
    return room / "image.sif"


@contextmanager
def started(runtime: str, image: Path, room: Path) -> Iterator[Run]:
    """Export an image for a runtime, and yield what starts it."""
    exported = room / "exported"
    export_image(image, FORMATS[runtime], exported, lambda _: None)
    (room / "work").mkdir()
    with started_by(runtime, exported, room / "work") as run:
        yield run


def missing(expected: Mapping[str, str], output: str) -> set[str]:
    """Return the names of variables that a process lacks, by its `env`."""
    variables = dict(line.partition("=")[::2] for line in output.splitlines())
    return {name for name, value in expected.items() if value and variables.get(name) != value}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_starts_the_image(runtime: str, sample: Sample, room: Path) -> None:
    environment = sample.manifest.environment
    with started(runtime, made(sample, room, environment), room) as run:
        assert missing(apply(environment, {"PATH": DEFAULT_PATH}), run("env")) == set()
        assert run("hello", "you") == "hello you\n"
        if runtime != "charliecloud":  # it has no command of an image
            assert run(script="hello from $VIRTUAL_ENV") == "hello from /opt/env\n"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_variables_that_are_missing_and_a_layer_that_was_changed_are_seen(
    runtime: str, sample: Sample, room: Path
) -> None:
    image = made(sample, room, (), HELLO.replace("hello", "bye"))
    with started(runtime, image, room) as run:
        expected = apply(sample.manifest.environment, {})
        assert {"LD_LIBRARY_PATH", "GREETING", "PATH"} <= missing(expected, run("env"))
        assert run("/opt/env/bin/hello", "you") == "bye you\n"


def test_an_archive_that_was_changed_is_refused(sample: Sample, room: Path) -> None:
    archive = room / "archive"
    export_image(sample.image, "oci", archive, lambda _: None)
    with tarfile.open(archive) as tar:
        layer = max(tar, key=lambda member: member.size)
    content = bytearray(archive.read_bytes())
    content[layer.offset_data + 4] ^= 1  # the time in the header of gzip: the layer can be unpacked
    archive.write_bytes(content)
    with (
        podman_home() as home,
        pytest.raises(AssertionError, match=f"Digest did not match.*{Path(layer.name).name}"),
    ):
        podman(home, "load", "--quiet", "--input", archive)
    with pytest.raises(ValueError, match=f"{Path(layer.name).name} is another content"):
        unpacked(archive, room / "root")

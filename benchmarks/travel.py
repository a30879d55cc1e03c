"""Sends images through registries, compares them bit for bit, and writes docs/reference/benchmarks.md.

    make travel                                  # about five minutes
    make travel ARGS="--images 5"

The registries run on this machine: Debian's (`distribution`) with TLS and a login or tokens, and that of the
tests, whose transfers break off. envbuild is installed from its wheel, and pulls as another user, too. The
exit code is 1 if an image does not come back as it was, or too much travels.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import page, results
from benchmarks.toolkits import ROOT, say
from tests.support import users
from tests.support.distribution import Authentication, Distribution, serving_distribution
from tests.support.installed import install
from tests.support.podman import podman, podman_home
from tests.support.registry import serving

EXAMPLE = "pytorch-mpi"
# Small packages of Python alone, one for each image of a family.
PACKAGES = (
    *("tabulate", "humanize", "termcolor", "toolz", "pyparsing", "sortedcontainers", "colorama", "wcwidth"),
    *("inflection", "idna", "schedule", "xmltodict", "zipp", "more-itertools", "cachetools", "blinker"),
    *("itsdangerous", "iniconfig", "pluggy", "six"),
)
# Of the bytes of their distinct layers, what the registry may hold of a family of images.
MOST_OF_LAYERS = 1.1
BUILDS = 3
# User and group id of the account without rights on Debian.
NOBODY = 65534


@dataclass
class Road:
    """The working directory, and what was found on the way."""

    place: Path
    command: Path
    rows: dict[str, results.Row] = field(default_factory=dict)

    def run(self, *argv: str | Path, env: dict[str, str] | None = None) -> str:
        """Run a command, which must succeed, and return its output."""
        done = subprocess.run(
            argv,
            cwd=self.place,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            say(done.stderr)
            sys.exit(f"{' '.join(map(str, argv))}: exit code {done.returncode}")
        return done.stdout

    def envbuild(self, *words: str | Path, env: dict[str, str] | None = None) -> dict[str, Any]:
        """Run envbuild with ``--json``, and return what it printed."""
        data: dict[str, Any] = json.loads(self.run(self.command, *words, "--json", env=env))
        return data

    @contextmanager
    def step(self, name: str, tool: str) -> Iterator[results.Row]:
        """Time a step; the block sets the bytes that travelled."""
        row: results.Row = {"tool": tool, "bytes": 0, "seconds": 0.0, "problems": []}
        started = time.monotonic()
        yield row
        row["seconds"] = round(time.monotonic() - started, 2)
        self.rows[f"{name}, {tool}"] = row
        say(f"{name}, {tool}: {row['bytes'] / 1e6:.1f} MB in {row['seconds']} s")

    def compare(self, row: results.Row, image: Path, returned: Path) -> None:
        """Compare two files, and remove the second."""
        if not filecmp.cmp(image, returned, shallow=False):
            row["problems"].append(f"{returned.name} is not {image.name}")
        returned.unlink()


def prepare(road: Road) -> tuple[Path, Path]:
    """Build an image with PyTorch, and extend it by a package of 143 kB."""
    (road.place / f"{EXAMPLE}.yaml").write_bytes((ROOT / f"examples/{EXAMPLE}.yaml").read_bytes())
    road.envbuild("build", f"{EXAMPLE}.yaml")
    image, more = road.place / f"{EXAMPLE}.sif", road.place / "more.sif"
    road.envbuild("extend", image, PACKAGES[0], "-o", more)
    return image, more


def parts(road: Road, registry: Distribution, image: Path, more: Path) -> None:
    """Push and pull by parts, and the same by Apptainer as a whole."""
    name, env = f"{registry.host}/team/parts", registry.environment
    for title, file, tag in (
        ("first image", image, "1"),
        ("the same again", image, "1"),
        ("one package more", more, "2"),
    ):
        with road.step(f"push: {title}", "envbuild") as row:
            row["bytes"] = road.envbuild("push", file, f"{name}:{tag}", env=env)["sent_bytes"]
    for title, extra in (("nothing here", ()), ("the older image here", ("--have", image))):
        with tempfile.TemporaryDirectory(dir=road.place) as store:
            words = ["pull", f"{name}:2", "-o", "got.sif", "--store", Path(store) / "store", *extra]
            with road.step(f"pull: {title}", "envbuild") as row:
                row["bytes"] = road.envbuild(*words, env=env)["fetched_bytes"]
            road.compare(row, more, road.place / "got.sif")
    # Apptainer reads logins of Docker, and certificates as Go does.
    login = ("--authfile", registry.logins)
    whole = f"oras://{registry.host}/team/whole"
    for title, file, tag in (("first image", image, "1"), ("one package more", more, "2")):
        before = registry.stored_bytes()
        with road.step(f"push: {title}", "apptainer") as row:
            road.run("apptainer", "push", *login, file, f"{whole}:{tag}", env=env)
            row["bytes"] = registry.stored_bytes() - before
    with road.step("pull: nothing here", "apptainer") as row:
        own = {**env, "APPTAINER_CACHEDIR": str(road.place / "cache")}
        road.run("apptainer", "pull", *login, "got.sif", f"{whole}:2", env=own)
        row["bytes"] = more.stat().st_size
    road.compare(row, more, road.place / "got.sif")


def oci(road: Road, registry: Distribution, image: Path, more: Path) -> None:
    """Push as OCI images, which podman pulls and whose digests it compares."""
    name, env = f"{registry.host}/team/oci", registry.environment
    for title, file, tag in (("first image", image, "1"), ("one package more", more, "2")):
        with road.step(f"push: {title}", "envbuild, as OCI") as row:
            pushed = road.envbuild("push", file, f"{name}:{tag}", "--format", "oci", env=env)
            row["bytes"] = pushed["sent_bytes"]
    login = ("--authfile", registry.logins, "--tls-verify=false")
    with podman_home() as home:
        with road.step("pull: nothing here", "podman") as row:
            row["bytes"] = pushed["size_bytes"]
            podman(home, "pull", "--quiet", *login, f"{name}:2")
        (shown,) = json.loads(podman(home, "image", "inspect", f"{name}:2"))
        if shown["Digest"] != pushed["digest"]:
            row["problems"].append("podman sees another digest")


def layers(road: Road, registry: Distribution, image: Path) -> None:
    """Push the finished layers, signed, and build the image from them with an empty store."""
    name, key = f"{registry.host}/team/layers", road.place / "layers.key"
    road.envbuild("sign", "--new-key", key, env={"ENVBUILD_KEY_PASSPHRASE": ""})
    with road.step("push: finished layers", "envbuild") as row:
        words: list[str | Path] = ["build", f"{EXAMPLE}.yaml", "--push-layers", name, "--key", key]
        row["bytes"] = road.envbuild(*words, env=registry.environment)["pushed"]["sent_bytes"]
    site = road.place / "centre/envbuild/site.yaml"
    site.parent.mkdir(parents=True)
    site.write_text(f"name: centre\nupstreams: [{{registry: '{name}', trust: {key}.pub}}]\n")
    env = {**registry.environment, "XDG_CONFIG_HOME": str(road.place / "centre")}
    times = []
    for _ in range(BUILDS):
        with tempfile.TemporaryDirectory(dir=road.place) as store:
            words = [
                "build",
                f"{EXAMPLE}.yaml",
                "--locked",
                "-o",
                "got.sif",
                "--store",
                Path(store) / "store",
            ]
            with road.step("build: an empty store, finished layers", "envbuild") as row:
                road.envbuild(*words, env=env)
                row["bytes"] = image.stat().st_size
            times.append(row["seconds"])
            road.compare(row, image, road.place / "got.sif")
    row["seconds"] = statistics.median(times)


def family(road: Road, registry: Distribution, image: Path, count: int) -> None:
    """Push images that differ in one package each, and pull each beside the first."""
    name, env = f"{registry.host}/team/family", registry.environment
    before = registry.stored_bytes()
    layers: dict[str, int] = {}
    with road.step(f"{count} images with PyTorch, one package each", "envbuild") as row:
        for number, package in enumerate(PACKAGES[:count]):
            one = road.place / "one.sif"
            road.envbuild("extend", image, package, "-o", one)
            road.envbuild("push", one, f"{name}:{number}", env=env)
            described = road.envbuild("inspect", one)["file_system"]
            layers |= {layer["data"]: layer["size_bytes"] for layer in described["layers"]}
            with tempfile.TemporaryDirectory(dir=road.place) as store:
                words: list[str | Path] = ["pull", f"{name}:{number}", "-o", "got.sif", "--have", image]
                road.envbuild(*words, "--store", Path(store) / "store", env=env)
            road.compare(row, one, road.place / "got.sif")
            one.unlink()
        row["bytes"] = registry.stored_bytes() - before
    distinct = sum(layers.values())
    row["of_layers"] = round(row["bytes"] / distinct, 3)
    say(f"the registry holds {row['of_layers']} times the bytes of their distinct layers")
    if row["bytes"] > MOST_OF_LAYERS * distinct:
        row["problems"].append(f"the registry holds {row['of_layers']} times the bytes of their layers")


def elsewhere(road: Road, image: Path) -> None:
    """Send the image through other registries; another user pulls it."""
    kinds: tuple[tuple[str, Authentication, bool], ...] = (
        ("tokens, TLS", "token", True),
        ("no login, no TLS", "none", False),
    )
    for kind, authentication, tls in kinds:
        with (
            tempfile.TemporaryDirectory(dir=road.place) as directory,
            serving_distribution(Path(directory), authentication=authentication, tls=tls) as registry,
        ):
            through(road, f"Debian's registry, {kind}", registry.host, image, registry.environment)
    with serving() as broken:
        broken.cut_after = [1_000_000, 30_000_000] * 4
        through(road, "transfers that break off", broken.host, image, {})
    with tempfile.TemporaryDirectory(dir="/var/tmp") as shared, serving() as registry:
        theirs = Path(shared)
        name = f"{registry.host}/team/other"
        with road.step("push and pull: by two users", "envbuild") as row:
            row["bytes"] = road.envbuild("push", image, name)["sent_bytes"]
            become = users.becoming(NOBODY, NOBODY) if os.geteuid() == 0 else []
            theirs.chmod(0o777)
            words: list[str | Path] = ["pull", name, "-o", theirs / "got.sif", "--store", theirs / "store"]
            road.run(*become, road.command, *words, env={"HOME": str(theirs)})
        road.compare(row, image, theirs / "got.sif")


def through(road: Road, title: str, host: str, image: Path, env: dict[str, str]) -> None:
    """Push and pull an image."""
    with (
        tempfile.TemporaryDirectory(dir=road.place) as store,
        road.step(f"push and pull: {title}", "envbuild") as row,
    ):
        row["bytes"] = road.envbuild("push", image, f"{host}/team/one", env=env)["sent_bytes"]
        road.envbuild("pull", f"{host}/team/one", "-o", "got.sif", "--store", Path(store) / "store", env=env)
        road.compare(row, image, road.place / "got.sif")


def main() -> int:
    """Send the images, record what was found, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--images", type=int, default=len(PACKAGES), choices=range(1, len(PACKAGES) + 1), metavar="N"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="envbuild-travel-", dir="/var/tmp") as place:
        # Another user starts the command.
        Path(place).chmod(0o755)
        road = Road(Path(place), install(Path(place) / "tool"))
        os.environ["ENVBUILD_STORE"] = f"{place}/store"
        image, more = prepare(road)
        (road.place / "registry").mkdir()
        with serving_distribution(road.place / "registry") as registry:
            parts(road, registry, image, more)
            oci(road, registry, image, more)
            layers(road, registry, image)
        (road.place / "family").mkdir()
        with serving_distribution(road.place / "family") as registry:
            family(road, registry, image, options.images)
        elsewhere(road, image)
    for name, row in road.rows.items():
        results.record("travel", name, row)
        for problem in row["problems"]:
            say(f"{name}: {problem}")
    page.write()
    return int(any(row["problems"] for row in road.rows.values()))


if __name__ == "__main__":
    sys.exit(main())

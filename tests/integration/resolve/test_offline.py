"""No command with `--offline` opens a connection, whatever is here and whatever is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from envbuild.cli.main import app
from tests.support.mirrors import Mirror, digest, mirror, write_index, write_wheel
from tests.support.torture.ground import Ground

# A command → its arguments; a command that gains `--offline` must be added.
ARGUMENTS: dict[tuple[str, ...], list[str]] = {
    ("build",): ["web.yaml", "-o", "out.sif"],
    ("explain",): ["web.yaml"],
    ("extend",): ["web.sif", "--python", "gamma", "-o", "out.sif"],
    ("lock",): ["web.yaml"],
    ("plan",): ["web.yaml"],
    ("recipes", "new"): ["alpha", "1.0"],
    ("reproduce",): ["web.sif"],
}
WEB = """\
name: web
version: "1"
base: tiny
packages: {{python: [alpha, {{wheel: {address}/{own}, sha256: {sha256}}}]}}
"""
# All that is never here: Debian packages, commits, a base's own packages.
NOTHING_HERE = """\
name: web
version: "1"
base: debian-12
mpi: mpich
packages:
  system: [less]
  python: [beta, {{name: tool, git: {address}/tool.git, commit: {commit}}}]
  from_source: [gamma]
"""


def with_option(command: Any, option: str, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command that has an option."""
    if any(option in parameter.opts for parameter in command.params):
        yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from with_option(inner, option, (*words, name))


COMMAND = typer.main.get_command(app)
KEPT = [words for words in with_option(COMMAND, "--from") if words in ARGUMENTS]


@dataclass
class Web:
    """A spec whose packages come from a server, its image, and the files that were fetched for both."""

    ground: Ground
    server: Mirror
    place: Path
    store: Path

    def desk(self, name: str, spec: str = "") -> Path:
        """Make a directory with the spec and the image, without a lock."""
        desk = self.place / name
        desk.mkdir()
        (desk / "web.yaml").write_text(spec or (self.place / "web.yaml").read_text())
        shutil.copy(self.place / "web.sif", desk)
        return desk

    def run(self, words: Sequence[str | Path], desk: Path, *, store: Path, network: bool = True) -> Any:
        config = {"XDG_CONFIG_HOME": str(self.place / "config"), "ENVBUILD_STORE": str(store)}
        # All ways out lead to the server, which counts.
        ways = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        proxies = {} if network else dict.fromkeys(ways, self.server.address)
        env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        return subprocess.run(
            [self.ground.command, *words],
            cwd=desk,
            env={**env, **config, **proxies},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )


@pytest.fixture(scope="module")
def web(ground: Ground) -> Iterator[Web]:
    place = ground.place / "web"
    with mirror(place / "served") as server:
        wheels = [write_wheel(place / "wheels", name, "1.0") for name in ("alpha", "beta", "gamma")]
        own = write_wheel(server.root, "own", "1.0", requires=["beta"])
        write_index(server.root, wheels)
        shutil.copytree(ground.place / "config", place / "config")
        suites = ("bookworm", "bookworm-updates", "bookworm-security")
        origins = {"pypi": f"{server.address}/simple"} | {
            f"debian:{suite}": f"{server.address}/debian" for suite in suites
        }
        lines = "".join(f'  "{origin}": ["{address}"]\n' for origin, address in origins.items())
        (place / "config/envbuild/site.yaml").write_text(f"name: here\norigins:\n{lines}")
        (place / "web.yaml").write_text(WEB.format(address=server.address, own=own.name, sha256=digest(own)))
        made = Web(ground=ground, server=server, place=place, store=place / "store")
        for words in (
            ["build", "web.yaml"],
            ["fetch", "web.yaml", "--to", "kept"],
            ["extend", "web.sif", "--python", "gamma", "-o", "extended.sif"],
        ):
            done = made.run(words, place, store=made.store)
            assert done.returncode == 0, done.stderr
        assert server.connections > 0
        shutil.copy(wheels[-1], place / "kept/wheels")
        yield made


def test_all_commands_are_tried() -> None:
    assert sorted(with_option(COMMAND, "--offline")) == sorted(ARGUMENTS)


@pytest.mark.parametrize("command", ARGUMENTS, ids=" ".join)
def test_what_is_here_is_enough(web: Web, command: tuple[str, ...]) -> None:
    desk = web.desk(f"here-{'-'.join(command)}")
    web.server.connections = 0
    done = web.run([*command, *ARGUMENTS[command], "--offline"], desk, store=web.store, network=False)
    assert (done.returncode, web.server.connections) == (0, 0), done.stderr


def test_a_spec_is_explained_also_where_it_is_refused(web: Web) -> None:
    desk = web.desk("explained")
    (desk / "here.yaml").write_text("name: here\narchitecture: arm64\n")
    spec = desk / "web.yaml"
    spec.write_text(f"{spec.read_text()}architecture: amd64\n")
    words = ["explain", "web.yaml", "--site", "here.yaml", "--json"]
    done = web.run(words, desk, store=web.store)
    document = json.loads(done.stdout)
    verdicts = {rule["id"]: rule["verdict"] for rule in document["rules"]}
    assert (done.returncode, document["verdict"], verdicts["ARCH.same"]) == (4, "reject", "reject")
    assert not (desk / "web.lock.yaml").exists()


@pytest.mark.parametrize("command", KEPT, ids=" ".join)
def test_kept_files_are_enough(web: Web, command: tuple[str, ...]) -> None:
    desk = web.desk(f"kept-{'-'.join(command)}")
    kept = web.place / "kept"
    if command != ("reproduce",):
        # As `pip download` leaves wheels: in no directory of their own.
        kept = desk / "flat"
        kept.mkdir()
        for path in (web.place / "kept").glob("*/*"):
            shutil.copy(path, kept)
    web.server.connections = 0
    words = [*command, *ARGUMENTS[command], "--offline", "--from", str(kept)]
    done = web.run(words, desk, store=desk / "store", network=False)
    assert (done.returncode, web.server.connections) == (0, 0), done.stderr


# A skeleton of a recipe needs no file that may be missing.
@pytest.mark.parametrize(
    "command", [words for words in ARGUMENTS if words != ("recipes", "new")], ids=" ".join
)
def test_what_is_missing_is_an_error(web: Web, command: tuple[str, ...]) -> None:
    spec = NOTHING_HERE.format(address=web.server.address, commit="0" * 40)
    desk = web.desk(f"missing-{'-'.join(command)}", spec)
    web.server.connections = 0
    done = web.run([*command, *ARGUMENTS[command], "--offline"], desk, store=desk / "store", network=False)
    assert web.server.connections == 0, done.stderr
    assert done.returncode in (2, 5), done.stderr
    assert "offline" in done.stderr
    assert "Traceback" not in done.stderr

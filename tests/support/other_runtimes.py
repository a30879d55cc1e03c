"""Charliecloud, crun and podman: each starts an exported image, as an ordinary user."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envbuild.workflows.choices import ExportFormat
from tests.support.podman import podman_home, podman_words
from tests.support.users import user_name

FORMATS: dict[str, ExportFormat] = {"charliecloud": "squashfs", "crun": "oci", "podman": "oci"}
"""Runtime → the format of `export` that it starts."""

Run = Callable[..., str]
"""Starts a command in an image, or without words the image's own; ``script`` is its input.

Returns its output; AssertionError if it does not end with ``code``, by default 0.
"""

# crun refuses a host that has cgroups of both versions: the container's namespace has version 2 alone.
_CGROUPS = 'mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
_WITH_CGROUPS = ["unshare", "--cgroup", "--mount", "sh", "-c", _CGROUPS, "sh"]


@contextmanager
def started_by(runtime: str, exported: Path, work: Path) -> Iterator[Run]:
    """Yield what starts an exported image by a runtime, which may write to an empty directory."""
    if runtime == "charliecloud":
        yield _charliecloud(exported)
    elif runtime == "crun":
        yield _crun(exported, work)
    else:
        with podman_home() as home:
            yield _podman(exported, home)


def unpacked(archive: Path, root: Path) -> dict[str, Any]:
    """Unpack the layers of an OCI archive, and return its configuration; ValueError: a digest is another."""
    with tarfile.open(archive) as tar:

        def blob(descriptor: Mapping[str, Any]) -> bytes:
            member = tar.extractfile("blobs/" + descriptor["digest"].replace(":", "/"))
            assert member is not None
            content = member.read()
            if descriptor["digest"] != f"sha256:{hashlib.sha256(content).hexdigest()}":
                raise ValueError(f"{descriptor['digest']} is another content")
            return content

        index = tar.extractfile("index.json")
        assert index is not None
        manifest = json.loads(blob(json.load(index)["manifests"][0]))
        config: dict[str, Any] = json.loads(blob(manifest["config"]))
        root.mkdir()
        for descriptor in manifest["layers"]:
            argv = ["tar", "--extract", "--gzip", f"--directory={root}", "--preserve-permissions"]
            subprocess.run(argv, input=blob(descriptor), check=True)
    return config


def _charliecloud(squashfs: Path) -> Run:
    # ch-run asks for the name of its user, which not every service has.
    env = {"PATH": os.environ["PATH"], "USER": user_name()}
    words = ["ch-run", "--env-no-expand", "--set-env", str(squashfs), "--"]
    return lambda *argv, **options: _finished([*words, *argv], env, **options)


def _crun(archive: Path, work: Path) -> Run:
    config = unpacked(archive, work / "rootfs")["config"]
    env = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(work)}
    subprocess.run(["crun", "spec", "--rootless"], cwd=work, env=env, check=True)
    bundle = json.loads((work / "config.json").read_text())
    # The root is read only.
    bundle["mounts"] += [{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}]
    namespaces = ["unshare", "--user", "--map-root-user", *_WITH_CGROUPS]
    words = ["crun", "--cgroup-manager=disabled", "--root", str(work / "state"), "run", "--bundle", str(work)]

    def run(*argv: str, **options: Any) -> str:
        process = {"terminal": False, "args": argv or config["Cmd"], "env": config.get("Env", [])}
        changed = {**bundle, "process": {**bundle["process"], **process}}
        (work / "config.json").write_text(json.dumps(changed))
        return _finished([*namespaces, *words, "demo"], env, **options)

    return run


def _podman(archive: Path, home: Path) -> Run:
    # Layers are mounted over one another, in a namespace that ends with the command: a container is no copy.
    outside, env = podman_words(home, "unshare", *_WITH_CGROUPS)
    storage: list[str | Path] = [
        "--root",
        home / "layers",
        "--runroot",
        home / "running",
        "--storage-driver",
        "overlay",
    ]

    def run_podman(*words: str | Path, **options: Any) -> str:
        inside, _ = podman_words(home, *storage, *words)
        return _finished([*outside, *inside], env, **options)

    name = run_podman("load", "--quiet", "--input", archive).strip().removeprefix("Loaded image: ")
    # A network would need slirp4netns or pasta, which not every host has.
    words = ["run", "--rm", "--interactive", "--network=none", "--cgroups=disabled", name]
    return lambda *argv, **options: run_podman(*words, *argv, **options)


def _finished(argv: list[str], env: Mapping[str, str], *, script: str = "", code: int = 0) -> str:
    done = subprocess.run(
        argv, env=env, input=script, capture_output=True, text=True, cwd="/", timeout=300, check=False
    )
    assert done.returncode == code, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout

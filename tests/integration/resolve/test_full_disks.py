"""File systems without space or inodes: the one that is full is named, and no index or archive."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mirrors import Mirror, mirror, write_deb, write_index, write_lists, write_wheel
from tests.support.small_images import BASE, small_image

SCRIPT = """
import sys
from pathlib import Path
from envbuild.errors import EnvbuildError, render
from envbuild.resolve.aptsources import AptSource
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.files import FileCache
from envbuild.resolve.lock import make_lock
from envbuild.resolve.origins import Machine, PythonSources
from envbuild.store.store import Store
from envbuild.workflows.failures import explain_full
from tests.support.resolved_specs import resolved

place, address = Path(sys.argv[1]), sys.argv[2]
source = AptSource(
    uris=(f"{address}/debian",), suites=("bookworm",), components=("main",), signed_by="", trusted=True
)
machine = Machine(apt=(source,), python=PythonSources(indexes=(f"{address}/simple",)))
store = Store(place / "store")
try:
    with explain_full(store), store.directory_for_programs("resolve") as cache_dir:
        files = FileCache(store.directory("files"))
        context = ResolveContext(machine=machine, cache_dir=cache_dir, files=files, emit=lambda _: None)
        make_lock(resolved(python=["alpha"]), previous=None, upgrade=None, tools=(), context=context)
except EnvbuildError as error:
    print(error.exit_code, render(error))
"""
MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"'


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with mirror(tmp_path / "served") as server:
        # The list alone is longer than the smaller disks.
        long = write_deb(server.root / "debian", "apt", Description="x" * 3_000_000)
        python = write_deb(
            server.root / "debian", "python3", "3.11.2-1", Essential="yes", Priority="required"
        )
        write_lists(server.root / "debian", "bookworm", [long, python])
        write_index(server.root, [write_wheel(tmp_path / "wheels", "alpha", "1.0")])
        yield server


@pytest.mark.parametrize(
    "size_bytes", [200_000, *(pytest.param(size, marks=pytest.mark.slow) for size in (16_384, 2_000_000))]
)
def test_a_store_without_space_is_named_alone(server: Mirror, tmp_path: Path, size_bytes: int) -> None:
    place = tmp_path / "small"
    place.mkdir()
    namespace = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount"]
    script: list[str | Path] = [sys.executable, "-c", SCRIPT, place, server.address]
    done = subprocess.run(
        [*namespace, "sh", "-c", MOUNT, "sh", str(size_bytes), place, *script],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"5 error: no space left in the store `{place}/store`\n"), done.stdout
    assert done.stdout.count("error:") == 1


@pytest.mark.parametrize(("inodes", "code"), [(1, 5), (50, 0)])
def test_a_file_system_without_inodes_is_named_before_anything_is_written(
    tmp_path: Path, inodes: int, code: int
) -> None:
    image = small_image(tmp_path, BASE, name="image.sif")
    small = tmp_path / "small"
    small.mkdir()
    namespace = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount"]
    # The directory that is mounted takes an inode itself.
    mount = f'mount -t tmpfs -o nr_inodes={inodes} tmpfs "$1" && cd "$1" && shift && "$@"; echo "$?" *'
    words: list[str | Path] = [sys.executable, "-m", "envbuild.cli.main", "export", image]
    words += ["--format", "squashfs", "-o", "x.squashfs"]
    done = subprocess.run(
        [*namespace, "sh", "-c", mount, "sh", small, *words],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == (f"{code} *" if code else "0 x.squashfs"), done.stderr
    assert ("there is no space for 1 inode in `.`: 0 inodes are free" in done.stderr) is bool(code)

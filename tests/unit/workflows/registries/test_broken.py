"""`push` and `pull` that are cut off, killed or out of space: nothing is lost, nothing half visible."""

from __future__ import annotations

import base64
import json
import random
import resource
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envbuild.cli.main import main
from envbuild.digests import canonical_json
from envbuild.errors import EnvbuildError
from envbuild.events import ignore
from envbuild.system import process
from envbuild.workflows.images import image_file
from envbuild.workflows.pull import pull_image
from envbuild.workflows.push import push_image
from envbuild.workflows.settings import Settings
from tests.support.registry import PASSWORD, TOKEN, USER, Registry
from tests.support.small_images import BASE, small_image
from tests.unit.workflows.registries.conftest import NOISE, PACKAGE

# A transfer is tried more often than this.
_CUTS = 40
_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_image(tmp_path_factory.mktemp("image"), BASE, PACKAGE, name="one.sif")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the pauses between attempts."""
    monkeypatch.setattr(process, "pause", lambda _: None)


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*") if ".partial" in path.name]


@pytest.mark.parametrize("seed", range(25))
def test_a_push_that_is_cut_off_shows_nothing_and_the_next_one_ends_it(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, seed: int, patience: None
) -> None:
    offset = random.Random(seed).randrange(image.stat().st_size)  # noqa: S311  # the same each time
    # Parts that are shorter arrive.
    registry.cut_after = [offset] * _CUTS
    name = f"{registry.host}/lab/one:1"
    try:
        push_image(image, name, ignore)
    except EnvbuildError:
        assert registry.manifests == {}
    arrived = sum(map(len, registry.blobs.values()))
    registry.cut_after = []
    pushed = push_image(image, name, ignore)
    assert pushed.sent_bytes <= image.stat().st_size - arrived + 2
    pull_image(name, tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()


@pytest.mark.parametrize("seed", range(25))
def test_a_pull_that_is_cut_off_shows_nothing_and_the_next_one_ends_it(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, seed: int, patience: None
) -> None:
    name = f"{registry.host}/lab/one:1"
    push_image(image, name, ignore)
    registry.forget()
    offset = random.Random(seed).randrange(1, 20_000)  # noqa: S311  # the same each time
    registry.cut_after = [offset] * _CUTS
    with pytest.raises(EnvbuildError):
        pull_image(name, tmp_path / "got.sif", settings)
    assert not (tmp_path / "got.sif").exists()
    assert leftovers(tmp_path / "home") == []
    arrived = registry.sent_bytes
    registry.cut_after = []
    pull_image(name, tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()
    # Not a byte is fetched twice.
    assert registry.sent_bytes <= image.stat().st_size
    assert 0 < arrived < registry.sent_bytes
    assert leftovers(tmp_path) == []


def started(*words: str | Path) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-P", "-m", "envbuild.cli.main", *map(str, words)]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def killed_at(registry: Registry, number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Kill the process that the block lists when it asks for, or sends, the blob of this number."""
    processes: list[subprocess.Popen[bytes]] = []
    seen, lock = [0], threading.Lock()

    def kill() -> None:
        with lock:
            seen[0] += 1
            if seen[0] == number:
                processes[0].kill()
                processes[0].wait(_TIMEOUT_S)

    registry.on_blob = kill
    yield processes
    assert processes[0].wait(_TIMEOUT_S) == -signal.SIGKILL
    registry.on_blob = lambda: None


@pytest.mark.parametrize("number", [1, 3])
def test_a_pull_that_is_killed_is_ended_by_the_next(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, number: int
) -> None:
    name = f"{registry.host}/lab/one:1"
    push_image(image, name, ignore)
    with killed_at(registry, number) as processes:
        processes.append(started("pull", name, "-o", tmp_path / "got.sif"))
    assert not (tmp_path / "got.sif").exists()
    pull_image(name, tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()
    assert leftovers(tmp_path) == []
    assert list((tmp_path / "store/parts").iterdir()) == []


def test_a_command_that_is_killed_while_it_pulls_leaves_no_image_to_use(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path
) -> None:
    name = f"{registry.host}/lab/one:1"
    push_image(image, name, ignore)
    with killed_at(registry, 2) as processes:
        processes.append(started("check", name))
    assert list((tmp_path / "store/images").rglob("*.sif")) == []
    assert image_file(Path(name), settings).read_bytes() == image.read_bytes()


@pytest.mark.parametrize("number", [1, 3])
def test_a_push_that_is_killed_is_ended_by_the_next(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, number: int
) -> None:
    name = f"{registry.host}/lab/one:1"
    with killed_at(registry, number) as processes:
        processes.append(started("push", image, name))
    assert registry.manifests == {}
    push_image(image, name, ignore)
    pull_image(name, tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()


@contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """Let no file grow beyond this, as on a full disk: a write ends early, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("share", [0.3, 0.95])
def test_without_space_nothing_is_half_there(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path, share: float
) -> None:
    name = f"{registry.host}/lab/one:1"
    push_image(image, name, ignore)
    registry.forget()
    # At the one the largest part does not fit, at the other the image.
    with files_end_at(int(image.stat().st_size * share)):
        with pytest.raises(EnvbuildError, match="cannot be written") as caught:
            pull_image(name, tmp_path / "got.sif", settings)
        assert caught.value.exit_code == 5
        with pytest.raises(EnvbuildError, match="cannot be written"):
            image_file(Path(name), settings)
    assert not (tmp_path / "got.sif").exists()
    assert list((settings.store.root / "images").rglob("*.sif")) == []
    registry.forget()
    pull_image(name, tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()
    # What had its place is there.
    assert registry.sent_bytes < image.stat().st_size * 0.8
    assert leftovers(tmp_path) == []


def test_a_tag_that_moves_during_a_pull_gives_one_image(
    registry: Registry, image: Path, settings: Settings, tmp_path: Path
) -> None:
    name = f"{registry.host}/lab/one:1"
    other = small_image(tmp_path, BASE, {"/opt/env/big": NOISE[::-1]}, name="other.sif")
    push_image(other, f"{registry.host}/lab/one:2", ignore)
    pushed = push_image(image, name, ignore)

    def move() -> None:
        registry.manifests["lab/one:1"] = registry.manifests["lab/one:2"]

    registry.on_blob = move
    pulled = pull_image(name, tmp_path / "got.sif", settings)
    assert (tmp_path / "got.sif").read_bytes() == image.read_bytes()
    assert pulled.digest == pushed.digest
    pull_image(name, tmp_path / "now.sif", settings)
    assert (tmp_path / "now.sif").read_bytes() == other.read_bytes()


@pytest.mark.parametrize("is_index", [False, True])
def test_a_manifest_of_100_000_layers_takes_little_memory(
    registry: Registry, settings: Settings, tmp_path: Path, is_index: bool
) -> None:
    entries = [{"digest": f"sha256:{number:064x}"} for number in range(100_000)]
    document = {"manifests": entries} if is_index else {"layers": entries}
    registry.manifests["lab/one:1"] = canonical_json(document).encode()
    tracemalloc.start()
    try:
        with pytest.raises(EnvbuildError):
            pull_image(f"{registry.host}/lab/one:1", tmp_path / "got.sif", settings)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 64 << 20


@pytest.mark.parametrize("kind", ["basic", "token"])
@pytest.mark.parametrize(
    "words", [["pull", "NAME"], ["inspect", "NAME", "--json"], ["push", "IMAGE", "NAME", "-v"]]
)
def test_a_login_that_fails_is_named_and_never_shown(
    registry: Registry,
    image: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    words: list[str],
) -> None:
    registry.authentication = kind
    secret = f"{PASSWORD}-old"
    auth = base64.b64encode(f"{USER}:{secret}".encode()).decode()
    logins = tmp_path / "home/.docker/config.json"
    logins.parent.mkdir(parents=True)
    logins.write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
    name = f"{registry.host}/lab/one:1"
    with pytest.raises(SystemExit) as ended:
        main([word.replace("NAME", name).replace("IMAGE", str(image)) for word in words])
    out, err = capsys.readouterr()
    assert ended.value.code == 5
    assert f"the login of `{USER}` in `{logins}` was refused" in err
    assert not any(text in out + err for text in (secret, auth, TOKEN))

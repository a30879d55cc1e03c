"""Disks that are full, cannot be written, or are another one; outputs that must not be touched."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.torture.ground import BUILT, Ground, Outcome, left_behind, store_problems

_MIB = 1 << 20


@contextlib.contextmanager
def mounted(ground: Ground, place: Path, size_bytes: int, kind: str = "tmpfs") -> Iterator[Path]:
    """Give the owner of the ground a file system of a size: a tmpfs, or an overlay of directories."""
    target = place / f"mounted-{kind}"
    target.mkdir(exist_ok=True)
    if kind == "tmpfs":
        mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", target]
    else:
        layers = [place / f"overlay-{name}" for name in ("lower", "upper", "work")]
        for layer in layers:
            layer.mkdir(exist_ok=True)
        lower, upper, work = layers
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        mount = ["mount", "-t", "overlay", "-o", options, "overlay", target]
    subprocess.run(mount, check=True)
    try:
        ground.own(target)
        yield target
    finally:
        subprocess.run(["umount", "--lazy", target], check=True)


def full(ground: Ground, *, sizes: int) -> Outcome:
    """Build on file systems of growing size, from one that holds nothing to one that holds all."""
    outcome = Outcome("disk full")
    desk = ground.desk("full")
    image = len(ground.reference)
    with mounted(ground, desk, 256 * _MIB) as place:
        done = ground.run(ground.build(), desk, store=place / "store")
        needed = sum(path.stat().st_blocks * 512 for path in place.rglob("*") if not path.is_symlink())
    outcome.hold(done.returncode == 0, f"with space enough it failed: {done.stderr}")
    # The work in progress is beside the store's own bytes: twice as much is enough in the end.
    for number in range(sizes):
        size = int(_MIB + (2.5 * needed) * number / max(1, sizes - 1)) // 4096 * 4096
        _one_full(ground, desk, outcome, size)
    outcome.facts["store MB"] = round(needed / 1e6, 1)
    for number in range(max(1, sizes // 4)):
        _full_output(ground, desk, outcome, int(image * number / max(1, sizes // 4)))
    return outcome


def _one_full(ground: Ground, desk: Path, outcome: Outcome, size: int) -> None:
    (desk / "tiny.sif").unlink(missing_ok=True)
    with mounted(ground, desk, size) as place:
        store = place / "store"
        done = ground.run(ground.build(), desk, store=store)
        outcome.cases += 1
        outcome.count("built" if done.returncode == 0 else "refused")
        where = f"with {size // 1000} kB"
        if done.returncode == 0:
            outcome.hold(ground.is_reference(desk / "tiny.sif"), f"{where}: other bytes")
            return
        outcome.hold(done.returncode in (3, 5), f"{where}: exit code {done.returncode}: {done.stderr}")
        outcome.hold("space" in done.stderr, f"{where}: does not speak of space: {done.stderr}")
        outcome.hold("Traceback" not in done.stderr, f"{where}: {done.stderr}")
        outcome.hold(not (desk / "tiny.sif").exists(), f"{where}: an image is there")
        outcome.problems += [f"{where}: {problem}" for problem in store_problems(store)]
        # As much as was missing, in another place: what is there already is taken along.
        more = desk / "more"
        shutil.copytree(store, more, symlinks=True) if store.exists() else more.mkdir()
        ground.own(more)
        done = ground.run(ground.build(), desk, store=more)
        outcome.hold(done.returncode == 0, f"{where}: with space it does not go on: {done.stderr}")
        outcome.hold(ground.is_reference(desk / "tiny.sif"), f"{where}: then other bytes")
        shutil.rmtree(more)


def _full_output(ground: Ground, desk: Path, outcome: Outcome, size: int) -> None:
    with mounted(ground, desk, size + 300_000) as place:
        done = ground.run(ground.build("-o", place / "out.sif"), desk)
        outcome.cases += 1
        where = f"an output with {size // 1000} kB"
        outcome.hold(done.returncode == 5, f"{where}: exit code {done.returncode}: {done.stderr}")
        outcome.hold("space" in done.stderr, f"{where}: does not speak of space: {done.stderr}")
        outcome.hold(not list(place.iterdir()), f"{where}: left {list(place.iterdir())}")


def places(ground: Ground) -> Outcome:
    """Odd places: a store that may not be written, on another file system, outputs of every wrong kind."""
    outcome = Outcome("odd places")
    desk = ground.desk("places")
    done = ground.run(ground.build(), desk)
    outcome.hold(done.returncode == 0, f"the first build failed: {done.stderr}")
    for name, trial in _TRIALS.items():
        outcome.cases += 1
        trial(ground, desk, outcome)
        outcome.hold(ground.is_reference(desk / "tiny.sif"), f"{name}: the first image is another")
        outcome.problems += [f"{name}: {problem}" for problem in store_problems(desk / "store")]
    outcome.hold(not left_behind(desk / "store"), f"left: {left_behind(desk / 'store')}")
    return outcome


def _read_only_store(ground: Ground, desk: Path, outcome: Outcome) -> None:
    with _read_only(desk / "store"):
        done = ground.run(ground.build("-o", "again.sif"), desk)
        outcome.hold(done.returncode == 5, f"a read-only store: code {done.returncode}: {done.stderr}")
        words = ground.build("-o", "again.sif", "--upstream", desk / "store")
        done = ground.run(words, desk, store=desk / "own-store")
        outcome.hold(done.returncode == 0, f"a read-only upstream does not serve: {done.stderr}")
        outcome.hold(not BUILT.search(done.stderr), f"a read-only upstream is not used: {done.stderr}")
        outcome.hold(ground.is_reference(desk / "again.sif"), "from a read-only upstream: other bytes")
    empty = desk / "empty"
    empty.mkdir()
    ground.own(empty)
    with _read_only(empty):
        done = ground.run(ground.build("-o", "never.sif"), desk, store=empty)
        outcome.hold(done.returncode == 5, f"an empty read-only store: code {done.returncode}: {done.stderr}")
        outcome.hold("cannot be written" in done.stderr, f"an empty read-only store: {done.stderr}")


@contextlib.contextmanager
def _read_only(path: Path) -> Iterator[None]:
    """Make a directory's file system read-only, for root, too."""
    subprocess.run(["mount", "--bind", path, path], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


def _another_file_system(ground: Ground, desk: Path, outcome: Outcome) -> None:
    with mounted(ground, desk, 256 * _MIB) as place:
        done = ground.run(ground.build("-o", place / "out.sif"), desk)
        outcome.hold(done.returncode == 0, f"an output elsewhere: {done.stderr}")
        outcome.hold(ground.is_reference(place / "out.sif"), "an output elsewhere: other bytes")
        done = ground.run(ground.build("-o", "home.sif"), desk, store=place / "store")
        outcome.hold(done.returncode == 0, f"a store elsewhere: {done.stderr}")
        outcome.hold(ground.is_reference(desk / "home.sif"), "a store elsewhere: other bytes")


def _outputs(ground: Ground, desk: Path, outcome: Outcome) -> None:
    (desk / "directory").mkdir()
    (desk / "notes.txt").write_text("years of work\n")
    (desk / "closed").mkdir()
    (desk / "read-only").mkdir()
    ground.own(desk / "directory")
    (desk / "closed").chmod(0o555)
    names = ["directory", "notes.txt", "read-only/x.sif", "missing/x.sif", "/dev/null", "tiny.yaml"]
    if ground.place.stat().st_uid != 0:
        names.append("closed/x.sif")  # root may write to every directory
    with _read_only(desk / "read-only"):
        for name in names:
            done = ground.run(ground.build("-o", name), desk)
            outcome.hold(done.returncode == 2, f"-o {name}: code {done.returncode}: {done.stderr}")
            outcome.hold(done.stderr.startswith("error:"), f"-o {name}: {done.stderr}")
    outcome.hold((desk / "notes.txt").read_text() == "years of work\n", "-o notes.txt: it was written over")


def _in_use(ground: Ground, desk: Path, outcome: Outcome) -> None:
    """Replace an image while a process runs in it: that keeps what it has, others get the new one."""
    image = desk / "used.sif"
    shutil.copy(desk / "tiny.sif", image)
    # Another image of that name, which a build has to replace.
    text = (desk / "tiny.yaml").read_text()
    (desk / "tiny.yaml").write_text(text + "environment: {GREETING: hello}\n")
    ground.own(desk)
    script = "read line; cat /etc/debian_version; echo done $line"
    argv = ["apptainer", "exec", "--no-home", str(image), "sh", "-c", script]
    with subprocess.Popen(
        [*ground.as_owner(), *argv], cwd=desk, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        done = ground.run(["build", "tiny.yaml", "--offline", "-o", image], desk)
        outcome.hold(done.returncode == 0, f"an image in use is not replaced: {done.stderr}")
        said, _ = user.communicate("now\n", timeout=60)
        outcome.hold("done now" in said, f"what ran in the image was broken: {said!r}")
    outcome.hold(not ground.is_reference(image), "an image in use was not replaced")
    (desk / "tiny.yaml").write_text(text)


def _full_temporary_directory(ground: Ground, desk: Path, outcome: Outcome) -> None:
    """Work where temporary files find no space: that directory is named, not the store."""
    desk.chmod(0o755)  # builds work only where other users' processes can pass
    opened = desk / "opened"
    opened.mkdir()
    ground.own(opened)
    opened.chmod(0o777)  # others can rename the store: work in progress is elsewhere
    with mounted(ground, desk, _MIB) as place:
        reproduce: list[str | Path] = ["reproduce", "tiny.sif", "--offline", "--from", ground.kept]
        for words, variable, store in (
            (reproduce, "ENVBUILD_TMPDIR", desk / "store"),
            (ground.build("-o", "never.sif"), "TMPDIR", opened / "store"),
        ):
            done = ground.run(words, desk, store=store, env={variable: str(place)})
            _names_full(done, place, f"{words[0]} with a full {variable}", outcome)
            outcome.hold(variable in done.stderr, f"{words[0]}: {variable} is not named: {done.stderr}")
    shutil.rmtree(opened)


def _full_store(ground: Ground, desk: Path, outcome: Outcome) -> None:
    """Work where the store finds no space, at once or in the middle."""
    fresh = ground.desk("fresh")
    (fresh / "tiny.lock.yaml").unlink()
    trials: list[tuple[list[str | Path], int]] = [
        (ground.build("-o", "never.sif"), _MIB),
        (["lock", "tiny.yaml"], 32 * 1024),
    ]
    for words, size in trials:
        with mounted(ground, fresh, size) as place:
            done = ground.run(words, fresh if words[0] == "lock" else desk, store=place / "store")
            _names_full(done, place / "store", f"{words[0]} with a full store", outcome)
        outcome.hold(words[0] == "lock" or "MB are needed in" in done.stderr, f"no need named: {done.stderr}")
    shutil.rmtree(fresh)


def _names_full(done: subprocess.CompletedProcess[str], place: Path, what: str, outcome: Outcome) -> None:
    error = done.stderr.partition("error: ")[2]
    outcome.hold(done.returncode == 5, f"{what}: code {done.returncode}: {done.stderr}")
    outcome.hold("space" in error and str(place) in error, f"{what}: not named: {done.stderr}")
    outcome.hold(done.stderr.count("error: ") == 1, f"{what}: not one error: {done.stderr}")


_TRIALS: dict[str, Callable[[Ground, Path, Outcome], None]] = {
    "a read-only store": _read_only_store,
    "another file system": _another_file_system,
    "outputs": _outputs,
    "a full temporary directory": _full_temporary_directory,
    "a full store": _full_store,
    "an image in use": _in_use,
}

"""A store that rots: flipped bits, cut and missing blobs, swapped names; noticed, and repaired.

A build trusts the data of a finished layer; `cache verify` reads them, and whatever takes an image as it is.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.torture.ground import Ground, Outcome, store_problems


def flip(path: Path, at: float, others: Sequence[Path]) -> None:
    """Flip one bit at a fraction of a file's length."""
    content = bytearray(path.read_bytes())
    content[min(int(len(content) * at), len(content) - 1)] ^= 0x10
    _write(path, bytes(content))


def cut(path: Path, at: float, others: Sequence[Path]) -> None:
    """Cut a file at a fraction of its length."""
    _write(path, path.read_bytes()[: int(path.stat().st_size * at)])


def lose(path: Path, at: float, others: Sequence[Path]) -> None:
    """Take a file away."""
    path.unlink()


def swap(path: Path, at: float, others: Sequence[Path]) -> None:
    """Give a file the content of another, and that the file's."""
    other = others[int(at * len(others))]
    mine, theirs = path.read_bytes(), other.read_bytes()
    _write(path, theirs)
    _write(other, mine)


HARMS: dict[str, Callable[[Path, float, Sequence[Path]], None]] = {
    "a flipped bit": flip,
    "cut short": cut,
    "missing": lose,
    "swapped with another": swap,
}
SHELVES = {
    "blob": "blobs/sha256/*/*",
    "record": "layers/*/*.json",
    "locked file": "files/sha256/*/*/*",
}


def rot(ground: Ground, *, rounds: int, few: bool = False, seed: int = 20261121) -> Outcome:
    """Harm one thing in a finished store, then build: the image must be right, and the store whole again.

    `cache verify --repair` puts damaged layers aside, and images that were made of them are refused.
    Of few, each harm is done to one shelf alone, another one each time.
    """
    outcome = Outcome("store rots")
    chance = random.Random(seed)  # noqa: S311  # the same harm every time
    desk = ground.desk("rot")
    done = ground.run(ground.build(), desk)
    outcome.hold(done.returncode == 0, f"the first build failed: {done.stderr}")
    shutil.copytree(desk / "store", desk / "sound", symlinks=True)
    for _ in range(rounds):
        for number, (shelf, pattern) in enumerate(SHELVES.items()):
            for name, harm in list(HARMS.items())[number if few else 0 :: len(SHELVES) if few else 1]:
                _harm(ground, desk, outcome, f"{shelf} {name}", pattern, harm, chance)
    return outcome


def _harm(
    ground: Ground,
    desk: Path,
    outcome: Outcome,
    what: str,
    pattern: str,
    harm: Callable[[Path, float, Sequence[Path]], None],
    chance: random.Random,
) -> None:
    store = desk / "store"
    shutil.rmtree(store)
    shutil.copytree(desk / "sound", store, symlinks=True)
    (desk / "tiny.sif").unlink(missing_ok=True)
    if "files" in pattern:
        # Locked files are read where layers are missing.
        for shelf in ("layers", "blobs"):
            shutil.rmtree(store / shelf)
    found = sorted(store.glob(pattern))
    chosen = chance.choice(found)
    harm(chosen, chance.random(), [path for path in found if path != chosen])
    outcome.cases += 1
    outcome.count(what)
    image = desk / "tiny.sif"
    done = ground.run(ground.build(), desk)
    if "blobs" in pattern:
        if done.returncode != 0:
            outcome.hold("envbuild cache verify --repair" in done.stderr, f"{what}: {done.stderr}")
        elif not ground.is_reference(image):
            outcome.count("damaged images refused")
            refused = ground.run(["export", image, "--format", "squashfs", "-o", "never.sqfs"], desk)
            outcome.hold(refused.returncode == 2, f"{what}: the image was taken: {refused.stderr}")
            outcome.hold("was changed or damaged: layer " in refused.stderr, f"{what}: {refused.stderr}")
        image.unlink(missing_ok=True)
        repaired = ground.run(["cache", "verify", "--repair"], desk)
        outcome.hold(repaired.returncode == 0, f"{what}: not put aside: {repaired.stderr}")
        done = ground.run(ground.build(), desk)
    if not outcome.hold(done.returncode == 0, f"{what}: not repaired: {done.stderr}"):
        return
    outcome.hold(ground.is_reference(image), f"{what}: other bytes came of it")
    outcome.problems += [f"{what}: {problem}" for problem in store_problems(store)]


def _write(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)

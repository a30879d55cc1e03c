"""A store that rots: flipped bits, cut and missing blobs, swapped names; noticed before use, and repaired."""

from __future__ import annotations

import json
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
    unused = _unused(store)
    found = sorted(path for path in store.glob(pattern) if path.stem not in unused)
    chosen = chance.choice(found)
    harm(chosen, chance.random(), [path for path in found if path != chosen])
    outcome.cases += 1
    outcome.count(what)
    done = ground.run(ground.build(), desk)
    if not outcome.hold(done.returncode == 0, f"{what}: not repaired: {done.stderr}"):
        return
    outcome.hold(ground.is_reference(desk / "tiny.sif"), f"{what}: other bytes came of it")
    outcome.problems += [f"{what}: {problem}" for problem in store_problems(store)]


def _unused(store: Path) -> set[str]:
    """Return keys and digests of layers that only a merge is made from: a build does not read them again."""
    records = [json.loads(path.read_text()) for path in store.glob(SHELVES["record"])]
    members = [
        record
        for record in records
        if record["name"] in ("venv", "metadata") or record["name"].startswith("wheel:")
    ]
    return {record[name].removeprefix("sha256:") for record in members for name in ("key", "blob")}


def _write(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)

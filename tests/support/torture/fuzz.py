"""Mutated specs, recipes, locks and images: no traceback, nothing slow, nothing written outside.

What `Mutator` makes can be repeated by its seed. What coverage once found, or broke something, is kept in
``corpus/`` and tried first. With atheris (``make torture``) coverage guides it; the suite has Hypothesis too.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.image.sif import LOCK, PLAN
from envbuild.inputs.spec import read_spec
from envbuild.lock.text import load
from envbuild.plan.model import BuildPlan
from envbuild.spec.job_file import marks_of, read_header
from envbuild.spec.load import examine
from envbuild.spec.recipe import Recipe
from tests.support.images import compare_images, image_entries, read_data, read_manifest, verify_image
from tests.support.torture.ground import Ground, Outcome

ROOT = Path(__file__).resolve().parents[3]
CORPUS = Path(__file__).with_name("corpus")
LIMIT_S = 5.0
WORDS = (
    *(
        b"\0",
        b"\n",
        b"\t",
        b": ",
        b"- ",
        b"{",
        b"}",
        b"[",
        b"]",
        b"'",
        b'"',
        b"&a ",
        b"*a ",
        b"!!python/object ",
    ),
    *(
        b"../../",
        b"/etc/passwd",
        b"~",
        b"%s",
        b"${HOME}",
        b"`id`",
        b"$(id)",
        b"<<: ",
        b"? ",
        b"|",
        b">",
        b"#",
    ),
    *(
        b"9" * 40,
        b"-1",
        b"1e999",
        b".nan",
        b"\xff\xfe",
        "\u202e".encode(),
        b"null",
        b"true",
        b"@>=",
        b"sha256:",
    ),
)


class Mutator:
    """Changes bytes: of one seed the same way every time."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)  # noqa: S311  # to be repeated

    def mutate(self, content: bytes, others: Sequence[bytes]) -> bytes:
        """Return a content with a few changes."""
        chance, data = self._chance, bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 4, 16))):
            at = chance.randrange(len(data) + 1)
            end = min(len(data), at + chance.choice((1, 2, 8, 40, 400)))
            kind = chance.randrange(7)
            if kind == 0 and at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            elif kind == 1:
                del data[at:end]
            elif kind == 2:
                data[at:at] = chance.choice(WORDS)
            elif kind == 3:
                data[at:at] = data[at:end] * chance.choice((1, 2, 50))
            elif kind == 4:
                other = chance.choice(others)
                start = chance.randrange(len(other) + 1)
                data[at:end] = other[start : start + end - at]
            elif kind == 5:
                data[at:end] = bytes(chance.choice((0, 0x7F, 0xFF)) for _ in range(end - at))
            else:
                data[at:end] = chance.randrange(1 << 64).to_bytes(8, "little")
        return bytes(data)


def try_spec(content: bytes, place: Path) -> None:
    """Read a spec and all that it names."""
    read_spec(place / "spec.yaml", content=content)


def try_recipe(content: bytes, place: Path) -> None:
    """Read a recipe."""
    examine(Recipe, content, place / "recipe.yaml")


def try_job(content: bytes, place: Path) -> None:
    """Read the header of a job, and the lines that its controls mark."""
    read_header(content, place / "job.py")
    list(marks_of(content.decode(errors="replace")))


def try_lock(content: bytes, place: Path) -> None:
    """Read a lock."""
    load(content, place / "spec.lock.yaml")


def try_plan(content: bytes, place: Path) -> None:
    """Read a plan."""
    try:
        BuildPlan.from_json(content.decode())
    except ValueError as error:
        if type(error) not in (ValueError, UnicodeDecodeError):
            raise


def try_image(content: bytes, place: Path) -> None:
    """Read all that an image says, and every name in it."""
    path = place / "image.sif"
    path.write_bytes(content)
    for work in (
        lambda: read_manifest(path),
        lambda: load(read_data(path, LOCK), path),
        lambda: try_plan(read_data(path, PLAN), place),
        lambda: verify_image(path),
        lambda: image_entries(path),
        lambda: compare_images(path, place / "sound.sif"),
    ):
        try:
            work()
        except EnvbuildError:
            continue


TARGETS: dict[str, Callable[[bytes, Path], None]] = {
    "spec": try_spec,
    "recipe": try_recipe,
    "job": try_job,
    "lock": try_lock,
    "plan": try_plan,
    "image": try_image,
}


def seeds(ground: Ground, kind: str) -> list[bytes]:
    """Return whole examples of a kind."""
    if kind == "spec":
        return [path.read_bytes() for path in sorted((ROOT / "examples").glob("*.yaml"))]
    if kind == "recipe":
        return [path.read_bytes() for path in sorted((ROOT / "recipes").glob("*/recipe.yaml"))]
    if kind == "job":
        return [path.read_bytes() for path in sorted((ROOT / "recipes").glob("*/verify/*.py"))]
    if kind == "lock":
        return [(ground.place / "tiny.lock.yaml").read_bytes()]
    if kind == "plan":
        return [read_data(ground.place / "tiny.sif", PLAN)]
    return [small_one(ground).read_bytes()]


def small_one(ground: Ground) -> Path:
    """Return an image of a few kilobytes: the tables of a real one, and a file system that has every kind."""
    from tests.support.small_images import BASE, small_image  # start-up time

    place = ground.place / "small"
    if not place.exists():
        place.mkdir()
        small_image(place, BASE, {"/bin/app": None, "/etc/x": b"x" * 9000})
    return place / "small.sif"


def fuzz(ground: Ground, *, cases: int, seed: int = 20261121) -> Outcome:
    """Try mutated inputs, a kind after the other; many also with coverage as a guide."""
    outcome = Outcome("mutated inputs")
    shares = {"spec": 0.3, "recipe": 0.1, "job": 0.1, "lock": 0.2, "plan": 0.1, "image": 0.2}
    for number, (kind, share) in enumerate(shares.items()):
        _kind(ground, outcome, kind, int(cases * share), seed + number)
    if cases >= 1000:
        _guided(ground, outcome, cases)
    return outcome


def _kind(ground: Ground, outcome: Outcome, kind: str, cases: int, seed: int) -> None:
    whole = seeds(ground, kind)
    mutator = Mutator(seed)
    chance = random.Random(seed)  # noqa: S311  # to be repeated
    kept = [path.read_bytes() for path in sorted((CORPUS / kind).glob("*"))]
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=ground.place) as name:
        place = Path(name) / "inside"
        place.mkdir()
        shutil.copy(small_one(ground), place / "sound.sif")
        for number in range(len(kept) + cases):
            content = kept[number] if number < len(kept) else mutator.mutate(chance.choice(whole), whole)
            outcome.cases += 1
            started = time.process_time()
            problem = attempt(kind, content, place)
            took = time.process_time() - started
            slowest = max(slowest, took)
            if took > LIMIT_S:
                problem = problem or f"took {took:.1f} s"
            if problem:
                outcome.problems.append(f"{kind} {number}: {problem}; kept as {keep(ground, kind, content)}")
        outside = [path for path in Path(name).iterdir() if path != place]
        outcome.hold(not outside, f"{kind}: wrote outside: {outside}")
        inside = {path.name for path in place.iterdir()} - {"image.sif", "sound.sif"}
        outcome.hold(not inside, f"{kind}: wrote {inside}")
    outcome.facts[f"{kind} (slowest, s)"] = round(slowest, 2)


def attempt(kind: str, content: bytes, place: Path) -> str:
    """Try one input; return what is wrong with how it was taken, or nothing."""
    try:
        TARGETS[kind](content, place)
    except EnvbuildError as error:
        return "" if all(single.problem for single in error.each()) else "an error without a text"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def keep(ground: Ground, kind: str, content: bytes) -> Path:
    """Keep what broke something, to be put into the corpus once it is mended."""
    place = ground.place / "broke" / kind
    place.mkdir(parents=True, exist_ok=True)
    path = place / str(len(list(place.iterdir())))
    path.write_bytes(content)
    return path


def _guided(ground: Ground, outcome: Outcome, cases: int) -> None:
    """Let atheris choose: each kind in a process of its own, which it ends with at a finding."""
    if importlib.util.find_spec("atheris") is None:
        outcome.facts["guided by coverage"] = "no: atheris has no wheel for this machine"
        return
    for kind in TARGETS:
        place = ground.place / f"guided-{kind}"
        corpus = place / "corpus"
        corpus.mkdir(parents=True)
        for number, content in enumerate(seeds(ground, kind)):
            (corpus / f"seed-{number}").write_bytes(content)
        for path in sorted((CORPUS / kind).glob("*")):
            shutil.copy(path, corpus)
        (place / "inside").mkdir()
        shutil.copy(small_one(ground), place / "inside/sound.sif")
        words = [sys.executable, "-m", "tests.support.torture.guided", kind, str(place / "inside")]
        limits = [
            f"-runs={cases // 5}",
            "-seed=1",
            f"-timeout={int(LIMIT_S)}",
            f"-artifact_prefix={place}/broke-",
        ]
        done = subprocess.run(
            [*words, *limits, corpus],
            cwd=ROOT,
            env={**os.environ},
            capture_output=True,
            text=True,
            errors="replace",
        )
        outcome.cases += cases // 5
        outcome.facts[f"{kind} (inputs found by coverage)"] = len(list(corpus.iterdir()))
        outcome.hold(done.returncode == 0, f"guided {kind}: {done.stderr[-3000:]}")

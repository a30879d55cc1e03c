"""The same bytes whoever builds, wherever and however the machine is set: pairs of all that may differ.

To be run as root of a user namespace.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.torture.disk import mounted
from tests.support.torture.ground import Ground, Outcome
from tests.support.users import OTHER_USER, becoming

AXES: dict[str, tuple[str, ...]] = {
    "user": ("ordinary", "root", "second"),
    "umask": ("022", "077", "000"),
    "time zone": ("UTC", "Asia/Kathmandu", "America/St_Johns"),
    "locale": ("C", "C.UTF-8", "tr_TR.UTF-8", "de_DE"),
    "host name": ("as it is", "elsewhere"),
    "store": ("short", "with spaces and ümlauts", "deep"),
    "file system": ("as it is", "tmpfs", "overlay"),
    "processors": ("1", "2"),
}


def pairwise(axes: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """Yield combinations in which each pair of values of two axes occurs at least once; greedy, ordered."""
    names = list(axes)
    left = {
        ((one, first), (two, second))
        for one, two in itertools.combinations(names, 2)
        for first in axes[one]
        for second in axes[two]
    }
    while left:
        (one, first), (two, second) = min(left)
        row = {one: first, two: second}
        for name in names:
            if name not in row:
                gains = {value: len(_covered({**row, name: value}) & left) for value in axes[name]}
                row[name] = max(gains, key=lambda value: gains[value])  # used at once
        left -= _covered(row)
        yield {name: row[name] for name in names}


def _covered(row: Mapping[str, str]) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    names = [name for name in AXES if name in row]
    return {((one, row[one]), (two, row[two])) for one, two in itertools.combinations(names, 2)}


def matrix(ground: Ground, *, whole: bool) -> Outcome:
    """Build in each combination, from an empty store; if not whole, in a few that hold every value."""
    outcome = Outcome("matrix")
    rows = list(pairwise(AXES))
    outcome.facts["pairs of values"] = len(set().union(*map(_covered, rows)))
    chosen = rows if whole else list(_every_value(rows))
    for row in chosen:
        outcome.cases += 1
        _one(ground, outcome, row)
    seen = {(name, value) for row in chosen for name, value in row.items()}
    outcome.facts["values"] = len(seen)
    lacking = {(name, value) for name, values in AXES.items() for value in values} - seen
    outcome.hold(not lacking, f"never tried: {sorted(lacking)}")
    return outcome


def _every_value(rows: Sequence[Mapping[str, str]]) -> Iterator[Mapping[str, str]]:
    """Yield rows until each value occurred, the one with most new values first."""
    left = {item for row in rows for item in row.items()}
    while left:
        row = max(rows, key=lambda each: len(set(each.items()) & left))
        left -= set(row.items())
        yield row


def _one(ground: Ground, outcome: Outcome, row: Mapping[str, str]) -> None:
    desk = ground.desk("matrix")
    where = ", ".join(f"{name} {value}" for name, value in row.items())
    with ExitStack() as stack:
        place = desk
        if row["file system"] != "as it is":
            place = stack.enter_context(mounted(ground, desk, 256 << 20, row["file system"]))
        store = {
            "short": place / "s",
            "with spaces and ümlauts": place / "a store, für mich",
            "deep": place.joinpath(*(f"level-{number}" for number in range(12))),
        }[row["store"]]
        owner = ground.place.stat()
        uid, gid = {
            "ordinary": (owner.st_uid, owner.st_gid),
            "root": (0, 0),
            "second": (OTHER_USER, OTHER_USER),
        }[row["user"]]
        for each in {desk, place, *desk.iterdir()}:
            os.chown(each, uid, gid)
        words = ground.line(ground.build(), root=True)
        line = ["taskset", "--cpu-list", "0" if row["processors"] == "1" else "0,1", *words]
        if row["user"] != "root":
            line = [*becoming(uid, gid), *line]
        if row["host name"] != "as it is":
            line = ["unshare", "--uts", "sh", "-c", f'hostname {row["host name"]} && exec "$@"', "sh", *line]
        done = _run(ground, line, desk, store, row)
        outcome.count("built" if done == "" else "failed")
        outcome.hold(not done, f"{where}: {done}")
        outcome.hold(ground.is_reference(desk / "tiny.sif"), f"{where}: other bytes")


def _run(ground: Ground, line: Sequence[str], desk: Path, store: Path, row: Mapping[str, str]) -> str:
    env = {"TZ": row["time zone"], "LC_ALL": row["locale"], "LANG": row["locale"]}
    process = ground.start(line, desk, store=store, umask=int(row["umask"], 8), env=env)
    said, _ = process.communicate(timeout=600)
    ground.own(desk)
    return "" if process.returncode == 0 else f"exit code {process.returncode}: {said}"

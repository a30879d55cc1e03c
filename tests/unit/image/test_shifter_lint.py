"""What Shifter makes of an image: each rule told where it holds, and where it does not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from envbuild.check.runtimes.shifter import RULES, Seen, lint
from envbuild.image.environment import default_environment
from envbuild.image.model import Variable
from envbuild.squashfs.reader import Entry
from tests.support.trees import manifest


def directory(path: str) -> Entry:
    return Entry(path, "directory", 0o755)


def file(path: str, *, size: int = 10, mode: int = 0o644, attributes: Iterable[str] = ()) -> Entry:
    return Entry(path, "file", mode, size=size, attributes=tuple((name, b"") for name in attributes))


def link(path: str, target: str) -> Entry:
    return Entry(path, "link", 0o777, target=target)


# What every image of ours has, and Shifter does not mind.
GOOD = (
    *map(directory, ("/", "/etc", "/opt", "/opt/env", "/usr", "/usr/bin", "/var", "/var/lib", "/tmp")),
    *map(directory, ("/.singularity.d", "/proc", "/var/spool", "/etc/ssl")),
    link("/bin", "usr/bin"),
    link("/var/run", "/run"),
    file("/etc/debian_version"),
    file("/etc/passwd"),
    file("/usr/bin/odd name"),
    file("/opt/env/größe", size=10_000_000),
    file("/.envbuild.complete"),
)


def seen(*more: Entry, gone: str = "", **changes: object) -> Seen:
    entries = {entry.path: entry for entry in (*GOOD, *more) if entry.path != gone}
    variables = tuple(one for one in default_environment({"A": "b"}) if one.operation != "unset")
    made = Seen(manifest=manifest(environment=variables), entries=entries, abis=("mpich",))
    return replace(made, **changes)  # type: ignore[arg-type]


def told(made: Seen) -> dict[str, tuple[str, str]]:
    return {one.id.removeprefix("SHIFTER."): (one.status, one.observed) for one in lint(made)}


def test_a_good_image_passes_every_rule() -> None:
    assert {name: status for name, (status, _) in told(seen()).items()} == dict.fromkeys(RULES, "PASS")
    assert all(one.hint == "" for one in lint(seen()))


def with_variables(*variables: Variable) -> Seen:
    return seen(manifest=manifest(environment=variables))


ODD = [
    ("names", "FAIL", "/with blank are not taken over", seen(file("/with blank"))),
    ("names", "FAIL", "/etc/a~b are not taken over", seen(file("/etc/a~b"))),
    ("names", "FAIL", "/opt/tool@2 are not taken over", seen(directory("/opt/tool@2"))),
    ("names", "FAIL", "/var/ü are not taken over", seen(link("/var/ü", "x"))),
    ("kinds", "FAIL", "/etc/pipe are not taken over", seen(Entry("/etc/pipe", "other", 0o644))),
    ("directories", "FAIL", "/opt would be looked up on the host", seen(link("/opt", "/usr/opt"))),
    ("large-files", "FAIL", "/etc/db are dropped without a word", seen(file("/etc/db", size=5_242_880))),
    ("etc-size", "SKIP", "16.8 MB in 3 files", seen(file("/etc/ssl/all", size=16 << 20))),
    ("hidden", "FAIL", "/tmp/data are hidden by the site's", seen(file("/tmp/data"))),
    ("hidden", "FAIL", "/opt/udiImage/x are hidden", seen(file("/opt/udiImage/x"))),
    ("hidden", "FAIL", "/etc/ssh/ssh_config are hidden", seen(file("/etc/ssh/ssh_config"))),
    ("hidden", "FAIL", "/var/spool/cron/root are hidden", seen(file("/var/spool/cron/root"))),
    (
        "environment",
        "FAIL",
        "A: a backslash at the end joins the next line to it",
        with_variables(Variable(name="A", operation="set", value="x\\")),
    ),
    (
        "unset",
        "SKIP",
        "empty values are dropped: the host's PYTHONPATH would stay",
        with_variables(Variable(name="PYTHONPATH", operation="unset")),
    ),
    ("set-id", "SKIP", "the image is mounted nosuid: /usr/bin/su", seen(file("/usr/bin/su", mode=0o4755))),
    ("set-id", "SKIP", "the image is mounted nosuid: /usr/bin/w", seen(file("/usr/bin/w", mode=0o2755))),
    (
        "attributes",
        "SKIP",
        "left out: security.capability of /usr/bin/ping",
        seen(file("/usr/bin/ping", attributes=["security.capability"])),
    ),
    ("mpi", "SKIP", "programs were linked to openmpi", seen(abis=("mpich", "openmpi"))),
    ("mpi", "FAIL", "a DT_RPATH leads to the image's own: /opt/x.so", seen(bound_hard=("/opt/x.so",))),
]


@pytest.mark.parametrize(("rule", "status", "observed", "made"), ODD, ids=lambda value: str(value)[:30])
def test_each_rule(rule: str, status: str, observed: str, made: Seen) -> None:
    found = told(made)
    assert found[rule][0] == status
    assert found[rule][1].startswith(observed)
    assert all(one.hint for one in lint(made) if one.id == f"SHIFTER.{rule}")
    others = {name: status for name, (status, _) in found.items() if name != rule}
    assert others == dict.fromkeys(others, "PASS"), "and no other"


def test_every_rule_was_seen_to_tell() -> None:
    assert {rule for rule, *_ in ODD} == RULES.keys() - {"replaced"}


def test_what_the_site_puts_in_the_image_s_place() -> None:
    assert told(seen())["replaced"] == ("PASS", "instead of /etc/passwd")
    assert told(seen(gone="/etc/passwd"))["replaced"] == ("PASS", "the image has none of its own")


def test_names_and_sizes_that_are_just_right() -> None:
    good = seen(file("/etc/A-z_0:9.+"), file("/etc/almost", size=5_242_879), file("/etc/ssl/x y"))
    assert {status for status, _ in told(good).values()} == {"PASS"}


def test_an_image_without_mpi() -> None:
    assert told(seen(manifest=manifest(mpi="", environment=())))["mpi"] == ("PASS", "the image has no MPI")


def test_of_many_some_are_shown() -> None:
    many = [file(f"/tmp/{number}") for number in range(8)]
    shown = "/tmp/0, /tmp/1, /tmp/2, /tmp/3, /tmp/4 and 3 more are hidden by the site's"
    assert told(seen(*many))["hidden"] == ("FAIL", shown)

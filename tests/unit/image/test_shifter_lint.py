"""What Shifter makes of an image: each rule told if it holds, and if it does not."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.image.environment import default_environment
from envbuild.image.model import Variable
from envbuild.image.shifter import lint
from envbuild.squashfs.reader import Entry
from tests.support.trees import manifest


def file(path: str, *, size: int = 10) -> Entry:
    return Entry(path, "file", 0o644, size=size)


# What every image of ours has, and Shifter does not mind.
GOOD = (
    *(Entry(path, "directory", 0o755) for path in ("/", "/etc", "/opt", "/usr", "/tmp", "/var/spool")),
    Entry("/var/run", "link", 0o777, target="/run"),
    file("/etc/passwd"),
    file("/opt/env/große", size=10_000_000),
)
VARIABLES = tuple(one for one in default_environment({"A": "b"}) if one.operation != "unset")
RULES = ("etc-size", "hidden", "environment", "unset", "mpi")


def told(
    *more: Entry, variables: tuple[Variable, ...] = VARIABLES, **image: Any
) -> dict[str, tuple[str, str]]:
    entries = {entry.path: entry for entry in (*GOOD, *more)}
    findings = lint(manifest(environment=variables), entries, **{"abis": ("mpich",), **image})
    assert all(bool(finding.hint) == (finding.status != "PASS") for finding in findings)
    return {one.id.removeprefix("shifter."): (one.status, one.observed) for one in findings}


def test_a_good_image_passes_every_rule() -> None:
    assert {name: status for name, (status, _) in told().items()} == dict.fromkeys(RULES, "PASS")


@pytest.mark.parametrize(
    ("rule", "status", "observed", "image"),
    [
        ("etc-size", "SKIP", "16.8 MB in 2 files", [file("/etc/ssl/all", size=16 << 20)]),
        ("hidden", "FAIL", "/tmp/data are hidden by the site's", [file("/tmp/data")]),
        ("hidden", "FAIL", "/opt/udiImage/x are hidden", [file("/opt/udiImage/x")]),
        ("hidden", "FAIL", "/etc/ssh/ssh_config are hidden", [file("/etc/ssh/ssh_config")]),
        ("hidden", "FAIL", "/var/spool/cron/root are hidden", [file("/var/spool/cron/root")]),
        (
            "environment",
            "FAIL",
            "A: a backslash at the end joins the next line to it",
            {"variables": (Variable(name="A", operation="set", value="x\\"),)},
        ),
        (
            "unset",
            "SKIP",
            "empty values are dropped: the host's PYTHONPATH would stay",
            {"variables": (Variable(name="PYTHONPATH", operation="unset"),)},
        ),
        ("mpi", "SKIP", "programs linked to openmpi", {"abis": ("mpich", "openmpi")}),
        ("mpi", "FAIL", "a DT_RPATH leads to the image's own: /opt/x.so", {"rpath_files": ("/opt/x.so",)}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_each_rule(rule: str, status: str, observed: str, image: Any) -> None:
    found = told(**image) if isinstance(image, dict) else told(*image)
    assert found[rule][0] == status
    assert found[rule][1].startswith(observed)
    others = {name: status for name, (status, _) in found.items() if name != rule}
    assert others == dict.fromkeys(others, "PASS"), "and no other"


def test_an_image_without_mpi() -> None:
    (*_, mpi) = lint(manifest(mpi="", environment=()), {})
    assert (mpi.status, mpi.observed) == ("PASS", "the image has no MPI")


def test_of_many_some_are_shown() -> None:
    many = [file(f"/tmp/{number}") for number in range(8)]
    shown = "/tmp/0, /tmp/1, /tmp/2, /tmp/3 and 4 more are hidden by the site's"
    assert told(*many)["hidden"] == ("FAIL", shown)

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from envbuild.check import verdicts
from envbuild.check.findings import Finding
from envbuild.check.report import Report
from envbuild.errors import RequestError
from envbuild.store.store import Store
from envbuild.store.verify import verify
from envbuild.system.fingerprint import HostFingerprint
from envbuild.system.sealing import sealed

IMAGE = "sha256:" + "ab" * 32
HERE = HostFingerprint(facts={"kernel": "6.2", "cpu": "x"})
THERE = HostFingerprint(facts={"kernel": "6.1", "cpu": "x", "nvidia": "580.1"})
PASS = Finding("PASS", "D0/D1.mpi", "2", "2")
FAIL = Finding("FAIL", "D1.mpi/sum", "3", "2")


def report(host: HostFingerprint, *findings: Finding, when: str = "2026-11-21T01:00:00Z") -> Report:
    return Report(
        name="demo",
        version="1",
        digest=IMAGE,
        ranks=2,
        findings=findings,
        fingerprint=host.digest,
        facts=host.facts,
        when=when,
    )


def test_absent_until_it_is_tested(tmp_path: Path) -> None:
    assert verdicts.latest(tmp_path, IMAGE, here=HERE) is None
    assert verdicts.sentence(tmp_path, IMAGE, here=HERE) == "never tested here"
    assert verdicts.latest(tmp_path, "sha256:../..", here=HERE) is None


@pytest.mark.parametrize(("findings", "state"), [((PASS,), "passed"), ((PASS, FAIL), "failed")])
def test_what_was_recorded_is_read(tmp_path: Path, findings: tuple[Finding, ...], state: str) -> None:
    path = verdicts.record(tmp_path, report(HERE, *findings))
    assert path == tmp_path / "verdicts" / IMAGE[7:] / f"{HERE.digest[7:]}.json"
    assert (verify(Store(tmp_path)).notes, verify(Store(tmp_path)).damages) == (1, ())
    verdict = verdicts.latest(tmp_path, IMAGE, here=HERE)
    assert verdict is not None
    assert (verdict.state, verdict.outcome, verdict.ranks) == (state, state, 2)
    assert verdict.finding().status == state[:4].upper()
    assert verdicts.sentence(tmp_path, IMAGE, here=HERE).startswith(f"{state} (2026-11-21T01:00:00Z, 2 ranks")


def test_on_a_host_that_changed_it_is_stale_and_says_what_changed(tmp_path: Path) -> None:
    verdicts.record(tmp_path, report(THERE, PASS))
    verdict = verdicts.latest(tmp_path, IMAGE, here=HERE)
    assert verdict is not None
    assert (verdict.state, verdict.outcome) == ("stale", "passed")
    assert verdict.changed == ("kernel: 6.1 there, 6.2 here", "nvidia: 580.1 there, none here")
    assert verdict.finding().status == "STALE"
    assert "kernel: 6.1 there, 6.2 here" in verdicts.sentence(tmp_path, IMAGE, here=HERE)


def test_this_hosts_own_verdict_wins_over_a_newer_one_from_elsewhere(tmp_path: Path) -> None:
    verdicts.record(tmp_path, report(THERE, PASS, when="2026-11-22T01:00:00Z"))
    verdicts.record(tmp_path, report(HERE, FAIL, when="2026-11-21T01:00:00Z"))
    verdict = verdicts.latest(tmp_path, IMAGE, here=HERE)
    assert verdict is not None
    assert verdict.state == "failed"
    assert verdict.failed == ("D1.mpi/sum",)


def test_the_newest_stale_one_is_told(tmp_path: Path) -> None:
    other = HostFingerprint(facts={"kernel": "5"})
    verdicts.record(tmp_path, report(THERE, PASS, when="2026-11-22T01:00:00Z"))
    verdicts.record(tmp_path, report(other, FAIL, when="2026-11-23T01:00:00Z"))
    verdict = verdicts.latest(tmp_path, IMAGE, here=HERE)
    assert verdict is not None
    assert verdict.fingerprint == other.digest


@pytest.mark.parametrize("before", [PASS, FAIL], ids=["passed", "failed"])
def test_a_test_that_proved_nothing_takes_the_place_of_an_earlier_one(
    tmp_path: Path, before: Finding
) -> None:
    verdicts.record(tmp_path, report(HERE, before))
    verdicts.record(tmp_path, report(HERE, Finding("SKIP", "D0.jobs", "at least one job", "none")))
    verdict = verdicts.latest(tmp_path, IMAGE, here=HERE)
    assert verdict is not None
    assert (verdict.state, verdict.outcome, verdict.failed) == ("unproven", "unproven", ())
    assert verdict.finding().status == "SKIP"
    said = f"2026-11-21T01:00:00Z, 2 ranks, host {HERE.digest[7:19]}; 1 SKIP; it carries no jobs"
    assert verdicts.sentence(tmp_path, IMAGE, here=HERE) == f"not proven ({said})"
    assert verdicts.sentence(tmp_path, IMAGE, here=THERE).startswith("stale: not proven on another host ")


def test_a_record_of_before_this_was_told_still_counts(tmp_path: Path) -> None:
    path = verdicts.record(tmp_path, report(HERE, FAIL))
    data = json.loads(path.read_text())
    del data["seal"], data["unproven"]
    path.write_text(sealed(json.dumps(data)))
    verdict = verdicts.latest(tmp_path, IMAGE, here=HERE)
    assert verdict is not None
    assert verdict.state == "failed"


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1},
        {"passed": "yes"},
        {"ranks": "2"},
        {"when": "now\n"},
        {"fingerprint": THERE.digest},
        {"fingerprint": "../../x"},
        {"image": {"digest": "sha256:" + "cd" * 32}},
        {"facts": []},
        {"failed": 3},
    ],
)
def test_a_damaged_or_foreign_record_proves_nothing(tmp_path: Path, change: dict[str, object]) -> None:
    path = verdicts.record(tmp_path, report(HERE, PASS))
    data = json.loads(path.read_text())
    del data["seal"]
    path.write_text(sealed(json.dumps(data)))
    assert verdicts.latest(tmp_path, IMAGE, here=HERE) is not None
    path.write_text(sealed(json.dumps({**data, **change})))
    assert verdicts.latest(tmp_path, IMAGE, here=HERE) is None


def test_a_failure_does_not_become_a_success_by_a_changed_word(tmp_path: Path) -> None:
    path = verdicts.record(tmp_path, report(HERE, FAIL))
    path.write_text(path.read_text().replace('"passed": false', '"passed": true'))
    assert verdicts.latest(tmp_path, IMAGE, here=HERE) is None


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\x00"])
def test_what_is_no_record_proves_nothing(tmp_path: Path, text: str) -> None:
    path = verdicts.record(tmp_path, report(HERE, PASS))
    path.write_text(text)
    assert verdicts.latest(tmp_path, IMAGE, here=HERE) is None


def test_a_verdict_in_the_store_of_a_group_is_the_groups(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    before = os.umask(0o077)
    try:
        path = verdicts.record(tmp_path, report(HERE, PASS))
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(each.stat().st_mode) & 0o070 for each in (path.parent, path)]
    assert modes == [0o070, 0o040]


def test_a_store_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "verdicts").write_text("a file")
    with pytest.raises(RequestError, match="cannot be made"):
        verdicts.record(tmp_path, report(HERE, PASS))

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.jobs.report import CheckResult
from envbuild.store import verdicts
from envbuild.store.report import Report
from envbuild.store.store import Store
from envbuild.system.fingerprint import HostFingerprint
from envbuild.system.sealing import sealed

IMAGE = "sha256:" + "ab" * 32
HERE = HostFingerprint(facts={"kernel": "6.2", "cpu": "x"})
THERE = HostFingerprint(facts={"kernel": "6.1", "cpu": "x", "nvidia": "580.1"})
PASS = CheckResult("PASS", "mpi.collectives/ranks", "2", "2")
FAIL = CheckResult("FAIL", "mpi.collectives/sum", "3", "2")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def report(host: HostFingerprint, *findings: CheckResult, when: str = "2026-11-21T01:00:00Z") -> Report:
    return Report(
        name="demo",
        version="1",
        digest=IMAGE,
        ranks=2,
        checks=findings,
        fingerprint=host.digest,
        facts=host.facts,
        when=when,
    )


def said(store: Store, here: HostFingerprint) -> str:
    return verdicts.sentence(verdicts.latest(store, IMAGE, here=here))


def test_absent_until_it_is_tested(store: Store) -> None:
    assert verdicts.latest(store, IMAGE, here=HERE) is None
    assert said(store, HERE) == "UNTESTED (never tested here)"
    assert verdicts.latest(store, "sha256:../..", here=HERE) is None


@pytest.mark.parametrize(("findings", "state"), [((PASS,), "passed"), ((PASS, FAIL), "failed")])
def test_what_was_recorded_is_read(store: Store, findings: tuple[CheckResult, ...], state: str) -> None:
    name = verdicts.record(store, report(HERE, *findings))
    assert name == f"verdicts/{IMAGE[7:]}/{HERE.digest[7:]}.json"
    verdict = verdicts.latest(store, IMAGE, here=HERE)
    assert verdict is not None
    assert (verdict.state, verdict.outcome, verdict.ranks) == (state, state, 2)
    assert said(store, HERE).startswith(f"{verdicts.STATES[state]} (2026-11-21T01:00:00Z, 2 ranks")


def test_on_a_host_that_changed_it_is_stale_and_says_what_changed(store: Store) -> None:
    verdicts.record(store, report(THERE, PASS))
    verdict = verdicts.latest(store, IMAGE, here=HERE)
    assert verdict is not None
    assert (verdict.state, verdict.outcome) == ("stale", "passed")
    assert verdict.changed == ("kernel: 6.1 there, 6.2 here", "nvidia: 580.1 there, none here")
    assert "kernel: 6.1 there, 6.2 here" in said(store, HERE)


def test_a_submitted_test_counts_on_its_nodes_and_where_it_was_submitted(store: Store) -> None:
    nodes = replace(report(THERE, PASS), nodes=2, launcher="slurm 25 --mpi=pmi2", submitted_from=HERE.facts)
    verdicts.record(store, nodes)
    for host in (HERE, THERE):
        verdict = verdicts.latest(store, IMAGE, here=host)
        assert verdict is not None
        assert verdict.state == "passed"
        assert "2 ranks on 2 nodes by slurm 25 --mpi=pmi2" in verdict.text
    changed = verdicts.latest(store, IMAGE, here=HERE.with_fact("kernel", "6.3"))
    assert changed is not None
    assert (changed.state, changed.changed) == ("stale", ("kernel: 6.2 there, 6.3 here",))


def test_each_launcher_has_a_verdict_of_its_own(store: Store) -> None:
    verdicts.record(store, report(HERE, FAIL, when="2026-11-21T01:00:00Z"))
    by_srun = replace(report(HERE, PASS, when="2026-11-20T01:00:00Z"), launcher="slurm 25 --mpi=pmi2")
    verdicts.record(store, by_srun)
    verdict = verdicts.latest(store, IMAGE, here=HERE)
    assert verdict is not None
    assert (verdict.state, verdict.launcher) == ("failed", "")


def test_a_check_that_failed_more_than_once_is_named_once(store: Store) -> None:
    verdicts.record(store, report(HERE, FAIL, FAIL))
    assert said(store, HERE).endswith("; failed: mpi.collectives/sum)")


def test_this_hosts_own_verdict_wins_over_a_newer_one_from_elsewhere(store: Store) -> None:
    verdicts.record(store, report(THERE, PASS, when="2026-11-22T01:00:00Z"))
    verdicts.record(store, report(HERE, FAIL, when="2026-11-21T01:00:00Z"))
    verdict = verdicts.latest(store, IMAGE, here=HERE)
    assert verdict is not None
    assert verdict.state == "failed"
    assert verdict.failed == ("mpi.collectives/sum",)


def test_the_newest_stale_one_is_told(store: Store) -> None:
    other = HostFingerprint(facts={"kernel": "5"})
    verdicts.record(store, report(THERE, PASS, when="2026-11-22T01:00:00Z"))
    verdicts.record(store, report(other, FAIL, when="2026-11-23T01:00:00Z"))
    verdict = verdicts.latest(store, IMAGE, here=HERE)
    assert verdict is not None
    assert verdict.fingerprint == other.digest


@pytest.mark.parametrize("before", [PASS, FAIL], ids=["passed", "failed"])
def test_a_test_that_proved_nothing_takes_the_place_of_an_earlier_one(
    store: Store, before: CheckResult
) -> None:
    verdicts.record(store, report(HERE, before))
    verdicts.record(store, report(HERE, CheckResult("SKIP", "pytorch.ddp/ranks", "2", "not started")))
    verdict = verdicts.latest(store, IMAGE, here=HERE)
    assert verdict is not None
    assert (verdict.state, verdict.outcome, verdict.failed) == ("unproven", "unproven", ())
    where = f"2 ranks, host fingerprint {HERE.digest[7:19]}"
    text = f"2026-11-21T01:00:00Z, {where}; 1 SKIP; not every job ran on its ranks"
    assert said(store, HERE) == f"UNPROVEN ({text})"
    assert said(store, THERE).startswith("STALE (not proven on another host, ")


def test_a_pass_without_a_gpu_says_so(store: Store) -> None:
    verdicts.record(store, report(HERE, PASS, CheckResult("SKIP", "gpu.visible", "a GPU", "none here")))
    verdict = verdicts.latest(store, IMAGE, here=HERE)
    assert verdict is not None
    assert (verdict.state, verdict.outcome, verdict.gpu_untested) == ("cpu-only", "cpu-only", True)
    assert said(store, HERE).startswith("CPU-ONLY (")
    assert "STALE (passed without a GPU on another host" in said(store, THERE)
    assert "2 ranks, GPU untested, host" in said(store, HERE)


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
def test_a_damaged_or_foreign_record_proves_nothing(store: Store, change: dict[str, object]) -> None:
    path = store.path / verdicts.record(store, report(HERE, PASS))
    data = json.loads(path.read_text())
    del data["seal"]
    path.write_text(sealed(json.dumps(data)))
    assert verdicts.latest(store, IMAGE, here=HERE) is not None
    path.write_text(sealed(json.dumps({**data, **change})))
    assert verdicts.latest(store, IMAGE, here=HERE) is None


def test_a_failure_does_not_become_a_success_by_a_changed_word(store: Store) -> None:
    path = store.path / verdicts.record(store, report(HERE, FAIL))
    path.write_text(path.read_text().replace('"passed": false', '"passed": true'))
    assert verdicts.latest(store, IMAGE, here=HERE) is None


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\x00"])
def test_what_is_no_record_proves_nothing(store: Store, text: str) -> None:
    path = store.path / verdicts.record(store, report(HERE, PASS))
    path.write_text(text)
    assert verdicts.latest(store, IMAGE, here=HERE) is None


def test_a_store_that_cannot_be_written_is_told(store: Store) -> None:
    (store.directory("verdicts") / IMAGE[7:]).write_text("a file")
    with pytest.raises(MachineError, match="cannot be written"):
        verdicts.record(store, report(HERE, PASS))

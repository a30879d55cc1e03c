"""Real and made-up stacks: a rule finds each broken one, and no rule refuses a good one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.rules.facts import FACTS, READ_VARIABLES, Value, facts_from, with_tables
from envbuild.rules.rulebook import judge, rule_ids
from tests.unit.rules.stacks import cases, declared, good, stack

CASES = cases()
GOOD = good()
STACKS = {name: stack(each.facts) for name, each in (CASES | GOOD).items()}


def test_there_are_many() -> None:
    assert len([name for name in CASES if not name.startswith("made-")]) >= 25
    assert len(GOOD) >= 15


@pytest.mark.parametrize("name", CASES)
def test_a_rule_finds_a_broken_stack(name: str) -> None:
    case = CASES[name]
    verdicts = [verdict for verdict in judge(STACKS[name]) if verdict.rule == case.rule]
    # Those that lack a fact are of other packages and frameworks.
    (verdict,) = [verdict for verdict in verdicts if verdict.facts and not verdict.missing]
    assert verdict.outcome == case.outcome
    assert verdict.hint
    assert "unknown" not in verdict.reason, "the reason names the facts"


@pytest.mark.parametrize("name", CASES)
def test_no_other_rule_refuses_a_broken_stack(name: str) -> None:
    refused = {verdict.rule for verdict in judge(STACKS[name]) if verdict.outcome == "incompatible"}
    assert refused <= {CASES[name].rule}


@pytest.mark.parametrize("name", GOOD)
def test_no_rule_refuses_a_good_stack(name: str) -> None:
    assert [verdict for verdict in judge(STACKS[name]) if verdict.outcome == "incompatible"] == []


def test_every_rule_has_a_case() -> None:
    assert {*rule_ids()} == {case.rule for case in CASES.values()}


# Facts that no shipped rule reads → why they are facts all the same.
FOR_OTHER_ROWS = {
    "gpus.xnack": "centres' rows on builds for one mode alone",
    "python.free_threaded": "rows on packages without builds for it",
    "runtime.isolates_environment": "centres' rows on their own variables",
}


def test_rules_read_all_facts_of_the_vocabulary_and_no_others() -> None:
    verdicts = [verdict for facts in (*STACKS.values(), {}) for verdict in judge(facts)]
    paths = {path for verdict in verdicts for path in (*verdict.facts, *verdict.missing) if "[" not in path}
    read = {declared(path) for path in paths}
    assert read <= FACTS.keys()
    assert FACTS.keys() - read <= FOR_OTHER_ROWS.keys()


def test_the_variables_that_rules_read_are_known_to_be_empty_if_an_image_lacks_them() -> None:
    verdicts = [verdict for facts in STACKS.values() for verdict in judge(facts)]
    paths = {path for verdict in verdicts for path in (*verdict.facts, *verdict.missing)}
    assert {path for path in paths if path.startswith("environment.")} == {
        f"environment.{name}" for name in READ_VARIABLES
    }


def test_software_of_a_site_whose_parts_are_unknown_is_not_called_complete() -> None:
    facts = dict(STACKS["made-software-without-a-library"])
    del facts["injected.unsupplied"]
    (verdict,) = [verdict for verdict in judge(facts) if verdict.rule == "HOST.supplies"]
    assert (verdict.outcome, verdict.missing) == ("unknown", ("injected.unsupplied",))


def test_a_driver_that_the_site_does_not_give_is_a_warning() -> None:
    facts = dict(STACKS["c01-cuda-13-needs-r580"])
    del facts["driver.version"]
    (verdict,) = [verdict for verdict in judge(facts) if verdict.rule == "CUDA.driver-floor"]
    assert (verdict.outcome, verdict.warn, verdict.missing) == ("unknown", True, ("driver.version",))
    assert verdict.reason == "CUDA 13 needs a driver of at least 580, and driver.version is not known"
    assert verdict.hint.startswith("`envbuild site probe` on a compute node reports the driver")


def test_a_driver_below_the_floor_warns_if_a_compatibility_package_may_be_there() -> None:
    facts = dict(STACKS["c01-cuda-13-needs-r580"])
    del facts["cuda.forward_compat"]
    (verdict,) = [verdict for verdict in judge(facts) if verdict.rule == "CUDA.driver-floor"]
    assert (verdict.outcome, verdict.warn, verdict.missing) == ("unknown", True, ("cuda.forward_compat",))
    assert verdict.reason.startswith(
        "CUDA 13 needs a driver of at least 580, and driver.version is 575.57.08"
    )


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        (
            "CUDNN.of-framework",
            {
                "frameworks.pytorch.version": "2.3.0",
                "frameworks.pytorch.accelerator": "cuda",
                "cudnn.loaded": "9.0.0",
            },
        ),
        (
            "CUDNN.of-framework",
            {"frameworks.pytorch.version": "2.4.0a0+07cecf4168.nv24.5", "cudnn.loaded": "9.1.0"},
        ),
        (
            "TENSORFLOW.cudnn-of-its-build",
            {
                "frameworks.tensorflow.version": "2.17.0+nv25.2",
                "frameworks.tensorflow.accelerator": "cuda",
                "cudnn.loaded": "9.7.1",
            },
        ),
        (
            "TENSORFLOW.known-bad",
            {
                "frameworks.tensorflow.version": "2.16.1",
                "frameworks.tensorflow.accelerator": "cuda",
                "frameworks.tensorflow.toolkit": "12.4",
            },
        ),
        (
            "TENSORFLOW.of-package",
            {"frameworks.tensorflow.version": "2.12.0+nv23.4", "packages.horovod": "0.26.1+nv23.4"},
        ),
        (
            "MPI.known-bad",
            {"packages.horovod": "0.16.0", "mpi.family": "openmpi", "mpi.version": "3.1.3"},
        ),
    ],
)
def test_builds_of_centres_and_of_nvidia_are_not_taken_for_those_of_the_makers(
    rule: str, facts: dict[str, str]
) -> None:
    known = with_tables(facts_from(facts, "image"))
    assert [verdict for verdict in judge(known) if verdict.rule == rule and verdict.warn] == []


@settings(deadline=None, max_examples=3 * settings().max_examples)
@given(st.data())
def test_knowing_less_never_makes_a_stack_compatible(data: st.DataObject) -> None:
    facts = dict(STACKS[data.draw(st.sampled_from(sorted(STACKS)))])
    before = {(verdict.rule, verdict.subject): verdict.outcome for verdict in judge(facts)}
    for _ in range(data.draw(st.integers(1, 4))):
        if facts:
            del facts[data.draw(st.sampled_from(sorted(facts)))]
    for verdict in judge(facts):
        if verdict.outcome == "compatible":
            assert before[verdict.rule, verdict.subject] == "compatible", verdict.rule


@pytest.mark.parametrize(("version", "warned"), [("1.0.3", False), ("1.3.3", True)])
def test_restricted_user_namespaces_are_a_warning_where_apptainer_is_without_set_user_id_by_default(
    version: str, warned: bool
) -> None:
    named = {"runtime.name": "apptainer", "runtime.version": version}
    verdicts = judge(facts_from({**named, "runtime.user_namespaces": False}, "site"))
    found = [verdict for verdict in verdicts if verdict.warn]
    assert [verdict.rule for verdict in found] == ["RUNTIME.needs-user-namespaces"] * warned
    # Nothing is known to be wrong where users may make them.
    allowed = judge(facts_from({**named, "runtime.user_namespaces": True}, "site"))
    assert not any(verdict.warn for verdict in allowed)


@pytest.mark.parametrize(
    ("unresolved", "known", "said"),
    [
        ("libcudart.so.13", {"cuda.majors": ("12",)}, "libcudart.so.13; the image has CUDA 12"),
        ("FABRIC_1.7", {"fabric.libfabric": "1.18.1"}, "FABRIC_1.7; libfabric is 1.18.1"),
        ("GLIBC_2.34", {"glibc.image": "2.31"}, "GLIBC_2.34; the image has glibc 2.31"),
        ("libjson-c.so.5", {"cuda.majors": ("12",)}, "libjson-c.so.5"),
    ],
)
def test_what_the_hosts_libraries_lack_is_shown_beside_what_there_is(
    unresolved: str, known: dict[str, Value], said: str
) -> None:
    facts = facts_from({**known, "injected.unresolved": (unresolved,)}, "host")
    (verdict,) = [each for each in judge(facts) if each.rule == "HOST.injected-closure"]
    assert verdict.outcome == "incompatible"
    assert verdict.reason == f"the host's libraries need what nothing brings: {said}"

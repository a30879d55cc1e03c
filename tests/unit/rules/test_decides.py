"""Each rule decides for a good stack, or at a shipped site; those that cannot say why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import RULES, RuleResult
from envbuild.rules.knowledge import shipped
from envbuild.rules.rulebook import judge, rule_ids
from envbuild.spec.load import load
from envbuild.spec.site import Site
from tests.unit.rules.stacks import good, stack

SITES = Path(__file__).parents[3] / "sites"
# Rule → why it decides for no good stack and at no shipped site.
UNDECIDED = {
    "FABRIC.provider-fails-closed": "no shipped site names efa, verbs, psm2 or opx with a setting",
    "MPI.cray-host-buffers": "no shipped site names the version of a Cray MPICH on NVIDIA's GPUs",
    "MPI.cray-needs-cuda-12": "no shipped site names the version of a Cray MPICH on NVIDIA's GPUs",
    "RUNTIME.ucx-user-namespaces": "no good stack has UCX under Apptainer",
}


def is_of_releases(rule_id: str) -> bool:
    """Return whether all rows of a rule are about releases of single packages and frameworks."""
    rows = shipped().of_rule(rule_id)
    return bool(rows) and all(
        any(path.startswith(("packages.", "frameworks.")) for path in row.if_) for row in rows
    )


def names_only_bad_stacks(rule_id: str) -> bool:
    """Return whether all rows of a rule say what is known to be bad: others give no result."""
    rows = shipped().of_rule(rule_id)
    return bool(rows) and not any(row.needs for row in rows)


def results() -> Iterator[RuleResult]:
    sites: list[Site] = []
    for path in sorted(SITES.glob("*.yaml")):
        site = load(Site, path.read_bytes(), path).value
        sites += [site.partition(name) for name in site.partitions] or [site]
    for described in good().values():
        image = stack(described.facts)
        yield from judge(image)
        for site in sites:
            yield from judge(stack_facts(image, site, host_mpi=site.mpi is not None, host_fabric=True))


@pytest.mark.slow  # it judges all sites with all good stacks
def test_a_rule_that_decides_nowhere_says_why() -> None:
    # A clash that only warns has a remedy; what facts leave open has none.
    decided = {
        result.rule
        for result in results()
        if result.outcome != "unknown" or (result.hint and not result.missing)
    }
    # A package that fits gives no result.
    explained = {rule.id for rule in RULES if rule.per_package}
    explained |= {name for name in rule_ids() if is_of_releases(name) or names_only_bad_stacks(name)}
    assert {*rule_ids()} - decided - explained == UNDECIDED.keys()

"""Score the rules on real cases: failures of public threads, stacks that work, maintenances of machines.

    python -m benchmarks.cases [-v] [DIRECTORY …]

benchmarks/cases has a directory for each collection, with up to three files of several YAML documents:

failures.yaml      `facts` of a stack; `told_by` is ``facts`` if they suffice to tell, before anything runs;
                   `about` are the facts that clash
good.yaml          `facts` of a stack that its source says works
maintenances.yaml  facts of a `site`, the `change`, and `images`, each with `facts`, `breaks` and `about`

A failure is named if a rule refuses or warns that has read the facts that clash: two of `about`, or all if
there are fewer. The files are read as `envbuild explain --facts` reads them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from envbuild.inputs.facts import read_facts
from envbuild.rules.facts import Fact
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import RuleResult
from envbuild.rules.rulebook import judge
from envbuild.workflows.explain import verdict_of

CASES = Path(__file__).resolve().parent / "cases"
COLLECTIONS = ("known", "open", "held-out", "unseen", "unseen-2")

# Facts that say the same of a stack: threads name one, and rules read another.
_ALIKE = (
    {"frameworks.pytorch.version", "packages.torch"},
    {"frameworks.tensorflow.version", "packages.tensorflow"},
    {"frameworks.jax.version", "packages.jax", "packages.jaxlib", "jax.releases"},
    {"jax.releases", "packages.jax-cuda12-plugin", "packages.jax-cuda12-pjrt"},
    {"frameworks.horovod.version", "packages.horovod"},
    {
        *("cuda.toolkit", "cuda.majors", "frameworks.pytorch.toolkit", "frameworks.tensorflow.toolkit"),
        "frameworks.jax.toolkit",
    },
    {"rocm.toolkit", "frameworks.pytorch.toolkit", "frameworks.tensorflow.toolkit", "frameworks.jax.toolkit"},
    {"gpus.architectures", "gpus.names", "gpus.vendor"},
    {"asked.accelerator", "gpus.vendor", "gpus.architectures"},
    {"frameworks.pytorch.architectures", "frameworks.pytorch.version", "frameworks.pytorch.toolkit"},
    {"frameworks.tensorflow.architectures", "frameworks.tensorflow.version"},
    {"frameworks.jax.architectures", "frameworks.jax.version"},
    {"nccl.version", "nccl.loaded", "nccl.built"},
    {"driver.version", "rocm.driver"},
    {"pmi.offered", "scheduler.version", "pmi.default"},
    {"mpi.family", "mpi.version", "pmi.spoken", "pmi.optional", "mpi.abis", "mpi.providers"},
    {"host_mpi.implementation", "host_mpi.version", "host_mpi.base_version", "host_mpi.abis"},
    {"fabric.name", "fabric.provider", "fabric.rate"},
    {"runtime.name", "runtime.version"},
    {"scheduler.name", "scheduler.version", "scheduler.pmix"},
)


class Reader:
    """Reads facts of cases as the product does, by files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "facts.yaml"
        self.unread: set[str] = set()
        """Names that are not facts."""

    def facts(self, stated: Mapping[str, Any] | None) -> dict[str, Fact]:
        """Return the facts that a case states."""
        self._path.write_text(yaml.safe_dump(dict(stated or {}), sort_keys=False))
        read = read_facts(self._path)
        self.unread.update(read.unread)
        return read.facts


def main() -> None:
    """Print a line for each file of each collection, and with -v each miss and each false alarm."""
    verbose = "-v" in sys.argv[1:]
    named = [Path(word) for word in sys.argv[1:] if word != "-v"]
    with tempfile.TemporaryDirectory() as directory:
        reader = Reader(Path(directory))
        for collection in named or [CASES / name for name in COLLECTIONS]:
            print(collection.name)
            for kind, score in (
                ("failures", score_failures),
                ("good", score_good),
                ("maintenances", score_maintenances),
            ):
                if (path := collection / f"{kind}.yaml").exists():
                    line, details = score(list(_documents(path)), reader)
                    print(f"  {line}")
                    for detail in details if verbose else ():
                        print(f"    {detail}")
        if reader.unread:
            print("not facts:", ", ".join(sorted(reader.unread)))


def score_failures(cases: Sequence[dict[str, Any]], reader: Reader) -> tuple[str, list[str]]:
    """Return how many failures are named, and the misses."""
    told = [case for case in cases if case.get("told_by", "facts") == "facts"]
    named, by_any, misses = 0, 0, []
    for case in told:
        alarms = _alarms(_judged(reader.facts(case["facts"])))
        right = [alarm for alarm in alarms if _reads(alarm, case["about"])]
        named += bool(right)
        by_any += bool(alarms)
        if not right:
            others = ", ".join(alarm.rule for alarm in alarms)
            misses.append(f"{case['id']}: {', '.join(case['about'])}" + (f"; but {others}" if others else ""))
    total = len(told) or 1
    share = f"{named} named ({named / total:.0%}), {by_any} by any rule ({by_any / total:.0%})"
    return f"{len(cases)} failures, {len(told)} told by facts: {share}", misses


def score_good(cases: Sequence[dict[str, Any]], reader: Reader) -> tuple[str, list[str]]:
    """Return how many stacks that work are refused or warned of, and by which rules."""
    refused, warned, details = 0, 0, []
    for case in cases:
        alarms = _alarms(_judged(reader.facts(case["facts"])))
        is_refused = any(verdict_of(alarm) == "reject" for alarm in alarms)
        refused += is_refused
        warned += bool(alarms) and not is_refused
        details += [f"{case['id']}: {alarm.sentence}" for alarm in alarms]
    total = len(cases) or 1
    text = f"{refused} refused ({refused / total:.1%}), {warned} warned ({warned / total:.1%})"
    return f"{len(cases)} good stacks: {text}", details


def score_maintenances(cases: Sequence[dict[str, Any]], reader: Reader) -> tuple[str, list[str]]:
    """Return how many images that a change breaks are named by the right rule, and the false alarms."""
    breaking, right, kept, false, details = 0, 0, 0, 0, []
    for case in cases:
        site, change = reader.facts(case["site"]), reader.facts(case["change"])
        for image in case["images"]:
            facts = reader.facts(image["facts"])
            before = {(alarm.rule, alarm.subject) for alarm in _alarms(_judged({**facts, **site}))}
            after = _alarms(_judged({**facts, **site, **change}))
            alarms = [alarm for alarm in after if (alarm.rule, alarm.subject) not in before]
            name = f"{case['id']}, {image['name']}"
            if image["breaks"]:
                is_right = any(_reads(alarm, image.get("about", ())) for alarm in alarms)
                breaking += 1
                right += is_right
                details += [] if is_right else [f"{name}: missed"]
            else:
                kept += 1
                false += bool(alarms)
                details += [f"{name}: {alarm.sentence}" for alarm in alarms]
    share = f"{right} of {breaking} breaking images by the right rule ({right / (breaking or 1):.0%})"
    return f"{len(cases)} maintenances: {share}, {false} false alarms on {kept} others", details


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    for document in yaml.safe_load_all(path.read_text()):
        if document:
            yield document


def _judged(facts: dict[str, Fact]) -> tuple[RuleResult, ...]:
    return tuple(judge(stack_facts(facts, None, host=facts)))


def _alarms(results: Sequence[RuleResult]) -> list[RuleResult]:
    """Return the results that refuse or warn."""
    return [result for result in results if verdict_of(result) in ("reject", "warn")]


def _reads(result: RuleResult, about: Sequence[str]) -> bool:
    """Return whether a rule has read the facts that clash: two of them, or all if there are fewer."""
    read = {*result.facts, *result.missing}
    hits = sum(any(_are_alike(path, name) for path in read) for name in about)
    return hits >= min(2, len(about))


def _are_alike(one: str, other: str) -> bool:
    return one == other or any(one in group and other in group for group in _ALIKE)


if __name__ == "__main__":
    main()

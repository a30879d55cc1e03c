"""From a simulation to problems, and from problems to findings. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from envbuild.check.findings import Finding, counts
from envbuild.check.preflight.facts import Seen
from envbuild.check.preflight.rules import LIBRARIES, OBJECTS, RULES, Problem, judge
from envbuild.check.preflight.simulate import Simulation, name_of
from envbuild.check.probe import DRIVER_LIBRARIES, HOST_LIBRARIES

SCHEMA = 1
# Of one rule so many are told one by one: the rest comes from the same cause.
_TOLD = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What a look at an image came to.

    Attributes
    ----------
    problems : tuple of Problem
        Sorted; none in a good image.
    excused : tuple of str
        Libraries that are not there and need not be: a driver's, a host's for plugins, and what
        the recipes say is lacking.
    objects, processes : int
        ELF files, and programs and modules that were simulated (count).
    facts : dict of str to object
        What the files tell, as `envbuild.compat.facts.Facts` has it: path → value.
    provides : dict of str to tuple of str
        Of the names that were asked for: those that the image's loader finds → symbol versions
        that they define.
    """

    problems: tuple[Problem, ...]
    excused: tuple[str, ...]
    objects: int
    processes: int
    facts: Mapping[str, object] = field(default_factory=dict)
    provides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def findings(self) -> list[Finding]:
        """Return a line of a report for each problem, and for each rule without any."""
        result = []
        for rule, expected in RULES.items():
            told = [problem for problem in self.problems if problem.rule == rule]
            result += [_finding(problem) for problem in told[:_TOLD]]
            if len(told) > _TOLD:
                more = f"{len(told) - _TOLD} more of this rule"
                result.append(Finding("FAIL", rule, expected, more, "`--json` tells all"))
            if not told:
                result.append(Finding("PASS", rule, expected, self._observed(rule)))
        return result

    def _observed(self, rule: str) -> str:
        if rule == LIBRARIES and self.excused:
            return f"all; left to the host or lacking as the recipes say: {', '.join(self.excused)}"
        return f"{self.objects} ELF files" if rule == OBJECTS else f"{self.processes} processes"

    def document(self, image: Mapping[str, str]) -> dict[str, object]:
        """Return it as JSON data, schema `SCHEMA`.

        Keys: ``schema``, ``image``, ``passed``, ``counts``, ``objects``, ``processes``,
        ``excused``, ``problems`` (all; fields of `Problem`), ``findings`` (as in a test's report).
        """
        findings = self.findings()
        return {
            "schema": SCHEMA,
            "image": dict(image),
            "passed": self.passed,
            "counts": counts(findings),
            "objects": self.objects,
            "processes": self.processes,
            "excused": list(self.excused),
            "problems": [asdict(problem) for problem in self.problems],
            "findings": [asdict(finding) for finding in findings],
        }


def examine(simulation: Simulation, *, lacks: Collection[str] = (), names: Collection[str] = ()) -> Preflight:
    """Look at every process of an image.

    Parameters
    ----------
    lacks : collection of str
        Libraries that recipes say nothing brings.
    names : collection of str
        Libraries to tell of whether the image has them.
    """
    seen = Seen(simulation)
    problems: set[Problem] = set()
    missing: dict[str, set[str]] = {}
    count = 0
    for process in simulation.processes():
        count += 1
        for one in process.closure.missing:
            missing.setdefault(simulation.tree.real(one.path) or one.path, set()).add(one.name)
        problems |= set(judge(process, simulation))
        seen.add(process)
    told, excused = _unexcused(missing, simulation, frozenset(lacks))
    problems |= set(told)
    problems |= {
        Problem(rule=OBJECTS, file=path, need="a whole ELF file", winner=why, hint="it is damaged")
        for path, why in simulation.tree.unreadable.items()
    }
    every = tuple(_once(sorted(problems)))
    found = {name: simulation.find(name) for name in sorted(names)}
    return Preflight(
        problems=every,
        excused=tuple(sorted(excused)),
        objects=len(simulation.objects),
        processes=count,
        facts=seen.facts(every),
        provides={name: elf.versions_defined for name, elf in found.items() if elf is not None},
    )


def _unexcused(
    missing: Mapping[str, set[str]], simulation: Simulation, lacks: frozenset[str]
) -> tuple[list[Problem], set[str]]:
    excused: set[str] = set()
    left: dict[str, set[str]] = {}
    for path, names in missing.items():
        fine = {name for name in names if name in lacks or DRIVER_LIBRARIES.match(name)}
        excused |= fine
        if names - fine:
            left[path] = names - fine
    plugins = _plugins(left, simulation)
    for path in plugins:
        excused |= left.pop(path)
    problems = [
        Problem(
            rule=LIBRARIES,
            file=path,
            need=name,
            winner="nothing",
            hint="add what brings it to the spec's packages, or name its directory in LD_LIBRARY_PATH",
        )
        for path, names in left.items()
        for name in names
    ]
    return problems, excused


def _plugins(missing: Mapping[str, set[str]], simulation: Simulation) -> set[str]:
    """Return what lacks only libraries of a host, is no program, and only its like lean on."""

    def elf(path: str) -> tuple[str, bool, tuple[str, ...]]:
        found = simulation.tree.lookup(path)
        return (name_of(path, found), bool(found.interpreter), found.needed) if found else ("", True, ())

    plugins = {
        path
        for path, names in missing.items()
        if not elf(path)[1] and all(HOST_LIBRARIES.match(name) for name in names)
    }
    while True:
        leaning = {
            name
            for path, found in simulation.objects.items()
            if path not in plugins
            for name in found.elf.needed
        }
        kept = {path for path in plugins if not {elf(path)[0], path.rpartition("/")[2]} & leaning}
        if kept == plugins:
            return plugins
        plugins = kept


def _once(problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yield each thing once: many programs may load the same two copies."""
    seen: set[tuple[str, str, str]] = set()
    for problem in problems:
        asks = "" if problem.rule in _OF_A_PROCESS else problem.file
        key = (problem.rule, asks + problem.need, problem.winner)
        if key not in seen:
            seen.add(key)
            yield problem


_OF_A_PROCESS = {"P1.copies", "P1.cudnn"}


def _finding(problem: Problem) -> Finding:
    return Finding("FAIL", problem.rule, problem.need, f"{problem.file} gets {problem.winner}", problem.hint)

"""From a simulation to problems, and from problems to findings. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from envbuild.check.findings import Finding, counts
from envbuild.check.preflight.facts import Seen
from envbuild.check.preflight.requires import PythonSide
from envbuild.check.preflight.rules import LIBRARIES, OBJECTS, PYTHON, PYTHON_ABI, RULES, Problem, judge
from envbuild.check.preflight.simulate import Simulation, name_of
from envbuild.check.probe import DRIVER_LIBRARIES, HOST_LIBRARIES
from envbuild.compat.from_image import ReadFacts
from envbuild.elf.gpu import GpuCode

SCHEMA = 1
_OF_THE_IMAGE = "add what brings it to the spec's packages, or name its directory in LD_LIBRARY_PATH"
_OF_THE_HOST = (
    "the host lends what needs it, and must lend it as well: name it in the site file's `libraries`"
)
_OF_THE_CACHE = (
    "it came after the last `ldconfig`, and the image is read-only: name its directory in LD_LIBRARY_PATH"
)
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
    distributions : int
        Python distributions of which the requirements were judged (count).
    gpu_code : dict of str to GpuCode
        Path → code for GPUs that the file holds.
    told : ReadFacts
        What the files tell for `envbuild.compat.from_image`.
    provides : dict of str to tuple of str
        Of the names that were asked for: those that the image's loader finds → symbol versions
        that they define.
    """

    problems: tuple[Problem, ...]
    excused: tuple[str, ...]
    objects: int
    processes: int
    distributions: int = 0
    gpu_code: Mapping[str, GpuCode] = field(default_factory=dict)
    told: ReadFacts = field(default_factory=ReadFacts)
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
        if rule in (PYTHON, PYTHON_ABI):
            return f"{self.distributions} distributions"
        return f"{self.objects} ELF files" if rule == OBJECTS else f"{self.processes} processes"

    def document(self, image: Mapping[str, str]) -> dict[str, object]:
        """Return it as JSON data, schema `SCHEMA`.

        Keys: ``schema``, ``image``, ``passed``, ``counts``, ``objects``, ``processes``,
        ``distributions``, ``excused``, ``problems`` (all; fields of `Problem`), ``findings``
        (as in a test's report).
        """
        findings = self.findings()
        return {
            "schema": SCHEMA,
            "image": dict(image),
            "passed": self.passed,
            "counts": counts(findings),
            "objects": self.objects,
            "processes": self.processes,
            "distributions": self.distributions,
            "excused": list(self.excused),
            "problems": [asdict(problem) for problem in self.problems],
            "findings": [asdict(finding) for finding in findings],
        }


def examine(
    simulation: Simulation,
    *,
    lacks: Collection[str] = (),
    names: Collection[str] = (),
    python: PythonSide = PythonSide(),  # noqa: B008  # frozen
) -> Preflight:
    """Look at every process of an image.

    Parameters
    ----------
    lacks : collection of str
        Libraries that recipes say nothing brings.
    names : collection of str
        Libraries to tell of whether the image has them.
    python : PythonSide
        What was found of its Python distributions.
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
    problems |= set(python.problems)
    problems |= {
        Problem(rule=OBJECTS, file=path, need="a whole ELF file", winner=why, hint="it is damaged")
        for path, why in simulation.tree.unreadable.items()
    }
    every = tuple(_once(sorted(problems)))
    code = {path: one.gpu for path, one in simulation.objects.items() if one.gpu is not None}
    found = {name: simulation.find(name) for name in sorted(names)}
    return Preflight(
        problems=every,
        excused=tuple(sorted(excused)),
        objects=len(simulation.objects),
        processes=count,
        distributions=python.distributions,
        gpu_code=code,
        told=seen.told(every, code),
        provides={name: one.elf.versions_defined for name, one in found.items() if one is not None},
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
    problems = [_missing(path, name, simulation) for path, names in left.items() for name in names]
    return problems, excused


def _missing(path: str, name: str, simulation: Simulation) -> Problem:
    uncached = simulation.uncached(name)
    hint = _OF_THE_HOST if simulation.is_lent(path) else _OF_THE_IMAGE
    return Problem(
        rule=LIBRARIES,
        file=path,
        need=name,
        winner=f"nothing, for {uncached} is not in the loader's cache" if uncached else "nothing",
        hint=_OF_THE_CACHE if uncached else hint,
    )


def _plugins(missing: Mapping[str, set[str]], simulation: Simulation) -> set[str]:
    """Return what lacks only libraries of a host, is no program, and only its like lean on.

    What a host lends is none: nobody else could bring what it lacks.
    """

    def elf(path: str) -> tuple[str, bool, tuple[str, ...]]:
        found = simulation.tree.lookup(path)
        return (name_of(path, found), bool(found.interpreter), found.needed) if found else ("", True, ())

    plugins = {
        path
        for path, names in missing.items()
        if not elf(path)[1]
        and not simulation.is_lent(path)
        and all(HOST_LIBRARIES.match(name) for name in names)
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

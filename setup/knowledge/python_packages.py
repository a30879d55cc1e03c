"""Python packages: Pythons and C libraries of their wheels, and what their metadata requires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import Specifier
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.rules.judge import Severity
from envbuild.rules.knowledge import Entry, Ranges, Row
from envbuild.spec.python_platform import marker_environment
from knowledge.index import Reading, series_of
from knowledge.ranges import Series, equal_runs, following, newest
from knowledge.stored import Input
from knowledge.write import new_row, new_table


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework, and the distribution whose wheels hold its compiled code."""

    name: str
    distribution: str
    title: str

    @property
    def path(self) -> str:
        """The fact of its version."""
        return f"frameworks.{self.name}.version"


FRAMEWORKS = (
    Framework("pytorch", "torch", "PyTorch"),
    Framework("tensorflow", "tensorflow", "TensorFlow"),
    Framework("jax", "jaxlib", "JAX"),
)
_VERSION_FACTS = {"torch": FRAMEWORKS[0].path, "tensorflow": FRAMEWORKS[1].path, "jax": FRAMEWORKS[2].path}


@dataclass(frozen=True, slots=True)
class Pair:
    """A distribution, and one that its releases require in a range of versions."""

    distribution: str
    required: str
    rule: str
    severity: Severity = "warning"


PAIRS = (Pair("jax", "numpy", "NUMPY.of-framework"),)
# Libraries of CUDA that a framework asks for.
_CUDA = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-", "nvidia-cudnn-", "nvidia-nccl-")
# CUDA's libraries that call nvJitLink.
_LINKED = ("cusparse", "cusolver", "cufft")
READ: Mapping[str, Reading] = {
    "torch": Reading("1.13", ("cuda-toolkit", *_CUDA)),
    "tensorflow": Reading("1.13", _CUDA),
    "jaxlib": Reading("0.5"),
    # It names another NumPy also in releases of one series.
    "jax": Reading("0.4.16", ("numpy",), depth=3),
    "jax-cuda12-plugin": Reading("0.5", _CUDA),
    "jax-cuda13-plugin": Reading("0.7", _CUDA),
    "cupy-cuda12x": Reading("14.0", ("cuda-toolkit",)),
    "cupy-cuda13x": Reading("14.0", ("cuda-toolkit",)),
    "cuda-toolkit": Reading(
        "12.0", tuple(f"nvidia-{name}{suffix}" for name in _LINKED for suffix in ("", "-cu12"))
    ),
}
PREFIX = "index-"
"""Prefix of the names of their stored inputs."""
INPUTS = tuple(f"{PREFIX}{name}" for name in READ)


def rows(inputs: Mapping[str, Input]) -> Iterator[Entry]:
    """Yield the rows of all packages."""
    inputs = {name: inputs[f"{PREFIX}{name}"] for name in READ}
    for framework in FRAMEWORKS:
        source = inputs[framework.distribution]
        yield from _pythons(framework, source)
        yield from _c_libraries(framework, source)
    for pair in PAIRS:
        yield from _required(pair, inputs[pair.distribution])
    yield from _cudnn(inputs)
    for name in ("cupy-cuda12x", "cupy-cuda13x"):
        yield _major(name, inputs[name])
    yield from _nvjitlink(inputs["cuda-toolkit"])


def python_range(pythons: Sequence[str]) -> str:
    """Return the range from the first to the last of some Pythons."""
    ordered = sorted(pythons, key=Version)
    return f">={ordered[0]},<{following(ordered[-1])}"


def _pythons(framework: Framework, source: Input) -> Iterator[Row]:
    by_series = {key: python_range(facts["python"]["amd64"]) for key, facts in source.facts.items()}
    fix = "take another base image, or another version of the framework"
    title = f"wheel tags of {framework.distribution}, read from the index"
    for series, range_ in equal_runs(by_series):
        first, _, end = range_.removeprefix(">=").partition(",<")
        major, minor = end.split(".")
        yield new_row(
            "PYTHON.framework-range",
            if_={framework.path: series.specifier},
            needs={"python.version": range_},
            reason=f"{_words(framework, series)} is for Python {first} to {major}.{int(minor) - 1}",
            fix=fix,
            source=title,
            seen=source.date,
        )
    after = following(newest(source.facts))
    yield new_row(
        "PYTHON.framework-range",
        if_={framework.path: f">={after}"},
        needs={"python.version": "?"},
        reason=f"which Python {framework.title} {after} and newer are for has not been read",
        fix=fix,
        source=title,
        seen=source.date,
    )


def _words(framework: Framework, series: Series) -> str:
    if series.first == series.last:
        return f"{framework.title} {series.first}"
    return f"{framework.title} from {series.first} to before {series.end}"


def _c_libraries(framework: Framework, source: Input) -> Iterator[Row]:
    for series, floors in equal_runs({key: _floors(facts) for key, facts in source.facts.items()}):
        for architecture, floor in floors:
            condition = {"architecture.image": architecture} if architecture else {}
            on = f" on {architecture}" if architecture else ""
            yield new_row(
                "GLIBC.framework-floor",
                if_={framework.path: series.specifier, **condition},
                needs={"glibc.image": f">={floor}"},
                reason=f"the wheels of {_words(framework, series)} need glibc {floor}{on}",
                source=f"wheel tags of {framework.distribution}, read from the index",
                seen=source.date,
                fix="take a newer base image, or an older version of the framework",
            )


def _floors(facts: Mapping[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """Return architectures with the C library that their wheels name; ("", floor) if it is the same for all.

    The tags manylinux1 and manylinux2010 are left out: wheels had them that needed newer libraries.
    """
    known = {key: floor for key, floor in facts["glibc"].items() if Version(floor) >= Version("2.17")}
    if not known:
        return None
    if len(set(known.values())) == 1 and known.keys() == facts["glibc"].keys():
        return (("", next(iter(known.values()))),)
    return tuple(sorted(known.items()))


def _required(pair: Pair, source: Input) -> Iterator[Entry]:
    by_series = {key: _ranges(pair.required, facts) or None for key, facts in source.facts.items()}
    runs = list(equal_runs(by_series))
    title = f"Requires-Dist of {pair.distribution}, read from the index"
    fix = f"take the {pair.required} that it requires, or another {pair.distribution}"
    of_all = {series.specifier: ranges[0][1] for series, ranges in runs if not ranges[0][0]}
    yield new_table(
        pair.rule,
        if_=fact_of(pair.distribution),
        needs=fact_of(pair.required),
        ranges=of_all,
        severity=pair.severity,
        source=title,
        seen=source.date,
        fix=fix,
    )
    for series, ranges in runs:
        for python, range_ in ranges:
            if python:
                yield new_row(
                    pair.rule,
                    if_={fact_of(pair.distribution): series.specifier, "python.version": python},
                    needs={fact_of(pair.required): range_},
                    reason=f"{pair.distribution} {series.words} requires {pair.required} {range_}"
                    f" on Python {python}",
                    severity=pair.severity,
                    source=title,
                    seen=source.date,
                    fix=fix,
                )


def fact_of(distribution: str) -> str:
    """Return the fact of a distribution's version."""
    return _VERSION_FACTS.get(distribution, f"packages.{distribution}")


def _ranges(required: str, facts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return ranges of Python, each with the range of a required distribution; an empty one for all."""
    pythons = facts["python"]["amd64"]
    by_python = {python: range_of(required, facts, python) for python in pythons}
    if len({*by_python.values()}) == 1:
        return (("", by_python[pythons[0]]),) if by_python[pythons[0]] else ()
    runs = list(equal_runs(by_python))
    return tuple((_open_ended(series, pythons), range_) for series, range_ in runs if range_)


def _open_ended(series: Series, pythons: Sequence[str]) -> str:
    """Return a range of Pythons, without the ends that the release has anyway."""
    lower = [] if series.first == pythons[0] else [f">={series.first}"]
    upper = [] if series.last == pythons[-1] else [f"<{series.end}"]
    return ",".join([*lower, *upper])


def range_of(required: str, facts: Mapping[str, Any], python: str, extra: str = "") -> str:
    """Return the range of versions that a release requires of a distribution; empty if it requires none."""
    environment = {**marker_environment(python, "amd64"), "extra": extra}
    clauses: list[Specifier] = []
    for text in facts["requires"].get("amd64", ()):
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate(environment)
        if canonicalize_name(requirement.name) == required and applies:
            clauses += requirement.specifier
    parts = {part for clause in clauses for part in _parts(clause)}
    lower = sorted((part for part in parts if part.startswith(">=")), key=lambda part: Version(part[2:]))
    return ",".join(sorted(parts - {*lower[:-1]}, key=_order))


def _order(clause: str) -> tuple[int, str]:
    return (">=!<".find(clause[0]), clause)


def _parts(clause: Specifier) -> Iterator[str]:
    """Yield a clause in the words of rows.

    An exact version counts for its series: of each series the newest release alone was read, and older ones
    may name another one.
    """
    version = clause.version
    if clause.operator == "~=":
        upper = ".".join(version.split(".")[:-1])
        yield from (f">={version}", f"<{following(upper)}")
    elif clause.operator == "==" and not version.endswith(".*"):
        yield f"=={series_of(version)}.*"
    else:
        yield f"{clause.operator}{version}"


def _cudnn(inputs: Mapping[str, Input]) -> Iterator[Row]:
    """Yield the major of cuDNN that builds of PyTorch and JAX load: builds from source take other minors."""
    torch = inputs["torch"]
    builds = {key: _cudnn_of_torch(facts) for key, facts in torch.facts.items()}
    for series, (toolkit, major) in equal_runs(builds):
        condition = {FRAMEWORKS[0].path: series.specifier, "frameworks.pytorch.accelerator": "cuda"}
        # Vendors build the same release for a newer CUDA with the next major of cuDNN.
        condition["frameworks.pytorch.toolkit"] = f"=={toolkit}.*"
        yield _cudnn_row(condition, f"PyTorch {series.words} for CUDA {toolkit}", major, torch)
    for toolkit in ("12", "13"):
        plugin = inputs[f"jax-cuda{toolkit}-plugin"]
        majors = {key: _cudnn_of_jax(toolkit, facts) for key, facts in plugin.facts.items()}
        for series, major in equal_runs(majors):
            condition = {FRAMEWORKS[2].path: series.specifier, "frameworks.jax.accelerator": "cuda"}
            condition["frameworks.jax.toolkit"] = f"=={toolkit}.*"
            yield _cudnn_row(condition, f"JAX {series.words} for CUDA {toolkit}", major, plugin)


def _cudnn_of_torch(facts: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the CUDA of a release of PyTorch, and the major of the cuDNN that it requires."""
    python = facts["python"]["amd64"][-1]
    toolkit = cuda_of(facts, python)
    major = _lowest_major(range_of(f"nvidia-cudnn-cu{toolkit.partition('.')[0]}", facts, python))
    return (toolkit, major) if major else None


def _cudnn_of_jax(toolkit: str, facts: Mapping[str, Any]) -> int | None:
    """Return the major of the cuDNN that a release of JAX's plug-in for a CUDA requires."""
    python = facts["python"]["amd64"][0]
    return _lowest_major(range_of(f"nvidia-cudnn-cu{toolkit}", facts, python, "with-cuda"))


def _lowest_major(range_: str) -> int | None:
    """Return the major of the lower limit of a range, which is also that of its upper one."""
    limits = [part for part in range_.split(",") if part.startswith(("==", ">="))]
    return int(limits[0][2:].partition(".")[0]) if limits else None


def cuda_of(facts: Mapping[str, Any], python: str, extra: str = "") -> str:
    """Return the CUDA release whose run-time library a release requires; empty if it requires none."""
    for name in (
        "cuda-toolkit",
        *(f"nvidia-cuda-runtime-cu{major}" for major in (11, 12)),
        "nvidia-cuda-runtime",
    ):
        pin = range_of(name, facts, python, extra)
        if pin.startswith("=="):
            return pin.removeprefix("==").removesuffix(".*")
    return ""


def _cudnn_row(condition: Mapping[str, str], title: str, major: int, source: Input) -> Row:
    return new_row(
        "CUDNN.of-framework",
        if_=condition,
        needs={"cudnn.loaded": f">={major},<{major + 1}"},
        reason=f"{title} is built with cuDNN {major}",
        severity="warning",
        source="Requires-Dist of the wheels, read from the index",
        seen=source.date,
        fix="load the cuDNN that was installed with the framework",
    )


def _major(name: str, source: Input) -> Row:
    """Return the major of CUDA that a CuPy is for."""
    facts = source.facts[source.until]
    major = cuda_of(facts, facts["python"]["amd64"][-1], "ctk")
    return new_row(
        "CUDA.package-of-major",
        if_={f"packages.{name}": ">=0", "cuda.toolkit": ">=0"},
        needs={"cuda.majors": major},
        reason=f"{name} opens the libraries of CUDA {major}",
        source=f"Requires-Dist of {name}, read from the index; https://github.com/rapidsai/deployment/issues/709",
        seen=source.date,
        fix="take the cupy for the CUDA of the image",
    )


def _nvjitlink(source: Input) -> Iterator[Ranges]:
    """Yield the nvJitLink that libraries of a CUDA release call: its symbols are named for the minor."""
    for library in _LINKED:
        for suffix, major in (("-cu12", "12"), ("", "13")):
            name = f"nvidia-{library}{suffix}"
            versions = {
                release: _exact(name, library, facts)
                for release, facts in source.facts.items()
                if release.startswith(f"{major}.")
            }
            ranges = {}
            known = sorted((release for release in versions if versions[release]), key=Version)
            for release, after in zip(known, [*known[1:], ""], strict=True):
                before = f",<{versions[after]}" if after else ""
                ranges[f">={versions[release]}{before}"] = f">={release}"
            yield new_table(
                "CUDA.nvjitlink-of-libraries",
                if_=f"packages.{name}",
                needs=f"packages.nvidia-nvjitlink{suffix}",
                ranges=ranges,
                severity="warning",
                source="Requires-Dist of cuda-toolkit, read from the index;"
                " https://github.com/rapidsai/build-planning/issues/253",
                seen=source.date,
                fix=f"take the nvidia-nvjitlink{suffix} of the same CUDA release, or a newer one",
            )


def _exact(name: str, extra: str, facts: Mapping[str, Any]) -> str:
    """Return the version of a library in a CUDA release; empty if it is not there."""
    for text in facts["requires"].get("amd64", ()):
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == name and f'extra == "{extra}"' in str(requirement.marker):
            pins = [clause.version for clause in requirement.specifier if clause.operator == "=="]
            return next((pin.removesuffix(".*") for pin in pins), "")
    return ""

"""Errors for people out of the reasons that keep uv from an answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from pathlib import Path

from packaging.requirements import Requirement

from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, near, some
from envbuild.resolve.context import NOT_HERE_HINT
from envbuild.resolve.distributions import asking_chain, asking_path
from envbuild.resolve.skipped_releases import Judgement
from envbuild.resolve.uvtext import UvFailure
from envbuild.spec.python_request import PythonRequest
from envbuild.spec.requirements import RequirementEntry
from envbuild.system.redaction import redact

_SHOWN = 10  # names in an error
# Name of a module → the distribution that has it.
_MODULES = {
    "bio": "biopython",
    "cv2": "opencv-python-headless",
    "dotenv": "python-dotenv",
    "pil": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
# Distributions of indexes that are not what their name is known for.
_STRANGERS = {
    "apex": "`apex` of the index is another project: NVIDIA's has a git repository"
    " (`{name: apex, git: …, commit: …}`)",
    "pytorch": "`pytorch` of the index is a placeholder: write `frameworks: [pytorch]`",
}
# To be formatted with `origin`.
PYTORCH_HINT = (
    "`pip config set global.find-links DIR` names a directory with the wheels; a site file names another"
    " index (`origins: {{{origin}: [ADDRESS]}}`); https_proxy names a proxy; `envbuild doctor"
    " --online` asks again"
)
_ASK = "`envbuild doctor lock --online` asks the indexes"


class ResolutionError(RequestError):
    """Requirements cannot be resolved, or a distribution has no wheel."""

    def __init__(
        self,
        problem: str,
        *,
        hint: str,
        at: Location | None,
        names: Sequence[str],
        unavailable: Collection[str],
        failures: Sequence[UvFailure],
        summary: str = "",
        without_wheels: Collection[str] = (),
    ) -> None:
        super().__init__(problem, hint=hint, at=at)
        self.summary = summary or problem
        """The problem as a part of another sentence."""
        self.names = tuple(names)
        """The distributions that it is about, the first first."""
        self.unavailable = frozenset(unavailable)
        """Distributions of which no index has a usable file."""
        self.without_wheels = frozenset(without_wheels)
        """Those of which no wheel fits, though an index has them."""
        self.failures = tuple(failures)
        """uv's reasons, up to this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UvErrors:
    """Makes errors for one request."""

    request: PythonRequest
    log: Path
    """File with uv's messages."""
    offline: bool
    addresses: Mapping[str, tuple[str, ...]]
    """Origin → addresses that are asked."""
    unreachable: Mapping[str, str]
    """Origin → the address that was left out, and why it cannot be reached."""
    nearest_versions: Callable[[Requirement], list[str]]
    """Returns the versions next to those of a requirement."""
    failures: tuple[UvFailure, ...]
    """All failures for this request, in their order."""

    def failure(self, failure: UvFailure) -> EnvbuildError:
        """Return the error for a failure."""
        if failure.kind == "unreadable-wheel":
            return self._unreadable_wheel(failure)
        if failure.kind == "no-solution":
            return self._unreachable_origin(failure) or self._no_solution(failure)
        problem, hint = self._of_machine(failure)
        return MachineError(problem, hint=hint)

    def _of_machine(self, failure: UvFailure) -> tuple[str, str]:
        """Return problem and hint of a failure that has nothing to do with the request."""
        match failure.kind:
            case "limit":
                problem = f"uv needed more than {failure.reason}, and was ended"
                hint = (
                    f"an index that answers without end causes that: {_ASK}; uv's output is in `{self.log}`"
                )
            case "unauthorized":
                problem = f"the index {failure.closed_index} requires authentication (HTTP {failure.status})"
                hint = "set user and password in pip's or uv's configuration, or in ~/.netrc"
            case "certificate":
                problem = (
                    f"the certificate of a Python index is not trusted here; uv's output is in `{self.log}`"
                )
                hint = "SSL_CERT_FILE names the certificates that your network needs"
            case "unreachable":
                problem = f"{redact(failure.address)} was asked, and cannot be reached: {failure.cause}"
                hint = (
                    "`pip config set global.index-url ADDRESS` names another index, and so does a site file"
                    " (`origins: {pypi: [ADDRESS]}`); if several addresses serve the same files,"
                    " `mirrors: [pypi]` lets the next stand in; https_proxy names a proxy;"
                    " `envbuild doctor --online` asks each"
                )
            case _:
                problem = f"uv failed: {failure.reason}"
                hint = f"read why in {self.log}; {_ASK}"
        return problem, hint

    def not_here(self, failures: Sequence[UvFailure]) -> Iterator[RequestError]:
        """Yield one error for all distributions that would be fetched if there were a network."""
        versions = {name: version for failure in failures for name, version in failure.not_cached.items()}
        if versions:
            names = [f"`{f'{name} {version}'.rstrip()}`" for name, version in sorted(versions.items())]
            verb = "is" if len(names) == 1 else "are"
            concerned = (name for failure in failures for name in failure.names)
            yield RequestError(
                f"offline: {some(names, _SHOWN)} {verb} not on this machine",
                at=self.request.location_of(*versions, *concerned),
                hint=NOT_HERE_HINT,
            )

    def without_wheels(
        self,
        failures: Mapping[str, UvFailure],
        via: Mapping[str, Sequence[str]],
        skipped: Judgement | None = None,
    ) -> Iterator[ResolutionError]:
        """Yield one error for all distributions without a wheel; `failures` maps each to uv's reason.

        `via` has the distributions that require each directly, as far as they are known. `skipped` has
        distributions of which only an old release has, or needs, no other wheel.
        """
        skipped = skipped or Judgement()
        lacking = {*failures, *skipped.without_wheels}
        if not lacking:
            return
        buildable = {*self.request.from_source, *lacking - {*_MODULES, *_STRANGERS}}
        key = f"`from_source: [{', '.join(sorted(buildable))}]` under `packages`"
        hints = list(filter(None, (self._wheel_hint(name) for name in failures)))
        if len(failures) == 1 and not hints and not skipped.unbuilt:
            hints = [failure.reason for failure in failures.values()]
        names = tuple(name for of_one, failure in failures.items() for name in (of_one, *failure.names))
        recent = "no wheel fits" if failures else "no wheel of a recent release fits"
        shown = dict.fromkeys((*failures, *skipped.unbuilt))
        summary = f"{some([f'`{name}`' for name in shown], _SHOWN)}: {recent} {self.request.target}"
        lines = [self._line_of(name, failure, via) for name, failure in failures.items()]
        if len(shown) == 1 and next(iter(failures), "") in self._requested:
            lines = []  # its place is that of the error
        lines += [f"\n  {line}" for line in skipped.unbuilt.values()]
        builds = [f"{key} builds what has a source archive"] if buildable else []
        accepts = some([f"`{text}`" for text in skipped.accepted])
        accepts += " accept the old releases" if len(skipped.accepted) > 1 else " accepts the old release"
        yield ResolutionError(
            summary + "".join(lines) + self._required_by(tuple(failures), bounds=False),
            at=self.request.location_of(*names, *skipped.asking),
            hint="; ".join([*hints, *builds, *([accepts] if skipped.accepted else [])]),
            names=(*names, *skipped.unbuilt),
            unavailable=failures.keys(),
            failures=self.failures,
            summary=summary,
            without_wheels=lacking,
        )

    @property
    def _requested(self) -> dict[str, RequirementEntry]:
        return {entry.name: entry for entry in reversed(self.request.written)}

    def _line_of(self, name: str, failure: UvFailure, via: Mapping[str, Sequence[str]]) -> str:
        """Return a line on who asks for a distribution; empty if that is unknown."""
        path = asking_path(name, via or {name: failure.names}, self.request)
        is_known = len(path) > 1 or name in self._requested
        return f"\n  {asking_chain(path, self.request)}" if is_known else ""

    def _wheel_hint(self, name: str) -> str:
        """Return a name or versions of a distribution that have a wheel; empty if there are none."""
        if name in _MODULES:
            return _module_hint(name)
        if name in _STRANGERS:
            return _STRANGERS[name]
        requirements = (entry.requirement for entry in self.request.written if entry.name == name)
        bounded = next((requirement for requirement in requirements if requirement.specifier), None)
        if bounded is not None and (versions := self.nearest_versions(bounded)):
            return f"versions of `{name}` with a wheel: {' and '.join(versions)}"
        return ""

    def _unreadable_wheel(self, failure: UvFailure) -> RequestError:
        wheel = self.request.explicit_wheels[failure.unreadable].wheel
        return RequestError(
            f"`{wheel.file if wheel else failure.unreadable}` is not a wheel that can be read",
            at=self.request.location_of(failure.unreadable),
            hint=f"build or copy it again; uv's output is in `{self.log}`",
        )

    def _unreachable_origin(self, failure: UvFailure) -> MachineError | None:
        """Return the error for a distribution whose origin was left out, if one is missing."""
        for name in sorted(failure.missing & self.request.origins.keys()):
            for origin in self.request.origins[name]:
                if origin in self.unreachable:
                    required_by = self._required_by(failure.names, bounds=True)
                    return MachineError(
                        f"there are no wheels of `{name}`: {self.unreachable[origin]}{required_by}",
                        at=self.request.location_of(name),
                        hint=PYTORCH_HINT.format(origin=origin),
                    )
        return None

    def _no_solution(self, failure: UvFailure) -> ResolutionError:
        hint = self._origin_hint(failure) or self._nearest_hint(failure)
        if not hint and not self.offline and failure.unknown:
            names = ", ".join(f"`{name}`" for name in sorted(failure.unknown))
            hint = f"no index has {names}; `find_links` in site.yaml names a directory with wheels of yours"
        hint = hint or f"loosen or drop one of them; uv's whole reasoning is in {self.log}"
        if self.offline:
            hint = f"only packages on this machine were considered (`--offline`); {hint}"
        chains = "".join(
            f"\n  {asking_chain(path, self.request)}" for path in islice(self._chains(failure), _SHOWN)
        )
        summary = failure.reason + chains + self._required_by(failure.names, bounds=True)
        return ResolutionError(
            summary if failure.is_unknown_name else f"the Python requirements cannot be satisfied: {summary}",
            at=self.request.location_of(*failure.names),
            hint=hint,
            names=failure.names,
            unavailable=failure.unknown,
            failures=self.failures,
            summary=summary,
        )

    def _chains(self, failure: UvFailure) -> Iterator[list[str]]:
        """Yield what clashes, what requires it, and so on to a request, if others are between the two."""
        requests = [entry.name for entry in (*self.request.written, *self.request.of_recipes)]
        for request in dict.fromkeys(requests):
            paths, seen = [[request]], {request}
            for path in paths:  # the list grows
                new = [name for name in failure.requires.get(path[0], ()) if name not in seen]
                seen.update(new)
                paths += [[name, *path] for name in new]
                if len(path) > 2 and (path[0] in requests or path[0] not in failure.requires):
                    yield path

    def _required_by(self, names: Sequence[str], *, bounds: bool) -> str:
        """Return lines with the recipes that ask for distributions; empty if the spec alone does."""
        entries = self.request.required_by(names, bounds=bounds)
        return "".join(f"\n  the recipe `{entry.recipe}` asks for {entry.requirement}" for entry in entries)

    def _nearest_hint(self, failure: UvFailure) -> str:
        """Return the names or versions that are nearest to what no origin has; empty if there are none."""
        hints = []
        for entry in self.request.written:
            if entry.name not in failure.missing:
                continue
            if entry.name in _MODULES:
                hints.append(_module_hint(entry.name))
            elif versions := self.nearest_versions(entry.requirement):
                nearest = (
                    f"version of `{entry.name}` is"
                    if len(versions) == 1
                    else f"versions of `{entry.name}` are"
                )
                hints.append(f"the nearest {nearest} {' and '.join(versions)}")
            elif "+" in str(entry.requirement.specifier):
                label = str(entry.requirement.specifier).partition("+")[2]
                hints.append(
                    f"`+{label}` is a build that the configured indexes do not have: leave the label out, or"
                    " name a place with it (`find_links`)"
                )
            elif similar := _similar_name(entry.name):
                corrected = entry.text.strip().replace(entry.requirement.name, similar, 1)
                hints.append(f"did you mean `{corrected}`?")
        return "; ".join(hints)

    def _origin_hint(self, failure: UvFailure) -> str:
        """Return what to configure if a missing distribution's origin has no address; else empty."""
        for name in sorted(failure.missing & self.request.origins.keys()):
            origin = self.request.origins[name][0]
            if origin != "pypi" and not self.addresses.get(origin):
                return (
                    f"`{name}` comes from the origin `{origin}`, which cannot be asked: give it an address in"
                    f" a site file (`origins: {{{origin}: [ADDRESS]}}`), or name a place with the wheel"
                    " (`find_links`; pip's find-links does too)"
                )
        return ""


def _module_hint(name: str) -> str:
    return f"did you mean `{_MODULES[name]}`? `{name}` is the name of its module"


def _similar_name(name: str) -> str:
    """Return the common distribution that a name may mean; empty if none, or if it is one itself."""
    common = _common_names()
    return "" if name in common else next(iter(near(name, common, cutoff=0.75)), "")


def _common_names() -> list[str]:
    """Return distributions that people often ask for."""
    return (resources.files(__package__) / "common_names.txt").read_text(encoding="utf-8").split()

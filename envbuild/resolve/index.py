"""Chooses distributions with uv: first versions, then the files of these versions.

uv reports one obstacle and stops, so it is asked again without that, a limited number of times.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic as clock
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import EnvbuildError, RequestError, pluralize, raise_all
from envbuild.events import Warned, task
from envbuild.resolve import skipped_releases, uvtext
from envbuild.resolve.context import ResolveContext, cannot_write
from envbuild.resolve.distributions import DistFile, Resolution, ResolvedDistribution, choose_files, satisfies
from envbuild.resolve.obtain import obtain
from envbuild.resolve.origins import PythonSources, without_credentials
from envbuild.resolve.skipped_releases import Judgement
from envbuild.resolve.source_archives import read_archive
from envbuild.resolve.sources import Source
from envbuild.resolve.uv import UvAnswer, UvRequest, UvRequirement, run_uv
from envbuild.resolve.uv_errors import ResolutionError, UvErrors
from envbuild.resolve.uvtext import UvFailure
from envbuild.spec.python_platform import PythonTarget
from envbuild.spec.python_request import PYTORCH, OriginRule, PythonRequest
from envbuild.spec.requirements import RequirementEntry
from envbuild.system.network import dead_proxy
from envbuild.system.redaction import redact
from envbuild.system.space import refuse_full

_MAX_FAILURES = 20  # of uv for one request
_MAX_NEAREST = 5  # requirements of which the nearest versions are asked for
_SEARCH_S = 60.0  # for further errors
_SHORT_S = 30.0
_ROUNDS = 10  # of resolutions with newly read source archives

Releases = Mapping[tuple[str, str], tuple[str, ...]]
"""Distribution and version → requirements (PEP 508)."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """uv's answer, or that to the requirements that remained, and errors for those that were left out."""

    text: str
    warnings: tuple[str, ...]
    errors: tuple[EnvbuildError, ...]
    is_complete: bool = True
    """Whether each requirement is in the answer or in the errors."""
    without_wheels: Mapping[str, UvFailure] = field(default_factory=dict)
    """Distributions without a wheel, which are in the answer and in one of the errors."""


@dataclass(slots=True)
class Index:
    """The indexes, directories and pages with wheels that uv asks for one request."""

    request: PythonRequest
    sources: PythonSources
    context: ResolveContext
    exclusive: tuple[Source, ...] = ()
    """Sources of single distributions, which uv takes from there alone."""
    known: Releases = field(default_factory=dict)
    """Releases whose files are not needed, and what they require."""
    _addresses: dict[str, tuple[str, ...]] = field(init=False)
    """Origin → addresses; the next is asked only if the first is unreachable."""
    _torch_backend: str = field(init=False)
    """uv's name of PyTorch's own index (``cpu``); empty if that is not asked."""
    _unreachable: dict[str, str] = field(init=False, default_factory=dict)
    """Origin → the address that was left out, and why it cannot be reached."""
    _read: dict[tuple[str, str], tuple[str, ...]] = field(init=False, default_factory=dict)
    """Releases whose source archives were read, and what they require."""
    _of_origins: dict[str, tuple[str, ...]] = field(init=False, default_factory=dict)
    """Distribution that another one requires → the origins that it comes from alone."""
    _nearest: set[str] = field(init=False, default_factory=set)
    """Distributions whose nearest versions were asked for."""

    def __post_init__(self) -> None:
        sources = self.sources
        self._addresses = {} if sources.no_index else {**sources.named, "pypi": sources.indexes}
        self._torch_backend = self._choose_torch_backend()

    def resolve(
        self,
        requirements: Sequence[RequirementEntry],
        *,
        constraints: Sequence[RequirementEntry] = (),
        preferred_versions: Mapping[str, str],
    ) -> Resolution:
        """Choose a version of each distribution that requirements need; see `Resolver`.

        It resolves again until the requirements of every source archive that is chosen are known.
        """
        for _ in range(_ROUNDS):
            outcome = self._ask(
                [UvRequirement(entry.name, entry.text) for entry in requirements],
                constraints=[entry.text for entry in constraints],
                preferred_versions=preferred_versions,
            )
            distributions = tuple(
                ResolvedDistribution(name=name, version=version, via=via, origin=self._origin(name, address))
                for name, version, via, address in uvtext.parse_resolution(outcome.text)
            )
            resolution = Resolution(
                requirements=requirements, constraints=constraints, distributions=distributions
            )
            raise_all(self._all_errors(outcome, resolution))
            unread = [entry for entry in distributions if self._is_unread(entry)]
            if not unread:
                for warning in outcome.warnings:
                    self.context.emit(Warned(text=f"uv: {warning}"))
                return resolution
            self._read_archives(unread)
        raise RequestError(
            "versions of what is built from source change each other: "
            + ", ".join(sorted(entry.name for entry in unread)),
            at=self.request.location_of(unread[0].name),
            hint="ask for an exact version of one of them",
        )

    def _is_unread(self, entry: ResolvedDistribution) -> bool:
        """Return whether only the source archive of a distribution says what it requires."""
        is_read = (entry.name, entry.version) in self._read
        is_exclusive = any(source.owns(entry.name) for source in self.exclusive)
        return entry.name in self.request.undeclared and not is_read and not is_exclusive

    def _read_archives(self, unread: Sequence[ResolvedDistribution]) -> None:
        offered = self.files({entry.name: entry.version for entry in unread})
        files = choose_files(self.request, unread, offered)
        for entry, file in zip(unread, files, strict=True):
            at = self.request.location_of(entry.name)
            metadata = read_archive(obtain(file, at, self.context), at=at)
            self._read[entry.name, entry.version] = metadata.requires

    def files(self, versions: Mapping[str, str]) -> dict[str, list[DistFile]]:
        """Return the files of exact versions: wheels, or the source archive of what is built."""
        # `==2.13.0` would also take `2.13.0+cpu`.
        exact = [UvRequirement(name, f"{name}==={version}") for name, version in sorted(versions.items())]
        if not exact:
            return {}
        outcome = self._ask(exact, of_files=True)
        raise_all(() if outcome.is_complete else outcome.errors)
        with_credentials = self.sources.with_credentials
        return {
            name: [replace(file, address=with_credentials(file.address)) for file in files]
            for name, files in _files(outcome).items()
        }

    def newest(self, names: Collection[str]) -> dict[str, list[DistFile]]:
        """Return the files of each distribution's newest release for this Python: wheels, sources.

        MachineError: an index cannot be reached.
        """
        requirements = [UvRequirement(name, name) for name in sorted(names)]
        if not requirements:
            return {}
        outcome = self._ask(requirements, of_files=True, any_source=True)
        if not outcome.is_complete:
            hint = "newer releases that were not chosen are not reported"
            self.context.emit(Warned(text=f"more than {_MAX_FAILURES} packages cannot be located", hint=hint))
        return _files(outcome)

    def cost_of_pin(
        self, resolution: Resolution, name: str, version: str, *, lacking: Collection[str] = ()
    ) -> skipped_releases.Cost:
        """Return what another version of a distribution would cost: other versions, or all.

        It is known already that `lacking` distributions have no wheel.
        """
        versions = resolution.versions
        try:
            outcome = self._ask(
                [
                    *(UvRequirement(entry.name, entry.text) for entry in resolution.requirements),
                    UvRequirement(name, f"{name}=={version}"),
                ],
                constraints=[entry.text for entry in resolution.constraints],
                preferred_versions={**versions, name: version},
                lacking=lacking,
            )
            raise_all(outcome.errors)
        except EnvbuildError as error:
            each = error.each()
            unresolved = [single for single in each if isinstance(single, ResolutionError)]
            return skipped_releases.Cost(
                text="; ".join(
                    single.summary if isinstance(single, ResolutionError) else single.problem
                    for single in each
                ),
                without_wheels=frozenset(name for single in unresolved for name in single.without_wheels),
            )
        new_versions = {name: version for name, version, *_ in uvtext.parse_resolution(outcome.text)}
        older = [
            f"`{other}` {new_versions[other]} instead of {chosen}"
            for other, chosen in sorted(versions.items())
            if other in new_versions and other != name and Version(new_versions[other]) < Version(chosen)
        ]
        return skipped_releases.Cost(text=", ".join(older) or "other packages at their newest releases")

    def skipped_releases(
        self, resolution: Resolution, new: Sequence[str], files: Mapping[str, Sequence[DistFile]]
    ) -> tuple[Warned, ...]:
        """Return what to warn of; see `Resolver`."""
        judgement = self._judge(resolution, new, files)
        raise_all([*self._errors(()).without_wheels({}, {}, judgement)])
        return judgement.warnings

    def _judge(
        self,
        resolution: Resolution,
        new: Sequence[str],
        files: Mapping[str, Sequence[DistFile]],
        *,
        lacking: Collection[str] = (),
    ) -> Judgement:
        of_index = [name for name in new if not any(source.owns(name) for source in self.exclusive)]
        return skipped_releases.judge(
            resolution,
            files=files,
            newest=self.newest(of_index),
            request=self.request,
            cost_of_pin=lambda name, version: self.cost_of_pin(resolution, name, version, lacking=lacking),
        )

    def _all_errors(self, outcome: _Outcome, resolution: Resolution) -> Sequence[EnvbuildError]:
        """Return the errors of an outcome; that of missing wheels also names those of skipped releases."""
        missing = outcome.without_wheels
        lacking = [
            error for error in outcome.errors if isinstance(error, ResolutionError) and error.without_wheels
        ]
        if not lacking or not outcome.text:
            return outcome.errors
        versions = {name: version for name, version in resolution.versions.items() if name not in missing}
        judgement = self._judge(resolution, sorted(versions), self.files(versions), lacking=missing)
        via = {entry.name: entry.via for entry in resolution.distributions}
        others = [error for error in outcome.errors if error not in lacking]
        return [*others, *self._errors(lacking[0].failures).without_wheels(missing, via, judgement)]

    def origin_of(self, file: DistFile) -> str:
        """Return the logical origin of a file."""
        return self.sources.origin_of(file.address)

    def _origin(self, name: str, address: str) -> str:
        """Return the logical origin of a distribution that uv took from an index or directory."""
        bare_address = without_credentials(address).rstrip("/")
        for origin, addresses in self._addresses.items():
            if origin == "pypi" or not addresses:
                continue
            if bare_address == without_credentials(addresses[0]).rstrip("/"):
                return origin
        named = next(iter(self.request.origins_of(name)), "")
        if self._torch_backend and named.startswith(PYTORCH):
            return named
        origin = self.sources.origin_of(address) if address else "pypi"
        return named if named and origin == "find-links" else origin

    def _index_of(self) -> dict[str, str]:
        """Return the only index of distributions: the first of their origins that has an address."""
        index_of = {}
        for name, origins in (*self.request.origins.items(), *self._of_origins.items()):
            owner = next(
                (origin for origin in origins if origin == "pypi" or self._addresses.get(origin)), "pypi"
            )
            if owner != "pypi":
                index_of[name] = owner
        return index_of

    def _choose_torch_backend(self) -> str:
        """Return uv's name of PyTorch's own index, if no configured index or directory has its wheels."""
        names = [file.name for path in self.sources.local_directories() for file in path.glob("*.whl")]
        for rule in self.request.origin_rules:
            origin = rule.origins[0]
            # Of several rules the first counts.
            counts = any(self.request.origins[name] == rule.origins for name in rule.names)
            is_configured = self.sources.no_index or self._addresses.get(origin)
            if counts and origin.startswith(PYTORCH) and not is_configured and not self._is_here(rule, names):
                return origin.removeprefix(PYTORCH)
        return ""

    def _is_here(self, rule: OriginRule, file_names: Sequence[str]) -> bool:
        """Return whether local files satisfy the requirements of a rule."""
        labelled = [name for name in file_names if not rule.label or f"+{rule.label}-" in name]
        return all(
            any(satisfies(name, requirement, self.request.target.tags) for name in labelled)
            for requirement in rule.requirements
        )

    def _uv_request(self) -> UvRequest:
        """Return what all runs of uv have in common."""
        index_of = self._index_of()
        request = UvRequest(
            target=self.request.target,
            default_index=next(iter(self._addresses.get("pypi", ())), ""),
            indexes={origin: self._addresses[origin][0] for origin in index_of.values()},
            index_of=index_of,
            find_links=self.sources.find_links,
            no_index=self.sources.no_index,
            offline=self.context.offline,
            torch_backend=self._torch_backend,
            metadata={**self.request.declared, **self._read, **self.known},
            sources=self.request.built,
            # uv must not build what it knows nothing of.
            sources_without_metadata=self.request.undeclared,
        )
        for source in self.exclusive:
            request = source.add_to(request)
        return request

    def _ask(
        self,
        requirements: Sequence[UvRequirement],
        *,
        constraints: Sequence[str] = (),
        preferred_versions: Mapping[str, str] | None = None,
        of_files: bool = False,
        any_source: bool = False,
        lacking: Collection[str] = (),
    ) -> _Outcome:
        """Run uv until it answers, or has failed too often.

        With `any_source`, source archives count as wheels do, and their requirements stay unknown; else those
        of `lacking` distributions alone.
        EnvbuildError: requirements clash, or an index or this machine keeps uv from an answer.
        """
        errors: list[EnvbuildError] = []
        without_wheels: dict[str, UvFailure] = {}
        not_cached: list[UvFailure] = []
        failures: list[UvFailure] = []

        def all_errors(answer: str = "") -> tuple[EnvbuildError, ...]:
            writer = self._errors(failures)
            via = {name: names for name, _, names, _ in uvtext.parse_resolution(answer)}
            return (*errors, *writer.not_here(not_cached), *writer.without_wheels(without_wheels, via))

        deadline = clock() + _SEARCH_S
        with contextlib.ExitStack() as search:
            while requirements and len(failures) < _MAX_FAILURES and (not failures or clock() < deadline):
                request = self._uv_request()
                sources = {name for name, _ in requirements} if any_source else {*without_wheels, *lacking}
                result = self._run(
                    replace(
                        request,
                        requirements=(
                            *requirements,
                            *self._of_origin_alone(requirements, of_files=of_files),
                        ),
                        constraints=tuple(constraints),
                        preferred_versions=preferred_versions or {},
                        output="pylock.toml" if of_files else "requirements.txt",
                        prefers_wheels=not any_source,
                        sources=request.sources | (sources - request.stubs.keys()),
                        sources_without_metadata=request.sources_without_metadata
                        | (sources - request.stubs.keys()),
                    )
                )
                if isinstance(result, UvAnswer):
                    answer = "" if of_files else result.text
                    return _Outcome(
                        result.text, result.warnings, all_errors(answer), without_wheels=without_wheels
                    )
                if self._try_next_address(result) or self._ask_their_origin(result):
                    continue
                if not failures:
                    search.enter_context(task(self.context.emit, "lock:errors", "look for further errors"))
                failures.append(result)
                self._write_log(failures)
                # uv names what keeps it from an answer, and stops. It names the next as if there were a
                # wheel, or without what cannot be had.
                new = result.without_wheels - without_wheels.keys()
                if new:
                    without_wheels |= dict.fromkeys(sorted(new), result)
                    continue
                uncached = result.not_cached if self.context.offline else {}
                not_cached += [result] if uncached else []
                if not result.without_sources and not uncached:
                    errors.append(self._errors(failures).failure(result))
                concerned = result.missing | result.without_sources | uncached.keys()
                others = [entry for entry in requirements if entry.name not in concerned]
                if len(others) == len(requirements):
                    # In a clash, wheels may or may not matter.
                    writer = self._errors(failures)
                    errors += writer.not_here(not_cached)
                    raise_all(errors or [*writer.without_wheels(without_wheels, {})])
                requirements = others
        if not requirements:
            return _Outcome("", (), all_errors())
        problem = f"{pluralize(len(requirements), 'other requirement')} may have errors, too"
        if without_wheels:  # of requirements, or of what they need: how many others is unknown
            problem = "perhaps more packages have no wheel"
        times = pluralize(len(failures), "time")
        hint = f"correct these first: uv reports one at a time, and was asked {times}"
        return _Outcome("", (), (*all_errors(), RequestError(problem, hint=hint)), is_complete=False)

    def _run(self, request: UvRequest) -> UvAnswer | UvFailure:
        try:
            result = run_uv(request, self.context.cache_dir)
        except OSError as error:
            raise cannot_write(self.context.cache_dir, error) from error
        if isinstance(result, UvFailure):
            refuse_full("uv failed", result.output)
            if proxy_error := dead_proxy(result.address):
                raise proxy_error
        return result

    def _try_next_address(self, failure: UvFailure) -> bool:
        """Leave out an address that uv could not reach; return whether another place may serve instead."""
        if not failure.address:
            return False
        for origin, addresses in self._addresses.items():
            if addresses and failure.address.startswith(without_credentials(addresses[0]).rstrip("/")):
                # Another index may have other packages of these names; without one, uv asks the public index.
                if len(addresses) == 1 and (origin == "pypi" or not self.sources.find_links):
                    return False
                self._addresses[origin] = addresses[1:]
                name = f"the origin `{origin}` at {redact(addresses[0])}"
                break
        else:
            if not self._torch_backend or "pytorch" not in (urlsplit(failure.address).hostname or ""):
                return False
            name, origin = "PyTorch's own index", f"{PYTORCH}{self._torch_backend}"
            self._torch_backend = ""
        reason = failure.cause
        self._unreachable[origin] = f"{redact(failure.address)} was asked, and cannot be reached: {reason}"
        hint = "another origin has to serve its packages"
        self.context.emit(Warned(text=f"{name} cannot be reached: {reason}; it is left out", hint=hint))
        return True

    def _ask_their_origin(self, failure: UvFailure) -> bool:
        """Take distributions that are missing from an accelerator's origin; return whether that may help.

        uv asks an origin for requirements of the request alone, and which packages a build of a framework
        requires is not known before.
        """
        origins = {
            name: self.request.origins_of(name) for name in sorted(failure.missing | failure.without_sources)
        }
        known = self.request.origins.keys() | self._of_origins.keys()
        served = {name: names for name, names in origins.items() if any(map(self._addresses.get, names))}
        new = {name: names for name, names in served.items() if name not in known}
        self._of_origins |= new
        return bool(new)

    def _of_origin_alone(
        self, requirements: Sequence[UvRequirement], *, of_files: bool
    ) -> list[UvRequirement]:
        named = {name for name, _ in requirements}
        return (
            []
            if of_files
            else [UvRequirement(name, name) for name in sorted(self._of_origins.keys() - named)]
        )

    @property
    def _log(self) -> Path:
        """File with uv's messages at its last failure for this request."""
        path = hashlib.sha256(os.fsencode(self.request.path.absolute())).hexdigest()[:12]
        return self.context.cache_dir / f"uv-resolution-{path}.log"

    def _write_log(self, failures: Iterable[UvFailure]) -> None:
        try:
            self._log.write_text("\n".join(failure.output for failure in failures), encoding="utf-8")
        except OSError as error:
            raise cannot_write(self.context.cache_dir, error) from error

    def _errors(self, failures: Sequence[UvFailure]) -> UvErrors:
        return UvErrors(
            request=self.request,
            log=self._log,
            offline=self.context.offline,
            addresses=self._addresses,
            unreachable=self._unreachable,
            nearest_versions=self._nearest_versions,
            failures=tuple(failures),
        )

    def _nearest_versions(self, requirement: Requirement) -> list[str]:
        """Return the version below that of a requirement and the one above, as far as the index has them."""
        self._nearest.add(requirement.name)
        if len(self._nearest) > _MAX_NEAREST:
            return []
        # Bounds have no label of a build; `<=` then finds the release of a label that is absent.
        written = [part.version for part in requirement.specifier if part.operator != "==="]
        bounds = [version.partition("+")[0].removesuffix(".*") for version in written]
        below = "<=" if any("+" in version for version in written) else "<"
        wants_prereleases = requirement.specifier.prereleases
        versions = []
        for operator, strategy in ((below, "highest"), (">", "lowest-direct")):
            for bound in bounds[:1]:
                nearest = UvRequirement(requirement.name, f"{requirement.name}{operator}{bound}")
                options = ("--no-deps", "--resolution", strategy)
                result = self._run(replace(self._uv_request(), requirements=(nearest,), options=options))
                if isinstance(result, UvAnswer):
                    versions += [
                        version
                        for _, version, _, _ in uvtext.parse_resolution(result.text)
                        if wants_prereleases or not Version(version).is_prerelease
                    ]
        return versions


def _files(outcome: _Outcome) -> dict[str, list[DistFile]]:
    # There is no text if each requirement was left out.
    return uvtext.parse_pylock(outcome.text) if outcome.text else {}


def unreachable_reason(name: str, sources: PythonSources, *, backend: str = "") -> str:
    """Return why uv gets no wheel of a distribution; empty if it does.

    `backend` is uv's name of PyTorch's own index (``cpu``), if that is to be asked.
    """
    request = _short_request(sources, [UvRequirement(name, name)])
    with tempfile.TemporaryDirectory(prefix="envbuild-uv-") as directory:
        result = run_uv(replace(request, torch_backend=backend), Path(directory))
    return result.cause if isinstance(result, UvFailure) else ""


def without_wheels(
    requirements: Sequence[str], sources: PythonSources, target: PythonTarget
) -> set[str] | None:
    """Return which requirements no wheel for a Python meets, each alone; None if that cannot be asked."""
    left = [UvRequirement(canonicalize_name(Requirement(text).name), text) for text in requirements]
    with tempfile.TemporaryDirectory(prefix="envbuild-uv-") as directory:
        for _ in range(_MAX_FAILURES):
            request = replace(_short_request(sources, left), target=target)
            result = run_uv(request, Path(directory))
            if isinstance(result, UvAnswer):
                return {*requirements} - {text for _, text in left}
            # uv names the first, and stops.
            concerned = result.missing | result.without_wheels
            others = [requirement for requirement in left if requirement.name not in concerned]
            if len(others) == len(left):
                return None
            left = others
            if not left:
                return {*requirements}
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedRelease:
    """The files that an index has of a release."""

    wheels_for: tuple[str, ...] = ()
    """Versions of Python, of those asked for, that a wheel fits."""
    has_source: bool = False
    """Whether there is a source archive; only known if there is no wheel."""
    newest: str = ""
    """Newest release, if the index lacks this one; empty if it has none."""

    @property
    def exists(self) -> bool:
        """Whether the index has the release."""
        return bool(self.wheels_for) or self.has_source


def offered_release(
    name: str, version: str, sources: PythonSources, targets: Sequence[PythonTarget]
) -> OfferedRelease | None:
    """Return what an index has of a release for each of some Pythons; None if it cannot be asked."""
    release = UvRequirement(name, f"{name}=={version}")
    with tempfile.TemporaryDirectory(prefix="envbuild-uv-") as directory:

        def ask(requirement: UvRequirement, target: PythonTarget, *, of_wheels: bool) -> UvAnswer | UvFailure:
            any_file = frozenset(() if of_wheels else (name,))
            request = replace(
                _short_request(sources, [requirement]),
                target=target,
                prefers_wheels=of_wheels,
                sources=any_file,
                sources_without_metadata=any_file,
            )
            return run_uv(request, Path(directory))

        fitting = []
        for target in targets:
            result = ask(release, target, of_wheels=True)
            if isinstance(result, UvAnswer):
                fitting.append(target.version)
            elif result.kind != "no-solution":
                return None
        if fitting:
            return OfferedRelease(wheels_for=tuple(fitting))
        for requirement in (release, UvRequirement(name, name)):
            for target in targets:
                result = ask(requirement, target, of_wheels=False)
                if not isinstance(result, UvAnswer):
                    continue
                if requirement is release:
                    return OfferedRelease(has_source=True)
                return OfferedRelease(newest=uvtext.parse_resolution(result.text)[0][1])
    return OfferedRelease()


def _short_request(sources: PythonSources, requirements: Sequence[UvRequirement]) -> UvRequest:
    """Return a request whose answer is not awaited for long."""
    return UvRequest(
        target=None,
        requirements=tuple(requirements),
        options=("--no-deps",),
        default_index=next(iter(sources.indexes), ""),
        find_links=sources.find_links,
        timeout_s=_SHORT_S,
        retries=0,
    )

"""Resolves Python distributions with uv: first versions, then the files of these versions."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.errors import EnvbuildError, MachineError, RequestError, near, pluralize, raise_all, some
from envbuild.events import Warned, task
from envbuild.resolve import uvtext, wheels
from envbuild.resolve.context import NOT_HERE_HINT, ResolveContext, cannot_write
from envbuild.resolve.origins import PythonSources, without_credentials
from envbuild.resolve.repository import SourceArchive
from envbuild.resolve.sources import SourceMetadata
from envbuild.spec.base import BaseImage
from envbuild.spec.python_platform import base_tags
from envbuild.spec.resolved import ChosenRecipe, ResolvedSpec
from envbuild.system import host, process, tools
from envbuild.system.network import dead_proxy
from envbuild.system.redaction import redact, redact_text
from envbuild.system.space import refuse_full

_TIMEOUT_S = 900.0
_MAX_FAILURES = 20  # of uv for one request: it names one requirement, and stops
_MAX_NEAREST = 5  # requirements of which the nearest versions are asked for
# Ten times as much as a large resolution takes: an index may answer without end.
_MEMORY_BYTES = 2 << 30
# uv starts a thread for each core, and its stack counts.
_STACK_BYTES = 8 << 20
# `pytorch-cpu`, `pytorch-cu130`: if no address is configured, uv knows PyTorch's own index.
PYTORCH = "pytorch-"
_RESOLUTION = ("--format", "requirements.txt", "--annotation-style", "line", "--emit-index-annotation")
_FILES = ("--format", "pylock.toml", "--no-deps")
_NO_SOLUTION = "no set of Python packages meets what was asked: "
_ASK_S = 30.0
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
# To be formatted with `origin`.
PYTORCH_HINT = (
    "`pip config set global.find-links DIR` names a directory with the wheels; a site file names another"
    " index (`origins: {{{origin}: [ADDRESS]}}`); https_proxy names a proxy; `envbuild doctor"
    " --online` asks again"
)
_ASK = "`envbuild doctor lock --online` asks the indexes"


@dataclass(frozen=True, slots=True)
class _Answer:
    """uv's output, and the requirements that had to be dropped."""

    text: str
    warnings: tuple[str, ...]
    errors: tuple[EnvbuildError, ...]
    """For each requirement that was left out, and each distribution without a wheel."""
    is_whole: bool = True
    """Whether all other requirements were answered."""


@dataclass(slots=True)
class Uv:
    """uv for one image: its Python, platform and sources."""

    resolved: ResolvedSpec
    context: ResolveContext
    installed: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """Distributions whose files are not needed: name → version and requirements."""
    constraints: tuple[str, ...] = ()
    """Requirements that hold for what is chosen, and ask for nothing."""
    builds: Mapping[str, str] = field(default_factory=dict)
    """Distribution → the build of PyTorch (``cpu``, ``cu126``) that it must be a build for."""
    local_wheels: Mapping[str, Path] = field(default_factory=dict)
    """Distribution → the only wheel of it to take."""
    packed: Mapping[str, SourceArchive] = field(init=False, default_factory=dict)
    """Distribution that is built from a repository → its archive; uv sees a stub in its place."""
    declared: dict[tuple[str, str], SourceMetadata] = field(init=False, default_factory=dict)
    """Distribution that is built from source and its version → what its archive says, if that was read."""
    sources: PythonSources = field(init=False)
    _indexes: dict[str, tuple[str, ...]] = field(init=False)
    """Origin → addresses; the next is asked only if the first is unreachable."""
    _origins: dict[str, tuple[str, ...]] = field(init=False)
    """Distribution → the origins that its recipe names."""
    _torch_backend: str = field(init=False)
    """uv's name of PyTorch's own index (``cpu``); empty if that is not asked."""
    _unreachable_origins: dict[str, str] = field(init=False, default_factory=dict)
    """Origin → the address that was left out, and why it cannot be reached."""
    _nearest: set[str] = field(init=False, default_factory=set)
    """Distributions whose nearest versions were asked for."""

    def __post_init__(self) -> None:
        self.sources = self.context.python_sources(self.resolved)
        self._indexes = {} if self.sources.no_index else {**self.sources.named, "pypi": self.sources.indexes}
        self._origins = {
            name: chosen.variant.origins
            for chosen in self.resolved.recipes
            if chosen.variant.origins and _requirements_by_name(chosen)
            for name in {*_requirements_by_name(chosen), *chosen.recipe.owns, *chosen.recipe.companions}
        }
        # A recipe knows better.
        self.builds = {name: build for name, build in self.builds.items() if name not in self._origins}
        self._origins |= {name: (f"{PYTORCH}{build}",) for name, build in self.builds.items()}
        self._torch_backend = self._choose_torch_backend()

    @property
    def log(self) -> Path:
        """File with uv's messages at its last failure for this spec."""
        spec = hashlib.sha256(os.fsencode(self.resolved.path.absolute())).hexdigest()[:12]
        return self.context.cache_dir / f"uv-resolution-{spec}.log"

    def resolve(
        self, requirements: Sequence[str], *, constraints: Sequence[str] = (), keep: Mapping[str, str]
    ) -> tuple[wheels.ResolvedDistribution, ...]:
        """Resolve requirements together; versions of `keep` (by distribution) are preferred.

        `constraints` bound versions and ask for nothing. RequestError if requirements clash; MachineError if
        an index cannot be reached.
        """
        answer = self._compile(requirements, _RESOLUTION, constraints=constraints, preferences=_pins(keep))
        raise_all(answer.errors)
        for warning in answer.warnings:
            self.context.emit(Warned(text=f"uv: {warning}"))
        return tuple(
            wheels.ResolvedDistribution(
                name=name, version=version, via=via, origin=self._origin(name, source)
            )
            for name, version, via, source in uvtext.parse_resolution(answer.text)
        )

    def locate(self, versions: Mapping[str, str]) -> dict[str, list[wheels.Candidate]]:
        """Return the files of exact versions; none of a version that no origin has.

        These are wheels, or the source archive if a recipe builds it.
        """
        # `==2.13.0` would also take `2.13.0+cpu`.
        exact = [f"{name}==={version}" for name, version in sorted(versions.items())]
        answer = self._compile(exact, _FILES)
        raise_all(() if answer.is_whole else answer.errors)
        files = uvtext.parse_pylock(answer.text)
        with_credentials = self.sources.with_credentials
        return {
            name: [replace(file, address=with_credentials(file.address)) for file in candidates]
            for name, candidates in files.items()
        }

    def newest(self, names: Sequence[str]) -> dict[str, list[wheels.Candidate]]:
        """Return the files of each distribution's newest release for this Python: wheels, sources.

        Raises
        ------
        MachineError
            An index cannot be reached.
        """
        answer = self._compile(sorted(names), _FILES, any_source=True)
        if not answer.is_whole:
            hint = "nothing is said of newer releases that are passed over"
            self.context.emit(Warned(text=f"more than {_MAX_FAILURES} packages cannot be located", hint=hint))
        return uvtext.parse_pylock(answer.text)

    def cost_of_pin(
        self,
        requirements: Sequence[str],
        constraints: Sequence[str],
        chosen: Mapping[str, str],
        name: str,
        version: str,
    ) -> str:
        """Return in a line what another version of a distribution would cost: other versions, or all.

        `chosen` maps the distributions of the resolution to their versions.
        """
        pins = _pins({**chosen, name: version})
        try:
            wanted = [*requirements, f"{name}=={version}"]
            answer = self._compile(wanted, _RESOLUTION, constraints=constraints, preferences=pins)
            raise_all(answer.errors)
        except EnvbuildError as error:
            return "; ".join(single.problem.removeprefix(_NO_SOLUTION) for single in error.each())
        others = {name: version for name, version, *_ in uvtext.parse_resolution(answer.text)}
        older = [
            f"`{other}` {others[other]} instead of {taken}"
            for other, taken in sorted(chosen.items())
            if other in others and other != name and Version(others[other]) < Version(taken)
        ]
        return ", ".join(older) or "other packages at their newest releases"

    def _origin(self, name: str, source: str) -> str:
        """Return the logical origin of a distribution that uv took from an index or directory."""
        bare = without_credentials(source).rstrip("/")
        for origin, addresses in self._indexes.items():
            if origin != "pypi" and addresses and bare == without_credentials(addresses[0]).rstrip("/"):
                return origin
        own = next(iter(self._origins.get(name, ())), "")
        if self._torch_backend and own.startswith(PYTORCH):
            return own
        origin = self.sources.origin_of(source) if source else "pypi"
        return own if own and origin == "find-links" else origin

    def _owners(self) -> dict[str, str]:
        """Return the only index of distributions: the first of their recipe's origins that has an address."""
        owners = {}
        for name, origins in self._origins.items():
            owner = next(
                (origin for origin in origins if origin == "pypi" or self._indexes.get(origin)), "pypi"
            )
            if owner != "pypi":
                owners[name] = owner
        return owners

    def _choose_torch_backend(self) -> str:
        """Return uv's name of PyTorch's own index, if no configured index or directory has its wheels."""
        accepted = base_tags(self.resolved.base, self.resolved.architecture)
        files = [file.name for path in self.sources.local_directories() for file in path.glob("*.whl")]
        for name, build in self.builds.items():
            is_here = any(file.startswith(f"{name}-") and f"+{build}-" in file for file in files)
            if not is_here and not self.sources.no_index and not self._indexes.get(f"{PYTORCH}{build}"):
                return build
        for chosen in self.resolved.recipes:
            origin = next(iter(chosen.variant.origins), "")
            if not origin.startswith(PYTORCH) or self.sources.no_index or self._indexes.get(origin):
                continue
            for requirement in _requirements_by_name(chosen).values():
                if not any(wheels.satisfies(file, requirement, accepted) for file in files):
                    return origin.removeprefix(PYTORCH)
        return ""

    def _compile(
        self,
        requirements: Sequence[str],
        options: Sequence[str],
        *,
        constraints: Sequence[str] = (),
        preferences: str = "",
        any_source: bool = False,
    ) -> _Answer:
        """Run uv until it answers, or has failed too often.

        With `any_source`, source archives count as wheels do, and their requirements stay unknown.
        EnvbuildError: requirements clash, or an index or this machine keeps uv from an answer.
        """
        errors: list[EnvbuildError] = []
        without_wheels: dict[str, str] = {}  # name → what uv said
        not_here: list[str] = []  # what uv said of distributions that only a network has
        messages: list[str] = []
        with contextlib.ExitStack() as search:
            while requirements and len(messages) < _MAX_FAILURES:
                finished, text = self._run(
                    requirements,
                    options,
                    constraints,
                    preferences,
                    sources=map(_name, requirements) if any_source else without_wheels,
                    only_wheels=not any_source,
                )
                if finished.ok:
                    errors += [*self._not_on_this_machine(not_here), *self._without_wheels(without_wheels)]
                    return _Answer(text, tuple(uvtext.warnings(finished.stderr)), tuple(errors))
                refuse_full("uv failed", finished.stderr)
                if error := dead_proxy(uvtext.unreachable(finished.stderr)):
                    raise error
                if self._try_next_address(finished.stderr):
                    continue
                if not messages:
                    search.enter_context(task(self.context.emit, "lock:errors", "look for further errors"))
                messages.append(redact_text(finished.stderr))
                self._write_log("\n".join(messages))
                # uv names what keeps it from an answer, and stops. It names the next as if there were a
                # wheel, or without what cannot be had.
                new = [name for name in uvtext.without_wheels(finished.stderr) if name not in without_wheels]
                if new:
                    without_wheels |= dict.fromkeys(new, finished.stderr)
                    continue
                absent = uvtext.without_sources(finished.stderr)
                uncached = uvtext.not_in_cache(finished.stderr) if self.context.offline else {}
                not_here += [finished.stderr] if uncached else []
                if not absent and not uncached:
                    errors.append(self._failure(finished))
                named = uvtext.missing(finished.stderr) | absent | uncached.keys()
                others = [text for text in requirements if _name(text) not in named]
                if len(others) == len(requirements):
                    errors += self._not_on_this_machine(not_here)
                    # In a clash, wheels may or may not matter.
                    raise_all(errors or [*self._without_wheels(without_wheels)])
                requirements = others
        errors += [*self._not_on_this_machine(not_here), *self._without_wheels(without_wheels)]
        if requirements:
            problem = f"{pluralize(len(requirements), 'other requirement')} may have errors, too"
            hint = f"correct these first: uv reports one at a time, and was asked {_MAX_FAILURES} times"
            errors.append(RequestError(problem, hint=hint))
        return _Answer("", (), tuple(errors), is_whole=not requirements)

    def _write_log(self, text: str) -> None:
        try:
            self.log.write_text(text, encoding="utf-8")
        except OSError as error:
            raise cannot_write(self.context.cache_dir, error) from error

    def _run(
        self,
        requirements: Sequence[str],
        options: Sequence[str],
        constraints: Sequence[str] = (),
        preferences: str = "",
        *,
        sources: Iterable[str] = (),
        only_wheels: bool = True,
    ) -> tuple[process.Finished, str]:
        cache_dir, built = self.context.cache_dir, self.resolved.built
        try:
            # Private: uv keeps answers of indexes with their addresses, which may hold tokens.
            cache = cache_dir / "uv"
            cache_dir.mkdir(parents=True, exist_ok=True)
            cache.mkdir(mode=0o700, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".uv-", dir=cache_dir) as name:
                work = Path(name)
                owners = self._owners()
                text = uvtext.project(
                    requirements,
                    python=self.resolved.base.python.version,
                    sources=owners,
                    indexes={origin: self._indexes[origin][0] for origin in owners.values()},
                    wheels={
                        **{name: path.name for name, path in self.local_wheels.items()},
                        **{name: _write_stub(name, packed, work) for name, packed in self.packed.items()},
                    },
                )
                for path in self.local_wheels.values():
                    (work / path.name).symlink_to(path)
                (work / "pyproject.toml").write_text(text, encoding="utf-8")
                # uv reads no other configuration if one is named.
                installed = self.installed.items()
                known = self._built() | {(name, version): needs for name, (version, needs) in installed}
                # uv must not build what it knows nothing of.
                sources = {*sources, *(name for name, build in built.items() if build.declared is None)}
                sources -= self.packed.keys()
                text = uvtext.configuration(known, sources, self.constraints, self.sources.find_links)
                (work / "uv.toml").write_text(text, encoding="utf-8")
                # uv prefers the versions in its output file.
                output = work / ("pylock.toml" if options is _FILES else "requirements.txt")
                files: list[str | Path] = ["--config-file", work / "uv.toml"]
                if constraints:
                    (work / "constraints.txt").write_text("\n".join(constraints), encoding="utf-8")
                    files += ["--constraints", work / "constraints.txt"]
                if preferences:
                    output.write_text(preferences, encoding="utf-8")
                limits: list[str] = []
                if only_wheels:
                    limits += ["--only-binary", ":all:"]
                    for source in sorted({*built, *sources} - self.packed.keys()):
                        limits += ["--no-binary", source]
                files += ["--output-file", output, work / "pyproject.toml"]
                finished = process.run(
                    [*self._argv(cache, options), *limits, *files],
                    env=_environment(self._indexes.get("pypi", ())),
                    cwd=work,
                    timeout_s=_TIMEOUT_S,
                )
                return finished, output.read_text(encoding="utf-8") if finished.ok else ""
        except OSError as error:
            raise cannot_write(cache_dir, error) from error

    def _built(self) -> dict[tuple[str, str], tuple[str, ...]]:
        builds = self.resolved.built.items()
        recipes = {
            (name, declared.version): declared.requires
            for name, build in builds
            if (declared := build.declared)
        }
        return recipes | {release: declared.requires for release, declared in self.declared.items()}

    def _argv(self, cache: Path, options: Sequence[str]) -> list[str | Path]:
        base = self.resolved.base
        limit_bytes = _MEMORY_BYTES + _STACK_BYTES * host.cores()
        argv: list[str | Path] = ["prlimit", f"--data={limit_bytes}", "--"]
        argv += [tools.locate("uv"), "pip", "compile", "--no-header"]
        argv += ["--color", "never", "--no-progress", "--cache-dir", cache]
        argv += ["--python", sys.executable, "--no-python-downloads", "--python-version", base.python.version]
        argv += ["--python-platform", uvtext.platform(self.resolved.architecture, base.glibc)]
        argv += options
        if self.sources.no_index:
            argv.append("--no-index")
        if self.context.offline:
            argv.append("--offline")
        if self._torch_backend:
            argv += ["--torch-backend", self._torch_backend]
        return argv

    def _try_next_address(self, stderr: str) -> bool:
        """Leave out an address that uv could not reach; return whether another place may serve instead."""
        failed = uvtext.unreachable(stderr)
        if not failed:
            return False
        for origin, addresses in self._indexes.items():
            if addresses and failed.startswith(without_credentials(addresses[0]).rstrip("/")):
                # Another index may have other packages of these names; without one, uv asks the public index.
                if len(addresses) == 1 and (origin == "pypi" or not self.sources.find_links):
                    return False
                self._indexes[origin] = addresses[1:]
                name = f"the origin `{origin}` at {redact(addresses[0])}"
                break
        else:
            if not self._torch_backend or "pytorch" not in (urlsplit(failed).hostname or ""):
                return False
            name, origin = "PyTorch's own index", f"{PYTORCH}{self._torch_backend}"
            self._torch_backend = ""
        why = uvtext.why_unreachable(stderr)
        self._unreachable_origins[origin] = f"{redact(failed)} was asked, and cannot be reached: {why}"
        hint = "another origin has to serve its packages"
        self.context.emit(Warned(text=f"{name} cannot be reached: {why}; it is left out", hint=hint))
        return True

    def _failure(self, finished: process.Finished) -> RequestError | MachineError:
        stderr = finished.stderr
        if finished.timed_out or (finished.code < 0 and "memory allocation" in stderr):
            memory = f"{_MEMORY_BYTES / (1 << 30):.1f} GiB of memory"
            limit = f"{_TIMEOUT_S:.0f} s" if finished.timed_out else memory
            return MachineError(
                f"uv needed more than {limit}, and was ended",
                hint=f"an index that answers without end causes that: {_ASK}; uv's output is in `{self.log}`",
            )
        if refusal := _unauthorized(stderr) or self._unreadable_wheel(stderr):
            return refusal
        if "No solution found" in stderr:
            return self._unreachable_origin_error(stderr) or self._no_solution(stderr)
        if "certificate" in stderr:
            return MachineError(
                f"the certificate of a Python index is not trusted here; uv's output is in `{self.log}`",
                hint="SSL_CERT_FILE names the certificates that your network needs",
            )
        if failed := uvtext.unreachable(stderr):
            return MachineError(
                f"{redact(failed)} was asked, and cannot be reached: {uvtext.why_unreachable(stderr)}",
                hint="`pip config set global.index-url ADDRESS` names another index, and so does a site file"
                " (`origins: {pypi: [ADDRESS]}`); if several addresses serve the same files,"
                " `mirrors: [pypi]` lets the next stand in; https_proxy names a proxy;"
                " `envbuild doctor --online` asks each",
            )
        error = next((line[7:] for line in stderr.splitlines() if line.startswith("error: ")), "no reason")
        return MachineError(f"uv failed: {redact_text(error)}", hint=f"read why in {self.log}; {_ASK}")

    def _unreadable_wheel(self, stderr: str) -> RequestError | None:
        for name, path in self.local_wheels.items():
            if f"Failed to read `{name} @ " in stderr:
                return RequestError(
                    f"`{path.name}` is not a wheel that can be read",
                    at=self.resolved.python_place(name),
                    hint=f"build or copy it again; uv's output is in `{self.log}`",
                )
        return None

    def _unreachable_origin_error(self, stderr: str) -> MachineError | None:
        """Return the error for a distribution whose origin was left out, if one is missing."""
        for name in sorted(uvtext.missing(stderr) & self._origins.keys()):
            for origin in self._origins[name]:
                if origin in self._unreachable_origins:
                    asking = self._recipes_asking(uvtext.reason(stderr), bounds=True)
                    return MachineError(
                        f"there are no wheels of `{name}`: {self._unreachable_origins[origin]}{asking}",
                        at=self.resolved.python_place(name),
                        hint=PYTORCH_HINT.format(origin=origin),
                    )
        return None

    def _no_solution(self, stderr: str) -> RequestError:
        reason = uvtext.reason(stderr)
        hint = self._origin_hint(stderr) or self._nearest_hint(stderr)
        if not hint and not self.context.offline and (unknown := uvtext.without_origin(stderr)):
            names = ", ".join(f"`{name}`" for name in sorted(unknown))
            hint = f"no index has {names}; `find_links` in site.yaml names a directory with wheels of yours"
        hint = hint or f"loosen or drop one of them; uv's whole reasoning is in {self.log}"
        if self.context.offline:
            hint = f"only packages on this machine were considered (`--offline`); {hint}"
        asking = self._recipes_asking(reason, bounds=True)
        return RequestError(_NO_SOLUTION + reason + asking, at=self.resolved.python_place(reason), hint=hint)

    def _not_on_this_machine(self, said: Sequence[str]) -> Iterator[RequestError]:
        """Yield one error for all distributions that would be fetched if there were a network."""
        versions = {name: version for text in said for name, version in uvtext.not_in_cache(text).items()}
        if versions:
            names = [f"`{f'{name} {version}'.rstrip()}`" for name, version in sorted(versions.items())]
            verb = "is" if len(names) == 1 else "are"
            yield RequestError(
                f"offline: {some(names, _SHOWN)} {verb} not on this machine",
                at=self.resolved.python_place(" ".join([*versions, *map(uvtext.reason, said)])),
                hint=NOT_HERE_HINT,
            )

    def _without_wheels(self, said: Mapping[str, str]) -> Iterator[RequestError]:
        """Yield an error for each distribution without a wheel; `said` maps it to what uv wrote."""
        base = self.resolved.base
        platform = f"Python {base.python.version} with glibc {base.glibc} on {self.resolved.architecture}"
        packages = self.resolved.spec.packages.from_source
        names = [package if isinstance(package, str) else package.name for package in packages]
        key = f"from_source: [{', '.join(sorted({*names, *said}))}]"
        for name, stderr in said.items():
            reason = uvtext.reason(stderr)
            asked = [request.requirement for request in self.resolved.requested if request.name == name]
            bounded = [requirement for requirement in asked if requirement.specifier]
            if name in _MODULES:
                hint = _module_hint(name)
            elif bounded and (versions := self._nearest_versions(bounded[0])):
                hint = f"the nearest versions with a wheel are {' and '.join(versions)}; or `{key}`"
                hint += " under `packages` builds what has a source archive"
            else:
                hint = f"{reason}; `{key}` under `packages` builds what has a source archive"
            yield RequestError(
                f"`{name}`: no wheel fits {platform}{self._recipes_asking(name, bounds=False)}",
                at=self.resolved.python_place(f"{name} {reason}"),
                hint=hint,
            )

    def _recipes_asking(self, text: str, *, bounds: bool) -> str:
        """Return lines with the recipes that ask for what a text names; empty if the spec alone does."""
        required_by = self.resolved.required_by(text, bounds=bounds)
        return "".join(f"\n  the recipe `{name}` asks for {wanted}" for name, wanted in required_by)

    def _nearest_hint(self, stderr: str) -> str:
        """Return the names or versions that are nearest to what no origin has; empty if there are none."""
        missing, hints = uvtext.missing(stderr), []
        for request in self.resolved.requested:
            if request.name not in missing:
                continue
            wanted = request.requirement
            if request.name in _MODULES:
                hints.append(_module_hint(request.name))
            elif versions := self._nearest_versions(wanted):
                hints.append(f"the nearest versions of `{request.name}` are {' and '.join(versions)}")
            elif similar := near(request.name, _common_names()):
                meant = request.text.strip().replace(wanted.name, similar[0], 1)
                hints.append(f"did you mean `{meant}`?")
        return "; ".join(hints)

    def _nearest_versions(self, wanted: Requirement) -> list[str]:
        """Return the version below that of a requirement and the one above, as far as the index has them."""
        self._nearest.add(wanted.name)
        if len(self._nearest) > _MAX_NEAREST:
            return []
        bounds = [part.version.removesuffix(".*") for part in wanted.specifier if part.operator != "==="]
        versions = []
        for operator, strategy in (("<", "highest"), (">", "lowest-direct")):
            options = (*_RESOLUTION, "--no-deps", "--resolution", strategy)
            for bound in bounds[:1]:
                finished, text = self._run([f"{wanted.name}{operator}{bound}"], options)
                if finished.ok:
                    versions += [version for _, version, _, _ in uvtext.parse_resolution(text)]
        return versions

    def _origin_hint(self, stderr: str) -> str:
        """Return what to configure if a missing distribution's origin has no address; else empty."""
        for name in sorted(uvtext.missing(stderr) & self._origins.keys()):
            origin = self._origins[name][0]
            if origin != "pypi" and not self._indexes.get(origin):
                return (
                    f"`{name}` comes from the origin `{origin}`, which cannot be asked: give it an address in"
                    f" a site file (`origins: {{{origin}: [ADDRESS]}}`), or name a place with the wheel"
                    " (`find_links`; pip's find-links does too)"
                )
        return ""


def _unauthorized(stderr: str) -> MachineError | None:
    refusal = uvtext.unauthorized(stderr)
    if refusal is None:
        return None
    return MachineError(
        f"the index {refusal[0]} requires authentication (HTTP {refusal[1]})",
        hint="set user and password in pip's or uv's configuration, or in ~/.netrc",
    )


def _write_stub(name: str, packed: SourceArchive, directory: Path) -> str:
    """Write a wheel that states what an archive requires, and holds nothing; return its file name."""
    base = f"{name.replace('-', '_')}-{packed.file.version}"
    extras = sorted(set(uvtext.EXTRA.findall("\n".join(packed.metadata.requires))))
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {packed.file.version}"]
    lines += [f"Requires-Dist: {text}" for text in packed.metadata.requires]
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    file = f"{base}-py3-none-any.whl"
    with zipfile.ZipFile(directory / file, "w") as stub:
        stub.writestr(f"{base}.dist-info/METADATA", "\n".join(lines) + "\n")
        stub.writestr(
            f"{base}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        stub.writestr(f"{base}.dist-info/RECORD", "")
    return file


def _module_hint(name: str) -> str:
    return f"did you mean `{_MODULES[name]}`? `{name}` is the name of its module"


def _common_names() -> list[str]:
    """Return distributions that people often ask for."""
    return (resources.files(__package__) / "common_names.txt").read_text(encoding="utf-8").split()


def _pins(versions: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def unreachable_reason(name: str, sources: PythonSources, *, backend: str = "") -> str:
    """Return why uv gets no wheel of a distribution; empty if it does.

    `backend` is uv's name of PyTorch's own index (``cpu``), if that is to be asked.
    """
    argv: list[str | Path] = [tools.locate("uv"), "pip", "compile", "--no-deps", "--no-cache"]
    argv += ["--color", "never", "--no-progress"]
    argv += ["--python", sys.executable, "--no-python-downloads", "--only-binary", ":all:"]
    argv += ["--torch-backend", backend] if backend else []
    env = _environment(sources.indexes[:1]) | {"UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "10"}
    with _configured(sources) as (options, directory):
        stdin = f"{name}\n".encode()
        done = process.run([*argv, *options, "-"], env=env, stdin=stdin, cwd=directory, timeout_s=_ASK_S)
    return "" if done.ok else uvtext.why_unreachable(done.stderr)


def without_wheels(
    requirements: Sequence[str], sources: PythonSources, base: BaseImage, architecture: str
) -> set[str] | None:
    """Return which requirements no wheel for a base meets, each alone; None if that cannot be asked."""
    argv: list[str | Path] = [tools.locate("uv"), "pip", "compile", "--no-deps", "--only-binary", ":all:"]
    argv += ["--color", "never", "--no-progress", "--python", sys.executable, "--no-python-downloads"]
    argv += ["--python-version", base.python.version]
    argv += ["--python-platform", uvtext.platform(architecture, base.glibc)]
    env = _environment(sources.indexes[:1]) | {"UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "10"}
    left = list(requirements)
    with _configured(sources) as (options, directory):
        argv += [*options, "--cache-dir", directory / "cache"]
        for _ in range(_MAX_FAILURES):
            text = "\n".join(left).encode()
            done = process.run([*argv, "-"], env=env, stdin=text, cwd=directory, timeout_s=_ASK_S)
            if done.ok:
                return {text for text in requirements if text not in left}
            # uv names the first, and stops.
            named = uvtext.missing(done.stderr) | uvtext.without_wheels(done.stderr)
            others = [text for text in left if _name(text) not in named]
            if len(others) == len(left):
                return None
            left = others
            if not left:
                return {*requirements}
    return None


@contextmanager
def _configured(sources: PythonSources) -> Iterator[tuple[list[str | Path], Path]]:
    """Yield options that name directories with wheels to uv, and the private directory of their file."""
    with tempfile.TemporaryDirectory(prefix="envbuild-uv-") as name:
        file = Path(name, "uv.toml")
        file.write_text(uvtext.configuration(find_links=sources.find_links), encoding="utf-8")
        yield ["--config-file", file], Path(name)


def _environment(index: Sequence[str]) -> dict[str, str]:
    # Addresses may hold credentials: other users see a process's arguments, not its environment.
    extra = {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}
    if index:
        extra["UV_DEFAULT_INDEX"] = index[0]
    return host.environment(network=True, extra=extra)


def _requirements_by_name(chosen: ChosenRecipe) -> dict[str, Requirement]:
    """Return the requirements of a recipe's variant, without its companions, by canonical name."""
    return {canonicalize_name(wanted.name): wanted for wanted in map(Requirement, chosen.own_requirements())}

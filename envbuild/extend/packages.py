"""Choose the packages that an image of any tool gains, and lay them out as they will lie in it."""

from __future__ import annotations

import contextlib
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.extend.python import InstalledDistribution, PythonInstallation, files_and_directories
from envbuild.image.files import ImageFiles
from envbuild.lock.model import PythonPin, ToolPin
from envbuild.plan.model import InputFile, Interpreter, Layer, Scheme, WheelStep, layer_key
from envbuild.preflight.distributions import metadata_header, read_distributions
from envbuild.preflight.python_packages import applies, meets, read_requirement
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.distributions import ResolvedDistribution
from envbuild.resolve.fetch import FileOrigins, fetch
from envbuild.resolve.index import Index
from envbuild.resolve.python import Distributions
from envbuild.resolve.uv_errors import ResolutionError
from envbuild.spec.accelerators import BUILD_LABEL
from envbuild.spec.foreign_wheels import foreign_wheel
from envbuild.spec.model import python_requirement
from envbuild.spec.python_request import PYTORCH, OriginRule, PythonRequest
from envbuild.spec.requirements import PylockFile, RequirementEntry, RequirementFiles
from envbuild.spec.site import Site
from envbuild.spec.wheel_names import is_wheel_name, wheel_name_problem
from envbuild.spec.yamlfile import shorten
from envbuild.store.tree import Tree
from envbuild.system.files import read_input, sha256

_MAX_REQUIREMENTS_BYTES = 4 << 20
_SHOWN = 300  # characters of a path
# Of PyTorch, in builds of its own; a plain build of theirs is for the plain torch.
TORCH_COMPANIONS = frozenset({"torchvision", "torchaudio"})
_WHEEL_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageRequest:
    """The Python packages that someone asks for."""

    requirements: tuple[str, ...] = ()
    """PEP 508."""
    wheels: tuple[Path, ...] = ()
    """Files of wheels."""
    upgrade: frozenset[str] = frozenset()
    """Canonical names of installed distributions that may change."""
    hashes: frozenset[str] = frozenset()
    """Hex digests (SHA-256) of the only files to take; empty for any."""
    remarks: tuple[str, ...] = ()
    """Sentences on lines of requirements files that change nothing here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """The packages that an image gains."""

    python: PythonInstallation
    pins: tuple[PythonPin, ...]
    """The files of the wheels, sorted by name."""
    replaced: tuple[InstalledDistribution, ...] = ()
    """Installed distributions of which a pin is another version, sorted by name."""
    present: tuple[str, ...] = ()
    """Requirements that the image meets already."""


def read_request(
    requirements: Sequence[str] = (),
    *,
    files: Sequence[Path] = (),
    wheels: Sequence[Path] = (),
    upgrade: Sequence[str] = (),
) -> PackageRequest:
    """Return a request of requirements (PEP 508), requirements files and wheels, checked as a whole."""
    errors: list[EnvbuildError] = []
    checked: list[str] = []
    hashes: set[str] = set()
    for text in requirements:
        try:
            checked.append(python_requirement(text.strip()))
        except ValueError as error:
            errors.append(RequestError(str(error), hint="write it as in `scipy>=1.11`"))
    reader = RequirementFiles(read=lambda path, _: read_input(path, limit_bytes=_MAX_REQUIREMENTS_BYTES))
    for file in files:
        reader.add(file, Location(path=file))
    errors += reader.errors
    for entry in reader.entries:
        if isinstance(entry, PylockFile):
            hint = "name a requirements file: the packages are chosen to fit what is installed"
            errors.append(
                RequestError("a pylock.toml cannot be used here", at=Location(path=entry.path), hint=hint)
            )
        elif entry.is_constraint:
            hint = "write the bound into the requirement itself"
            errors.append(RequestError("constraints (`-c`) cannot be used here", at=entry.at, hint=hint))
        else:
            checked.append(entry.text)
            hashes |= entry.hashes
    for wheel in wheels:
        if problem := wheel_name_problem(wheel.name):
            name = unquote(wheel.name)
            hint = f"rename it to `{name}`" if is_wheel_name(name) else "name the file as its builder did"
            shown = shorten(str(wheel), _SHOWN)
            errors.append(RequestError(f"`{shown}` does not name a wheel: {problem}", hint=hint))
        elif not wheel.is_file():
            hint = "name a wheel on this machine"
            errors.append(RequestError(f"there is no file `{wheel}`", hint=hint))
    raise_all(errors)
    return PackageRequest(
        requirements=tuple(dict.fromkeys(checked)),
        wheels=tuple(wheels),
        upgrade=frozenset(map(canonicalize_name, upgrade)),
        hashes=frozenset(hashes),
        remarks=tuple(reader.remarks),
    )


def resolve_packages(
    python: PythonInstallation,
    request: PackageRequest,
    *,
    image: Path,
    site: Site | None,
    context: ResolveContext,
    stage: Path,
) -> Addition:
    """Choose wheels for a request; what is installed stays as it is, unless it may change.

    `image` is the image's file, for messages; `stage` is an empty directory. RequestError, ManyErrors: the
    request cannot be met beside what is installed. MachineError: an index cannot be reached.
    """
    staying = {name: package for name, package in python.installed.items() if name not in request.upgrade}
    requirements = [*request.requirements, *_of_wheels(request.wheels)]
    foreign = (foreign_wheel(wheel.name, python.target) for wheel in request.wheels)
    raise_all([RequestError(problem, hint=hint) for problem, hint in foreign if problem])
    _refuse_changes(requirements, python, request.upgrade, image)
    requirements += sorted(request.upgrade - set(map(_name, requirements)))
    own = stage / "own"
    (own / "wheels").mkdir(parents=True)
    for wheel in request.wheels:
        (own / "wheels" / wheel.name).symlink_to(wheel.absolute())
    required = {package: tuple(_requirements(package)) for package in staying.values()}
    known = dict(_known(required))
    stubs = stage / "installed" / "wheels"
    stubs.mkdir(parents=True)
    for name, (version, _) in known.items():
        (stubs / f"{name.replace('-', '_')}-{version}-py3-none-any.whl").touch()

    context = replace(context, directories=(own, *context.directories))
    entries = _entries(requirements, image)
    pinned = [f"{name}==={version}" for name, (version, _) in sorted(known.items())]
    limits = dict(_limits(required, python))
    build = build_of(staying["torch"].version) if "torch" in staying else ""
    companions = TORCH_COMPANIONS.intersection(map(_name, request.requirements)) - staying.keys()
    rules = _rules(companions if build else (), build)
    packages = PythonRequest(target=python.target, path=image, written=entries, origin_rules=rules)
    # An index may have the same version in a file that fits better.
    described = {**known, **dict(_described(request.wheels))}
    beside = replace(context, directories=(*context.directories, stubs.parent))
    index = Index(
        packages,
        beside.python_sources(site),
        beside,
        known={(name, version): requires for name, (version, requires) in described.items()},
    )
    try:
        resolution = index.resolve(
            entries, constraints=_entries([*pinned, *limits], image), preferred_versions={}
        )
    except ResolutionError as error:
        raise _explained(error, known, limits, python) from error
    new = [
        entry for entry in resolution.distributions if entry.name not in known and not _is_same(entry, python)
    ]
    raise_all(
        [
            _cannot_change(staying[entry.name], f"{entry.name} {entry.version}", python, image)
            for entry in new
            if entry.name in staying
        ]
    )
    rules = _rules(
        [entry.name for entry in new if entry.name in companions and build_of(entry.version)], build
    )
    distributions = Distributions.of(
        replace(packages, origin_rules=rules), context.python_sources(site), context
    )
    offered = distributions.files({entry.name: entry.version for entry in new})
    try:
        for warning in index.skipped_releases(resolution, [entry.name for entry in new], offered):
            context.emit(warning)
    except ResolutionError as error:
        raise _explained(error, known, limits, python) from error
    pins = distributions.pin(resolution, new, offered)
    by_name = {str(parse_wheel_filename(wheel.name)[0]): wheel for wheel in request.wheels}
    pins = tuple(_taken_from(by_name[pin.name], pin) if pin.name in by_name else pin for pin in pins)
    explicit = {wheel.name for wheel in request.wheels}
    raise_all(
        [
            RequestError(
                f"`{pin.file}` has the sha256 {pin.sha256}, which no requirements file names",
                at=Location(path=image),
                hint="with hashes, as for pip, all that comes along is pinned in them: `uv pip compile"
                " --generate-hashes` writes such a file",
            )
            for pin in pins
            if request.hashes and pin.sha256 not in request.hashes and pin.file not in explicit
        ]
    )
    added = {pin.name for pin in pins}
    return Addition(
        python=python,
        pins=pins,
        replaced=tuple(python.installed[name] for name in sorted(added & python.installed.keys())),
        present=tuple(text for text in requirements if _name(text) not in added),
    )


def fetch_packages(
    addition: Addition,
    request: PackageRequest,
    *,
    image: Path,
    site: Site | None,
    context: ResolveContext,
) -> None:
    """Make the wheels of an addition exist in the context's cache, each verified.

    RequestError, ManyErrors: a file is gone, or missing while offline. MachineError: an index cannot be
    reached.
    """
    origins = FileOrigins(python=PythonRequest(target=addition.python.target, path=image), site=site)
    directories = tuple(dict.fromkeys(wheel.parent for wheel in request.wheels))
    try:
        fetch(addition.pins, origins, replace(context, directories=(*directories, *context.directories)))
    except RequestError as error:
        if not context.offline:
            raise
        hint = "run it once with a network and the same store, or name wheels (`--wheel FILE`)"
        raise RequestError(error.problem, at=error.at, hint=hint) from error


def wheel_layers(addition: Addition, base: Layer, tools: Sequence[ToolPin], compression: str) -> list[Layer]:
    """Return the layers of an addition to an image of another tool, sorted by name.

    `base` has an `ImageStep` of the image; `tools` decide their bytes, and `compression` is the packing of
    the image's file system.
    """
    python, layers = addition.python, []
    interpreter = Interpreter(abi=python.abi, architecture=python.architecture)
    for pin in addition.pins:
        step = WheelStep(
            scheme=Scheme(**{**python.scheme, "headers": f"{python.scheme['headers']}/{pin.name}"}),
            python=python.executable,
            compiler=python.executable,
            interpreter=interpreter,
            wheel=InputFile(name=pin.file, sha256=pin.sha256),
            tools=tuple(tools),
        )
        layers.append(
            Layer(
                name=f"wheel:{pin.name}",
                key=layer_key(step, [base], compression),
                step=step,
                inputs=(base.name,),
                compression=compression,
            )
        )
    return sorted(layers, key=lambda layer: layer.name)


def _refuse_changes(
    requirements: Sequence[str], python: PythonInstallation, upgrade: frozenset[str], image: Path
) -> None:
    """Raise errors for what asks for another version than the one that stays."""
    errors = [
        RequestError(
            f"`{name}` is not installed for `{python.executable}`",
            at=Location(path=image),
            hint=f"`--python {name}` adds it",
        )
        for name in sorted(upgrade - python.installed.keys())
    ]
    errors += [
        _cannot_change(python.installed[name], f"--upgrade {name}", python, image)
        for name in sorted(upgrade)
        if python.is_covered(name)
    ]
    for text in requirements:
        requirement = Requirement(text)
        package = python.installed.get(canonicalize_name(requirement.name))
        if package is None or package.name in upgrade or not applies(requirement, (), python.markers):
            continue
        if not meets(package.version, requirement):
            errors.append(_cannot_change(package, text, python, image))
    raise_all(errors)


def _cannot_change(
    package: InstalledDistribution, requirement: str, python: PythonInstallation, image: Path
) -> RequestError:
    if python.is_covered(package.name):
        return RequestError(
            f"{package.name} {package.version} is installed in `{package.site}`, where `{python.executable}`"
            f" looks first: `{requirement}` would not be found beside it",
            at=Location(path=image),
            hint=f"ask for packages that suit {package.name} {package.version}; PYTHONPATH of the image, or a"
            " `.pth` file, puts that directory first",
        )
    return RequestError(
        f"{package.name} {package.version} is installed (`{package.site}`),"
        f" and `{requirement}` would replace it",
        at=Location(path=image),
        hint=f"`--upgrade {package.name}` allows that; what was compiled against it may break",
    )


def build_of(version: str) -> str:
    """Return the build of PyTorch that a local version names (``cu124``); empty for none."""
    local = version.partition("+")[2].lower()
    return local if BUILD_LABEL.fullmatch(local) else ""


def _explained(
    error: ResolutionError,
    known: Mapping[str, tuple[str, Sequence[str]]],
    limits: Mapping[str, str],
    python: PythonInstallation,
) -> RequestError:
    """Return the error of a resolution with what the image has to do with it."""
    # The problem is a summary, and may leave out what stays.
    releases = {release for failure in error.failures for release in failure.releases}
    concerned = sorted(name for name, (version, _) in known.items() if f"{name}=={version}" in releases)
    lines = [f"\n  the image has {name} {known[name][0]}" for name in concerned]
    binding = {limit: owner for limit, owner in limits.items() if _name(limit) in releases}
    lines += [f"\n  {owner}, which is installed, needs {limit}" for limit, owner in sorted(binding.items())]
    hint = error.hint
    if error.without_wheels or any(failure.lacks_wheels for failure in error.failures):
        hint = "build a wheel of it where there is a compiler, and name it (`--wheel FILE`)"
    if concerned or binding:
        upgrades = sorted({*concerned, *(owner.partition(" ")[0] for owner in binding.values())})
        names = " ".join(f"--upgrade {name}" for name in upgrades if not python.is_covered(name))
        hint = "ask for an older version"
        hint += f", or let what is installed change: `{names}`" if names else ""
    return RequestError(error.problem + "".join(lines), at=error.at, hint=hint)


def _entries(requirements: Sequence[str], image: Path) -> tuple[RequirementEntry, ...]:
    return tuple(RequirementEntry(text=text, at=Location(path=image)) for text in requirements)


def _rules(companions: Iterable[str], build: str) -> tuple[OriginRule, ...]:
    """Return rules by which companions of PyTorch come from the origin of a build (``cu124``)."""
    return tuple(
        OriginRule(
            origins=(f"{PYTORCH}{build}",),
            names=frozenset({name}),
            requirements=(Requirement(name),),
            label=build,
        )
        for name in sorted(companions)
    )


def _of_wheels(wheels: Sequence[Path]) -> Iterator[str]:
    for wheel in wheels:
        name, version, *_ = parse_wheel_filename(wheel.name)
        yield f"{name}==={version}"


def _described(wheels: Iterable[Path]) -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    """Yield name → version and requirements of wheels, as they say themselves."""
    for wheel in wheels:
        name, version, *_ = parse_wheel_filename(wheel.name)
        try:
            with zipfile.ZipFile(wheel) as archive:
                path = next(filter(_WHEEL_METADATA.fullmatch, archive.namelist()))
                with archive.open(path) as file:
                    text = file.read(_MAX_REQUIREMENTS_BYTES).decode(errors="replace")
            distributions = read_distributions({path: metadata_header(path, text)})
        except (OSError, StopIteration, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            problem = f"`{wheel}` is not a wheel that can be read: {str(error) or 'it has no METADATA'}"
            raise RequestError(problem, hint="name another file with --wheel") from error
        for distribution in distributions.values():
            yield str(name), (str(version), distribution.requires)


def _taken_from(wheel: Path, pin: PythonPin) -> PythonPin:
    """Return a pin with the file that was named."""
    size_bytes = wheel.stat().st_size
    return replace(pin, file=wheel.name, origin="find-links", size_bytes=size_bytes, sha256=sha256(wheel))


def _known(
    staying: Mapping[InstalledDistribution, Sequence[Requirement]],
) -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    """Yield name → version and requirements of what stays, as the resolver is to see it.

    The requirements are those of extras alone: whether the others are met is not changed by what is added.
    """
    for package, requirements in staying.items():
        with contextlib.suppress(InvalidVersion):
            extras = [entry for entry in requirements if entry.marker and "extra" in str(entry.marker)]
            yield package.name, (str(Version(package.version)), tuple(map(str, extras)))


def _limits(
    staying: Mapping[InstalledDistribution, Sequence[Requirement]], python: PythonInstallation
) -> Iterator[tuple[str, str]]:
    """Yield what installed distributions require of others that may come or change, with who requires it."""
    names = {package.name for package in staying}
    for package, requirements in staying.items():
        for requirement in requirements:
            name = canonicalize_name(requirement.name)
            old = python.installed.get(name)
            # What an image violates already does not bind what is added.
            holds = old is None or meets(old.version, requirement)
            if (
                name not in names
                and requirement.specifier
                and holds
                and applies(requirement, (), python.markers)
            ):
                yield f"{name}{requirement.specifier}", f"{package.name} {package.version}"


def _requirements(package: InstalledDistribution) -> Iterator[Requirement]:
    for requirement in filter(None, map(read_requirement, package.requires)):
        if requirement.url is None:
            yield requirement


def _is_same(entry: ResolvedDistribution, python: PythonInstallation) -> bool:
    package = python.installed.get(entry.name)
    try:
        return package is not None and Version(package.version) == Version(entry.version)
    except InvalidVersion:
        return False


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def replaced_programs(addition: Addition, trees: Mapping[str, Tree]) -> Iterator[str]:
    """Yield the programs of packages that replace others: conda writes some that no record lists."""
    for package in addition.replaced:
        for path in trees.get(f"wheel:{package.name}", ()):
            if f"/{path}".startswith(f"{addition.python.scripts}/"):
                yield f"/{path}"


def hidden_files(addition: Addition, image: ImageFiles) -> set[str]:
    """Return the files of what is replaced, and the directories that hold nothing else."""
    site = addition.python.site_packages
    # What lies elsewhere belongs to Debian, or to the base of a virtual environment: ours comes first there.
    replaced = [package for package in addition.replaced if package.site == site]
    return files_and_directories(image, replaced, site)

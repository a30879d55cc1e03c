"""Module: put an image behind `module load`, list what is installed, remove it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path

from envbuild.activate import retirement
from envbuild.activate.checks import (
    check_commands,
    check_not_replaced,
    check_replaces_its_kind,
    check_verdict,
    check_writers,
    command_names,
    verdict_warnings,
)
from envbuild.activate.install import InstallResult, absolute, checked_root, install, why_only_you
from envbuild.activate.installed import (
    InstalledModule,
    Uninstalled,
    find_installed,
    foreign_files,
    select,
    uninstall,
)
from envbuild.activate.launcher import stamp_of
from envbuild.activate.layout import VERDICT, Deprecation, Layout, parse_module, read_default
from envbuild.activate.model import OWN_COMMANDS, Installation, choose_commands, runnable_of
from envbuild.errors import EnvbuildError, RequestError, raise_all
from envbuild.events import Note, Warned, task
from envbuild.image.file import ImageFile
from envbuild.image.runnable import Runnable, added_python, identity_of
from envbuild.image.verify import check_image_is_whole
from envbuild.inputs.catalog import read_recipe
from envbuild.launch.context import NO_HOST_LIBS, HostLibraries, LaunchContext
from envbuild.launch.launchers import launcher_for
from envbuild.launch.launchers.srun import lone_tasks
from envbuild.preflight.scan import changes_from
from envbuild.quoting import shell_path
from envbuild.store import verdicts
from envbuild.store.verdicts import TestVerdict
from envbuild.system import host, process
from envbuild.system.apptainer import Apptainer
from envbuild.system.configured import first_of
from envbuild.system.fingerprint import HostFingerprint
from envbuild.workflows.activity import log_activity
from envbuild.workflows.arguments import check_outside_store, check_room
from envbuild.workflows.failures import explain_failure
from envbuild.workflows.hosting import for_one_container_per_rank, host_libraries_for, warn_of_absent_binds
from envbuild.workflows.images import NamedImage, existing_directory, named_images
from envbuild.workflows.inputs import site_of
from envbuild.workflows.members import Member, Members
from envbuild.workflows.older import warn_if_older
from envbuild.workflows.settings import Settings
from envbuild.workflows.striping import striped
from envbuild.workflows.trust import check_signatures

_LIMIT_S = 60.0
_INODES = 10
"""Files and directories that a module has besides the wrappers of its commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModule:
    """An installed module, and its test verdict on this host."""

    module: InstalledModule
    verdict: TestVerdict | None
    """None if it was never tested."""
    changed: tuple[str, ...] = ()
    """How the image differs from the one that passed, in words."""

    @property
    def state(self) -> str:
        """A key of `verdicts.STATES`."""
        return verdicts.state(self.verdict, self.changed, self.module.problems)

    @property
    def text(self) -> str:
        """The circumstances of the verdict, or why it does not count; empty without a verdict."""
        if self.module.problems:
            return "; ".join(self.module.problems)
        if self.changed:
            return verdicts.unlike_tested(self.changed)
        return self.verdict.text if self.verdict else ""

    @property
    def word(self) -> str:
        """The word for the state, as `envbuild status` prints it."""
        return verdicts.STATES[self.state]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRequest:
    """The image to install, and how."""

    image: Path
    root: Path
    """The module root; made if absent."""
    link: bool = False
    """Whether the module refers to the image instead of a copy."""
    default: bool = False
    """Whether it becomes the version of ``module load NAME``."""
    require_pass: bool = False
    """Whether the image must have passed its test on this host."""
    require_gpu: bool = False
    """Whether it must be for GPUs, and have passed its test on some."""
    from_host: HostLibraries = NO_HOST_LIBS
    """Libraries of the site's host that replace the image's own."""
    name: str | None = None
    version: str | None = None
    """Of the module, for an extended image."""
    commands: Sequence[str] = ()
    """Further commands of the image that get a wrapper."""
    deprecation: Deprecation | None = None
    """From which day users should load another module."""


def read_deprecation(on: date | None, use: str | None) -> Deprecation | None:
    """Return the deprecation that two options state; None without. RequestError: only one, or not a name."""
    if (on is None) != (use is None):
        hint = "write `--deprecate 2027-01-31 --use NAME/VERSION`"
        raise RequestError("--deprecate and --use need each other", hint=hint)
    return Deprecation.of(on, use) if on is not None and use is not None else None


def install_module(request: InstallRequest, settings: Settings) -> InstallResult:
    """Install an image, wrappers for its commands, and a modulefile.

    RequestError: it is not an image of envbuild's, or damaged; a name is reserved; the root cannot be
    written, or everybody can write to it; or the host's MPI does not fit. MachineError: there is no usable
    Apptainer, or no space.
    """
    check_outside_store(request.root, settings.store.path, hint="name another directory with --root DIR")
    request = replace(request, commands=command_names(request.commands))
    with ImageFile.open(request.image) as image:
        warn_if_older(image, settings.emit)
        needs_test = check_signatures(image, str(request.image), settings.emit)
        if needs_test and not request.require_pass:
            text = (
                "`require_pass` in config.yaml: no signed verdict says that it passed; it needs a test here"
            )
            settings.emit(Note(text=text))
            request = replace(request, require_pass=True)
        return _install_module(image, request, settings)


def check_modules_differ(images: Members[NamedImage], root: Path, settings: Settings) -> None:
    """Raise a RequestError if two images that envbuild built would become one module."""

    def modulefile(member: Member[NamedImage], settings: Settings) -> tuple[Path, ...]:
        with ImageFile.open(member.get().file(settings)) as image:
            return (root / "modulefiles" / image.label,) if image.built_by_envbuild else ()

    # What cannot be read is reported where it is installed.
    images.each(modulefile, replace(settings, emit=lambda _: None)).check_outputs(lambda member: member.get())


def _install_module(image: ImageFile, request: InstallRequest, settings: Settings) -> InstallResult:
    """Install an image; a change of it meanwhile leaves no release of it."""
    root, emit = request.root, settings.emit
    python = added_python(image)
    runnable = _runnable(image, request, settings)
    check_writers(root, request.name or runnable.name, emit)
    site = site_of(settings)
    apptainer = settings.find_apptainer(site)
    if site is not None:
        warn_of_absent_binds(site, emit)
    host_libs = host_libraries_for(image, settings, request.from_host)
    if host_libs is not None and request.from_host:
        host_libs = for_one_container_per_rank(host_libs)
    here = settings.this_host(apptainer).with_facts(host_libs.identities if host_libs else {})
    verdict = verdicts.latest(settings.store, runnable.digest, here=here, emit=settings.emit)
    check_verdict(
        request.image,
        runnable,
        verdict,
        require_pass=request.require_pass,
        require_gpu=request.require_gpu,
    )
    check_commands(image, request.commands)
    commands, left_out = choose_commands(
        runnable,
        own=_own_commands(image, python, apptainer, settings) if python else OWN_COMMANDS,
        of_recipes=_commands_of_recipes(runnable, settings),
        of_user=request.commands,
        on_host_mpi=host_libs is not None and bool(host_libs.mpi_files),
    )
    context = LaunchContext(
        family=runnable.mpi_family,
        version=runnable.recipes.get(runnable.mpi, ""),
        site=site,
        from_host=request.from_host,
        user_names_pmi=True,
    )
    tasks = launcher_for("srun", context)
    installation = Installation(
        root=checked_root(root),
        image=absolute(request.image),
        runnable=runnable,
        linked=request.link,
        # Of the image when it was opened, so that a later change is noticed.
        stamp=stamp_of(image.program_path) if request.link else "",
        options=_options(request, runnable, settings, foreign=bool(python)),
        apptainer=apptainer,
        binds=site.binds if site is not None else (),
        verdict_record=verdict.record_text if verdict is not None else "",
        host_libs=host_libs,
        name=request.name or "",
        version=request.version or "",
        deprecation=request.deprecation,
        rank_environment=tasks.variables() if tasks is not None else {},
        lone_tasks=lone_tasks(*context.running_mpi, host=context.host_mpi is not None),
        commands=commands,
        left_out=left_out,
        python=python,
    )
    check_not_replaced(installation)
    if request.name is None and request.version is None:
        check_replaces_its_kind(installation)
    if not installation.release.is_dir():
        check_room(
            installation.root,
            0 if request.link else image.size_bytes,
            emit,
            copied_from=request.image,
            # A wrapper for each command; the others are those of a release, and of its module.
            inodes=len(installation.commands) + _INODES,
            hint="free some space, or name another directory with --root DIR",
        )
    # The whole image is read, and then copied.
    total_bytes = image.size_bytes * (1 if request.link else 2)
    title = f"module {installation.layout.label}"
    with task(emit, "module", title, total_bytes=total_bytes) as running:
        if image.built_by_envbuild:
            check_image_is_whole(image, advanced=running.advance)
        installed = install(
            installation,
            source=image.program_path,
            default=request.default,
            copied=running.advance,
            create=striped(site, emit),
            check=image.check_still_there if request.link else image.check_unchanged,
        )
        running.detail = str(installed.layout.modulefile) if installed.changed else "everything was in place"
    layout = installed.layout
    log_activity(
        emit,
        "install",
        name=layout.label,
        digest=runnable.digest,
        result="installed" if installed.changed else "was installed already",
        path=layout.modulefile,
    )
    warnings = [*verdict_warnings(verdict)]
    if request.link and (problem_of_others := why_only_you(installation.image)) is not None:
        warnings.append(Warned(text=problem_of_others))
    for warning in warnings:
        emit(warning)
    if installed.replaced is not None:
        kept = f"the image that was there before is kept for jobs that run on it: {installed.replaced}"
        emit(Note(text=f"{kept}; once they have ended: rm -r {shell_path(installed.replaced)}"))
    return replace(installed, warnings=tuple(warning.text for warning in warnings))


def _runnable(image: ImageFile, request: InstallRequest, settings: Settings) -> Runnable:
    if image.built_by_envbuild or image.note is None:
        return runnable_of(image, "", request.name, request.version)
    with task(settings.emit, "verify", f"read {image.path.name}", total_bytes=image.size_bytes) as reading:
        digest = identity_of(image, settings.store, advanced=reading.advance)
    return runnable_of(image, digest, request.name, request.version)


def _options(
    request: InstallRequest, runnable: Runnable, settings: Settings, *, foreign: bool
) -> tuple[str, ...]:
    """Return the words after image and root that install it like this again, from a copy as well."""
    # Without a name, that of an image of another tool is the file's.
    name, version = (request.name or runnable.name, request.version or runnable.version)
    values = {
        "--name": name if request.name or foreign else None,
        "--version": version if request.version or foreign else None,
        "--mpi": "host" if request.from_host.mpi else None,
        "--fabric": "host" if request.from_host.fabric else None,
        "--site": settings.site,
        "--apptainer": settings.apptainer,
        "--deprecate": request.deprecation.on if request.deprecation else None,
        "--use": request.deprecation.use if request.deprecation else None,
    }
    words = [word for option, value in values.items() if value for word in (option, str(value))]
    words += [word for name in request.commands for word in ("--command", name)]
    return (*(["--link"] if request.link else []), *words)


def _commands_of_recipes(runnable: Runnable, settings: Settings) -> frozenset[str]:
    """Return the commands of the recipes of this installation that an image has."""
    commands: set[str] = set()
    for name in runnable.recipes:
        with suppress(EnvbuildError):
            commands.update(read_recipe(name, recipes=settings.recipes).loaded.value.commands)
    return frozenset(commands)


def _own_commands(image: ImageFile, python: str, apptainer: Apptainer, settings: Settings) -> tuple[str, ...]:
    """Return those of `OWN_COMMANDS` that an image of another tool has: its Python need not have pip."""
    command = apptainer.command(image.program_path, [python, "-s", "-c", "import pip"], cwd="/")
    done = process.run(command, env=host.environment(), cwd=Path("/"), timeout_s=_LIMIT_S)
    if (refusal := apptainer.not_started(done, image.path.name)) is not None:
        with explain_failure("exec", settings, apptainer=apptainer.program):
            raise refusal
    return tuple(name for name in OWN_COMMANDS if done.ok or name not in ("pip", "pip3"))


def list_modules(root: Path, settings: Settings) -> tuple[ListedModule, ...]:
    """Return the modules below a root; RequestError if it does not exist or cannot be read."""
    here = settings.this_host()
    return tuple(judge_module(module, settings, here) for module in find_installed(existing_root(root)))


def judge_module(module: InstalledModule, settings: Settings, here: HostFingerprint) -> ListedModule:
    """Return a module with its test verdict: of this user's store, or the one at its installation."""
    verdict = None
    changed: tuple[str, ...] = ()
    if module.record is not None:
        with_libraries = here.with_facts(module.record.host_libraries)
        beside = module.layout.home / VERDICT
        verdict = verdicts.latest(
            settings.store, module.record.digest, here=with_libraries, beside=beside, emit=settings.emit
        )
        if verdict is not None and verdict.counts_for_bytes:
            changed = changes_from(module.record.digest, module.image, settings.store)
    return ListedModule(module=module, verdict=verdict, changed=changed)


def named_modules(names: Sequence[str], *, root: Path) -> Members[InstalledModule]:
    """Return modules by ``NAME/VERSION``, or ``NAME`` for the only version, each once.

    One that is not installed is a member with its error. RequestError: there is no such root.
    """
    root = existing_root(root)
    installed = {module.layout: module for module in find_installed(root)}
    members: dict[str, Member[InstalledModule]] = {}
    for name in names:
        try:
            base, version = parse_module(name)
            (layout,) = select(root, base, version, every=False)
            if layout not in installed:
                problem = f"{layout.label} was not uninstalled completely"
                raise RequestError(problem, hint=f"`envbuild module uninstall {layout.label} --root DIR`")
        except EnvbuildError as error:
            members.setdefault(name, Member(name=name, path=root, error=error))
        else:
            module = installed[layout]
            members[layout.label] = Member(name=layout.label, path=layout.home, result=module)
    return Members(items=tuple(members.values()), many=len(names) > 1)


def highest_modules(directories: Sequence[Path], settings: Settings) -> Members[InstalledModule]:
    """Return for each name in each root below directories the highest version that can be the default.

    If all are broken or retired, it is the highest. RequestError: as `named_images`.
    """
    versions: dict[tuple[Path, str], list[Member[InstalledModule]]] = {}
    for member in named_images(settings, every=directories).items:
        if (module := member.get().module) is not None:
            found = Member(name=member.name, path=module.layout.home, result=module)
            versions.setdefault((module.layout.root, module.layout.name), []).append(found)

    def can_be_default(module: InstalledModule) -> bool:
        return not module.problems and module.retired_until is None

    chosen = [
        ([one for one in found if can_be_default(one.get())] or found)[-1] for found in versions.values()
    ]
    return Members(items=tuple(chosen), many=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenDefault:
    """A version that was made the default."""

    layout: Layout
    before: str | None
    """The default version before; None if there was none."""


def choose_defaults(modules: Members[InstalledModule], settings: Settings) -> Members[ChosenDefault]:
    """Make modules the default versions of their names.

    The error of a member: it is not installed, is broken or retired, or a file of others chooses the version.
    RequestError: two are versions of one name; then nothing has changed.
    """
    labels: dict[tuple[Path, str], str] = {}
    errors: list[EnvbuildError] = []
    for layout in (member.get().layout for member in modules.done):
        first = labels.setdefault((layout.root, layout.name), layout.label)
        if first != layout.label:
            problem = f"`{first}` and `{layout.label}` cannot both be the default of `{layout.name}`"
            errors.append(RequestError(problem, hint="name one of the two"))
    raise_all(errors)

    def choose(member: Member[InstalledModule], _: Settings) -> ChosenDefault:
        module = member.get()
        before = read_default(module.layout)
        retirement.choose_default(module)
        return ChosenDefault(layout=module.layout, before=before)

    return modules.each(choose, settings, last=True)


def retire_modules(
    modules: Members[InstalledModule], settings: Settings, *, today: date, until: date | None = None
) -> Members[date | None]:
    """Retire modules until a day, by default as many days after `today` as the configuration says.

    The error of a member: it is not installed, is broken or the default. RequestError: no day is known, or it
    is past; then nothing has changed.
    """
    if until is None:
        days = first_of("retirement_days")
        if days is None:
            hint = "write `retirement_days: 90` in config.yaml, or add --on 2027-01-31"
            raise RequestError("the configuration has no `retirement_days`, and no day is named", hint=hint)
        until = today + timedelta(days=days.value)
    elif until < today:
        raise RequestError(f"{until} is past", hint="name today or a later day")
    last_day = until

    def retire(member: Member[InstalledModule], _: Settings) -> date | None:
        retirement.retire(member.get(), last_day)
        return last_day

    return modules.each(retire, settings, last=True)


def end_retirement(modules: Members[InstalledModule], settings: Settings) -> Members[date | None]:
    """Offer retired modules again; the error of a member: it is not installed."""

    def offer(member: Member[InstalledModule], _: Settings) -> date | None:
        retirement.end_retirement(member.get())
        return None

    return modules.each(offer, settings, last=True)


def uninstall_retired(root: Path, settings: Settings, *, today: date) -> Members[Uninstalled]:
    """Remove the retired modules whose day has come; RequestError: there is no such root.

    The error of a member: something in the way is not envbuild's, or this user may not remove it.
    """
    due = [
        Member(name=module.layout.label, path=module.layout.home, result=module.layout)
        for module in find_installed(existing_root(root))
        if module.retired_until and module.retired_until <= today
    ]

    def remove(member: Member[Layout], _: Settings) -> Uninstalled:
        layout = member.get()
        raise_all([*foreign_files(layout)])
        return uninstall(layout)

    return Members(items=tuple(due), many=True).each(remove, settings, last=True)


def uninstall_each(
    names: Sequence[str], settings: Settings, *, root: Path, every: bool
) -> Members[tuple[Uninstalled, ...]]:
    """Remove modules by their names; the error of a member: as of `uninstall_modules`."""
    root = existing_root(root)
    members = Members.of(map(Path, dict.fromkeys(names)), many=len(names) > 1)
    return members.each(
        lambda member, _: uninstall_modules(member.name, root=root, every=every), settings, last=True
    )


def uninstall_modules(name: str, *, root: Path, every: bool) -> tuple[Uninstalled, ...]:
    """Remove the module ``NAME/VERSION``, the only version of ``NAME``, or with `every` all of its versions.

    RequestError: it is not installed, is not envbuild's, or one of several versions must be named.
    """
    base, version = parse_module(name)
    if every and version is not None:
        raise RequestError(f"`{name}` is one version, and --all asks for all", hint=f"write `{base} --all`")
    layouts = select(existing_root(root), base, version, every=every)
    # All errors before the first removal.
    raise_all([error for layout in layouts for error in foreign_files(layout)])
    return tuple(uninstall(layout) for layout in layouts)


def existing_root(root: Path) -> Path:
    """Return the absolute path of a module root; RequestError if there is no such directory."""
    return existing_directory(root, hint="name the one that modules were installed in with --root DIR")

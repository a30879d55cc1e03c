"""Export a text that starts an image at a site where envbuild need not be: an EDF, or a batch script."""

from __future__ import annotations

from pathlib import Path

from envbuild.activate.install import absolute
from envbuild.errors import RequestError, some
from envbuild.events import Emit, Note, Warned
from envbuild.image.compose import check_target
from envbuild.image.export import Written, is_empty_or_starts_with
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.inputs.catalog import read_benchmarks
from envbuild.inputs.knowledge import read_knowledge
from envbuild.launch.context import HostLibraries, LaunchContext
from envbuild.launch.formats import ScriptFormat, TextFormat, text_format
from envbuild.launch.launchers import Launcher, launcher_for
from envbuild.launch.runtimes import SiteLaunch, on_site_mpi, variables_of
from envbuild.launch.schedulers import Scheduler, scheduler
from envbuild.rules.from_lock import facts_of_lock
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import refuse_or_warn
from envbuild.rules.rulebook import judge
from envbuild.rules.tables import at_least
from envbuild.spec.site import Site, SiteBind, SiteRuntime
from envbuild.system.files import sha256, write_atomically
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.hosting import (
    host_libraries_for,
    judge_own_fabric,
    lasting_stage,
    supplied_parts,
)
from envbuild.workflows.inputs import site_of
from envbuild.workflows.settings import Settings

_EVERYWHERE = ("apptainer", "singularityce")  # runtimes that need no description
# Runtime → prefix of variables that it sets in the image alone.
_VARIABLES = {"apptainer": "APPTAINERENV_", "singularityce": "SINGULARITYENV_"}
# Below it pyxis unpacks a squashfs on each node. Source: NVIDIA/pyxis, commit 2ca2427d.
_PYXIS_MOUNTS = "0.22"


def export_script(
    image: Path, form: ScriptFormat, path: Path, *, image_name: str, runtime_name: str, settings: Settings
) -> Written:
    """Write what starts an image at a site; the same image and site give the same text.

    `image_name` names the image there: a path, a registry reference, Shifter's ``id:…``, in a batch script
    the EDF. If it is empty, that is the image's own path, for a runtime that starts it. An empty
    `runtime_name` is the first of the site that fits. RequestError: it is not an image of envbuild's, no site
    is named, the image does not fit it, or nothing there starts it.
    """
    with ImageFile.open(image) as opened:
        manifest, facts = opened.manifest, facts_of_lock(opened.lock)
        takes_software = bool(supplied_parts(opened.lock))
    site = site_of(settings)
    if site is None:
        raise RequestError("the site where the image starts is unknown", hint="name a site with --site")
    chosen_format = text_format(form)
    check_text_target(image, path, form, chosen_format.first_lines)
    starter = _scheduler(site, chosen_format, form)
    refuse_or_warn(judge(stack_facts(facts, site), "export", knowledge=read_knowledge()), settings.emit)
    chosen = _choose_runtime(site, chosen_format, runtime_name, settings.emit)
    has_site_mpi = on_site_mpi(manifest, chosen)
    if not chosen.host_fabric:
        stack = stack_facts(facts, site, host_mpi=has_site_mpi)
        refuse_or_warn(judge_own_fabric(stack), settings.emit)
    named = _named(image, chosen_format, image_name, chosen)
    launcher = _launcher(manifest, site, starter, own_mpi=not has_site_mpi, host_fabric=chosen.host_fabric)
    if launcher.doubt:
        hint = "`envbuild test --launcher srun` at the site shows whether ranks find each other"
        settings.emit(Warned(text=launcher.doubt, hint=hint))
    variables = variables_of(launcher, site, chosen)
    site_argument = _site_argument(site, settings)
    if takes_software:
        site, of_software = _with_software(image, site, chosen, settings)
        variables = dict(sorted({**variables, **of_software}.items()))
    launch = SiteLaunch(
        manifest=manifest,
        site=site,
        site_argument=site_argument,
        runtime=chosen,
        image=named,
        launcher=launcher,
        variables=variables,
        has_benchmarks=form == "reframe" and bool(read_benchmarks(manifest.recipes)),
    )
    written = write_text(path, form, chosen_format.render(launch))
    if chosen_format.directory:
        warn_of_relative_files(manifest, chosen_format.directory, settings.emit)
    if not image_name:
        settings.emit(Note(text=f"the image is expected at {launch.image}; --image names another place"))
    return written


def _with_software(
    image: Path, site: Site, chosen: SiteRuntime, settings: Settings
) -> tuple[Site, dict[str, str]]:
    """Return a site that binds its software, too, and the variables by which an image finds it.

    The files are those of this machine. RequestError: the runtime takes no variables for the image alone, or
    the software does not fit.
    """
    prefix = _VARIABLES.get(chosen.name)
    if prefix is None:
        raise RequestError(
            f"the image takes software from its site, and {chosen.name} cannot set where the image finds it",
            hint="name a runtime that can, with --runtime apptainer, or install the image as a module",
        )
    with ImageFile.open(image) as opened:
        plan = host_libraries_for(opened, settings)
    if plan is None:
        return site, {}
    mounts = plan.binds(lasting_stage(plan, settings))
    binds = [
        SiteBind(source=str(mount.source), target=mount.target, writable=mount.writable) for mount in mounts
    ]
    environment = {f"{prefix}{name}": value for name, value in plan.environment.items()}
    return site.model_copy(update={"binds": (*site.binds, *binds)}), environment


def _site_argument(site: Site, settings: Settings) -> str:
    """Return what names a site for ``--site`` in any directory."""
    named = settings.site
    return str(named.absolute()) if named is not None and named.is_file() else site.name


def check_text_target(image: Path, path: Path, form: str, first_lines: str) -> None:
    """Raise a RequestError if the text of a form must not be written to a path."""
    check_target(
        path,
        keep=(image,),
        is_one=lambda file: is_empty_or_starts_with(file, first_lines.encode()),
        what=form,
        hint="name another file with -o PATH",
    )
    check_outside_store(path)


def warn_of_relative_files(manifest: Manifest, directory: str, emit: Emit) -> None:
    """Warn of files that the command of `launch` names by a relative path: no image holds them."""
    files = manifest.launch.relative_files if manifest.launch is not None else ()
    if files:
        names, verb = some([f"`{name}`" for name in files]), "is" if len(files) == 1 else "are"
        text = f"`launch.command`: {names} {verb} read from {directory}, and not from the image"
        hint = "keep them there, or write absolute paths: `files` in the spec puts files into the image"
        emit(Warned(text=text, hint=hint))


def write_text(path: Path, form: str, text: str) -> Written:
    """Write a text that starts an image."""
    write_atomically(path, text.encode())
    size = len(text.encode())
    return Written(format=form, files=(path,), size_bytes=size, identity=f"sha256:{sha256(path)}")


def _choose_runtime(site: Site, form: TextFormat, name: str, emit: Emit) -> SiteRuntime:
    runtimes = {runtime.name: runtime for runtime in site.runtimes}
    fit = [runtime for runtime in runtimes if form.runtimes is None or runtime in form.runtimes]
    chosen = runtimes.get(name or next(iter(fit), ""))
    if not runtimes and form.runtimes is None and (not name or name in _EVERYWHERE):
        # As `launch` does.
        chosen = SiteRuntime(name=name or _EVERYWHERE[0])
        text = f"the site `{site.name}` names no runtime: the script is written for {chosen.name}"
        emit(Warned(text=text, hint="`runtimes` of the site file names what it has"))
    if chosen is None:
        reads = f" that reads {form.title}" if form.runtimes is not None else ""
        requested = f"runtime `{name}`" if name else f"runtime{reads}"
        has = f"it has {', '.join(runtimes)}" if runtimes else "it names none"
        raise RequestError(
            f"the site `{site.name}` has no {requested}: {has}",
            hint="`runtimes` of the site file names them, and --runtime one of those",
        )
    if chosen.name == "pyxis" and chosen.version and not at_least(chosen.version, _PYXIS_MOUNTS):
        text = f"pyxis {chosen.version} unpacks the image on each node at each start"
        emit(Warned(text=text, hint=f"{_PYXIS_MOUNTS} starts it as it is, with `use_squashfuse=1`"))
    return chosen


def _named(image: Path, form: TextFormat, image_name: str, chosen: SiteRuntime) -> str:
    started = form.image_format(chosen.name)
    if not image_name and started:
        raise RequestError(
            f"{chosen.name} does not start `{image.name}` itself",
            hint=f"`envbuild export --format {started}` writes what it starts; --image names that there",
        )
    named = image_name or str(absolute(image))
    if not named.isprintable() or named.startswith("-"):
        raise RequestError(f"{named!a} cannot name an image", hint="give it another name with --image")
    return named


def _scheduler(site: Site, form: TextFormat, name: ScriptFormat) -> Scheduler | None:
    """Return the scheduler of a batch script; RequestError if the site has another one."""
    starter = scheduler(form.scheduler)
    if starter is None or (site.scheduler is not None and site.scheduler.name == starter.name):
        return starter
    has = f"starts jobs by {site.scheduler.name}" if site.scheduler else "names no scheduler"
    raise RequestError(
        f"`--format {name}` is for {starter.title}, and the site `{site.name}` {has}",
        hint=f"name it in the site file if it is {starter.title}: `scheduler: {{name: {starter.name}}}`",
    )


def _launcher(
    manifest: Manifest, site: Site, starter: Scheduler | None, *, own_mpi: bool, host_fabric: bool
) -> Launcher:
    """Return what starts the ranks; on the site's MPI its own default is right.

    RequestError: nothing starts them so that they find each other.
    """
    context = LaunchContext(
        family=manifest.mpi_family if own_mpi else "",
        version=manifest.recipes.get(manifest.mpi, ""),
        site=site,
        from_host=HostLibraries(fabric=host_fabric),
        across_nodes=True,
        # An EDF is for srun, and names no PMI.
        user_names_pmi=starter is None,
    )
    name, title = (starter.launcher, starter.title) if starter is not None else ("srun", "Slurm")
    launcher = launcher_for(name, context)
    if launcher is None:
        raise RequestError(
            f"{name}, by which {title} starts ranks, starts none of `{manifest.name}`",
            hint="add `mpi: mpich` to its spec",
        )
    return launcher

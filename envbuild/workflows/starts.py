"""Starts: what starts an image at a site where envbuild need not be: an EDF, or a batch script."""

from __future__ import annotations

from pathlib import Path

from envbuild.activate.install import absolute
from envbuild.errors import RequestError
from envbuild.events import Emit, Note, Warned
from envbuild.image.compose import check_target
from envbuild.image.export import Written, is_empty_or_starts_with
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.launch.formats import StartFormat, TextFormat, text_format
from envbuild.launch.launchers import LaunchContext, check_types_of_site, choose_pmi, pmi_doubt
from envbuild.launch.runtimes import OF_EDF, Start
from envbuild.rules.from_lock import facts_of_lock
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import refuse_or_warn
from envbuild.rules.rulebook import judge
from envbuild.rules.tables import at_least
from envbuild.spec.site import Site, SiteRuntime
from envbuild.system.files import sha256, write_atomically
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.hosting import judge_own_fabric
from envbuild.workflows.inputs import site_of
from envbuild.workflows.settings import Settings

_JUDGED = ("ARCH.", "GPU.vendor", "PMI.pmix-of-slurm")
# Runtime → the format of `export` that it starts.
_FORMATS = {
    "podman-hpc": "oci",
    "sarus-suite": "oci",
    "shifter": "shifter",
    "pyxis": "squashfs",
    "container-engine": "squashfs",
}
# Below it pyxis unpacks a squashfs on each node. Source: NVIDIA/pyxis, commit 2ca2427d.
_PYXIS_MOUNTS = "0.22"


def export_start(
    image: Path, form: StartFormat, path: Path, *, image_name: str, runtime: str, settings: Settings
) -> Written:
    """Write what starts an image at a site; the same image and site give the same text.

    `image_name` names the image there: a path, a registry reference, Shifter's ``id:…``, in a batch script
    the EDF. If it is empty, that is the image's own path, for a runtime that starts it. An empty `runtime` is
    the first of the site that fits. RequestError: it is not an image of envbuild's, no site is named, the
    image does not fit it, or nothing there starts it.
    """
    with ImageFile.open(image) as opened:
        manifest, facts = opened.manifest, facts_of_lock(opened.lock)
    site = site_of(settings)
    if site is None:
        raise RequestError("the site where the image starts is unknown", hint="name a site with --site")
    chosen_format = text_format(form)
    check_target(
        path,
        keep=(image,),
        is_one=lambda file: is_empty_or_starts_with(file, chosen_format.first_lines.encode()),
        what=form,
        hint="name another file with -o PATH",
    )
    check_outside_store(path)
    refuse_or_warn(judge(stack_facts(facts, site), about=_JUDGED), settings.emit)
    chosen = _choose_runtime(site, chosen_format, runtime, settings.emit)
    if not chosen.host_fabric:
        on_site_mpi = manifest.mpi_family in chosen.host_mpi
        refuse_or_warn(judge_own_fabric(stack_facts(facts, site, host_mpi=on_site_mpi)), settings.emit)
    start = Start(
        manifest=manifest,
        site=site,
        runtime=chosen,
        image=_named(image, chosen_format, image_name, chosen),
        mpi_type=_mpi_type(manifest, site, chosen, form, settings.emit) if chosen_format.scheduler else "",
    )
    text = chosen_format.render(start)
    write_atomically(path, text.encode())
    if not image_name:
        settings.emit(Note(text=f"the image is expected at {start.image}; --image names another place"))
    size = len(text.encode())
    return Written(format=form, files=(path,), size_bytes=size, identity=f"sha256:{sha256(path)}")


def _choose_runtime(site: Site, form: TextFormat, name: str, emit: Emit) -> SiteRuntime:
    runtimes = {runtime.name: runtime for runtime in site.runtimes}
    fit = [runtime for runtime in runtimes if form.runtimes is None or runtime in form.runtimes]
    chosen = runtimes.get(name or next(iter(fit), ""))
    if chosen is None:
        reads = f" that reads {form.title}" if form.runtimes is not None else ""
        wanted = f"runtime `{name}`" if name else f"runtime{reads}"
        has = f"it has {', '.join(runtimes)}" if runtimes else "it names none"
        raise RequestError(
            f"the site `{site.name}` has no {wanted}: {has}",
            hint="`runtimes` of the site file names them, and --runtime one of those",
        )
    if chosen.name == "pyxis" and chosen.version and not at_least(chosen.version, _PYXIS_MOUNTS):
        text = f"pyxis {chosen.version} unpacks the image on each node at each start"
        emit(Warned(text=text, hint=f"{_PYXIS_MOUNTS} starts it as it is, with `use_squashfuse=1`"))
    return chosen


def _named(image: Path, form: TextFormat, image_name: str, runtime: SiteRuntime) -> str:
    if not image_name and runtime.name in _FORMATS:
        # Ranks start by an EDF that names the image.
        wanted = "edf" if form.scheduler and runtime.name in OF_EDF else _FORMATS[runtime.name]
        raise RequestError(
            f"{runtime.name} does not start `{image.name}` itself",
            hint=f"`envbuild export --format {wanted}` writes what it starts; --image names that at the site",
        )
    named = image_name or str(absolute(image))
    if not named.isprintable() or named.startswith("-"):
        raise RequestError(f"{named!a} cannot name an image", hint="give it another name with --image")
    return named


def _mpi_type(manifest: Manifest, site: Site, runtime: SiteRuntime, form: StartFormat, emit: Emit) -> str:
    """Return the type for ``srun --mpi``; empty for an image without MPI, and on the site's MPI."""
    if site.scheduler is None or site.scheduler.name != "slurm":
        has = f"starts jobs by {site.scheduler.name}" if site.scheduler else "names no scheduler"
        raise RequestError(
            f"`--format {form}` is for Slurm, and the site `{site.name}` {has}",
            hint="name it in the site file if it is Slurm: `scheduler: {name: slurm}`",
        )
    if not manifest.mpi_family or manifest.mpi_family in runtime.host_mpi:
        return ""
    version = manifest.recipes.get(manifest.mpi, "")
    context = LaunchContext(family=manifest.mpi_family, version=version, site=site, srun=True)
    check_types_of_site(site, context)
    mpi_type = choose_pmi(context)
    if doubt := pmi_doubt(context, mpi_type):
        hint = "`envbuild test --launcher srun` at the site shows whether ranks find each other"
        emit(Warned(text=doubt, hint=hint))
    return mpi_type

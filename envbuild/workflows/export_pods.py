"""Export a job of Kubernetes: the manifest of a JobSet or a TrainJob, whose pods start an image."""

from __future__ import annotations

from pathlib import Path

from envbuild.errors import RequestError
from envbuild.events import Note
from envbuild.image.export import Written
from envbuild.image.file import ImageFile
from envbuild.image.pushed import pushed_reference
from envbuild.inputs.knowledge import read_knowledge
from envbuild.launch.formats import PodFormat, jobset, trainjob
from envbuild.launch.formats.pods import PodLaunch, pod_launch
from envbuild.launch.runtimes import WRITTEN
from envbuild.quoting import shell_line
from envbuild.rules.from_lock import facts_of_lock
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import refuse_or_warn
from envbuild.rules.rulebook import judge
from envbuild.workflows.export_script import check_text_target, warn_of_relative_files, write_text
from envbuild.workflows.hosting import judge_own_fabric, supplied_parts
from envbuild.workflows.inputs import site_of
from envbuild.workflows.settings import Settings

_RENDER = {"jobset": jobset.render, "trainjob": trainjob.render}


def export_pods(
    image: Path,
    form: PodFormat,
    path: Path,
    *,
    reference: str,
    name: str,
    user: str,
    test: bool,
    settings: Settings,
) -> Written:
    """Write a job of Kubernetes that runs what an image's spec states; the same input gives the same text.

    With `test` its pods run the jobs by which the image is tested, on as many ranks.

    `reference` names the image in a registry, by digest; an empty one is that of the last push from this
    store. An empty `name` is the image's, and an empty `user` (``UID:GID``) that of the site. RequestError:
    it is not an image of envbuild's, no site is named, it does not fit the site, or Kubernetes would refuse
    the job.
    """
    with ImageFile.open(image) as opened:
        manifest, facts = opened.manifest, facts_of_lock(opened.lock)
        if supplied_parts(opened.lock):
            problem = f"`{image.name}` takes software from its site, and pods get none of a node's files"
            raise RequestError(
                problem, hint="build the image without `from_site`, or start it with a scheduler"
            )
    site = site_of(settings)
    if site is None:
        raise RequestError("the site where the image starts is unknown", hint="name a site with --site")
    check_text_target(image, path, form, WRITTEN)
    stack = stack_facts(facts, site)
    refuse_or_warn(judge(stack, "export", knowledge=read_knowledge()), settings.emit)
    refuse_or_warn(judge_own_fabric(stack), settings.emit)
    pulled = reference or pushed_reference(settings.store, manifest.digest)
    launch = pod_launch(manifest, site, form, image=pulled, name=name, user=_ids_of(user), test=test)
    written = write_text(path, form, _RENDER[form](launch))
    if not test:
        warn_of_relative_files(manifest, _directory(form, launch), settings.emit)
    if not reference:
        settings.emit(Note(text=f"the image is {pulled}; --image names another one"))
    for line in (*launch.lines_to_type, shell_line(["kubectl", "apply", "-f", str(path)])):
        settings.emit(Note(text=f"next: {line}"))
    for line in launch.lines_to_judge(image):
        settings.emit(Note(text=f"when its pods have ended: {line}"))
    return written


def _directory(form: PodFormat, launch: PodLaunch) -> str:
    """Return the working directory of pods, in words."""
    if form == "trainjob":
        return f"the working directory that the runtime `{launch.cluster.trainer_runtime}` says"
    return f"`{launch.cluster.working_directory}` of the pods (`kubernetes.working_directory` of the site)"


def _ids_of(user: str) -> tuple[int, int] | None:
    """Return user and group of ``UID[:GID]``; None if it is empty."""
    if not user:
        return None
    uid, _, gid = user.partition(":")
    ids = uid, gid or uid
    if not all(text.isascii() and text.isdecimal() and len(text) <= 10 for text in ids):
        raise RequestError(
            f"{user!a} is not a user and a group", hint="--user 1000:1000, as `id` prints them"
        )
    return int(ids[0]), int(ids[1])

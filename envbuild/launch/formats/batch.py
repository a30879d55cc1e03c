"""Batch scripts, which run a command on the ranks of an image. Pure."""

from __future__ import annotations

import shlex
from functools import partial

from envbuild.image.command_launchers import shell_text
from envbuild.image.environment import MISLEADING
from envbuild.launch.formats import TextFormat
from envbuild.launch.runtimes import WRITTEN, SiteLaunch, head_lines, runtime
from envbuild.launch.schedulers import Scheduler, image_comment, work_for

_RANKS = "$_eb_ranks"
_CHECK = '_eb_check_command "$_eb_ranks" "$_eb_nodes" "$@" || exit 2'


def _render(launch: SiteLaunch, scheduler: Scheduler) -> str:
    """Return a batch script of a scheduler. RequestError: as `Runtime.entry` says it."""
    # Those of an EDF are in it.
    manifest = launch.manifest
    in_text = runtime(launch.runtime.name).keeps_variables
    variables = {} if in_text else launch.variables
    words = " ".join(f'"{_RANKS}"' if word == _RANKS else shlex.quote(word) for word in launch.line(_RANKS))
    words = " ".join([words, *manifest.rank_words])
    body = [
        *(shell_text() + _CHECK).splitlines(),
        "",
        # As for `launch` and modules.
        f"unset {' '.join(MISLEADING)}",
        # Other variables that the user has set stay.
        *(
            f'[ -n "${{{name}+x}}" ] || export {name}={shlex.quote(value)}'
            for name, value in variables.items()
        ),
        f'exec {words} "$@"',
    ]
    work = work_for(
        launch.site,
        for_gpus=launch.for_gpus,
        launch=manifest.launch,
        name=manifest.name,
        head=head_lines(launch),
        body=body,
        comment=image_comment(f"{manifest.name}/{manifest.version}", manifest.digest),
    )
    return scheduler.script(work)


def batch_format(scheduler: Scheduler) -> TextFormat:
    """Return the form of a scheduler's batch scripts."""
    return TextFormat(
        title=f"a batch script of {scheduler.title}",
        first_lines=f"#!/bin/sh\n{WRITTEN}",
        render=partial(_render, scheduler=scheduler),
        runtimes=None,
        image_format=lambda name: runtime(name).reads,
        scheduler=scheduler.name,
        directory="the directory that the job is submitted from",
    )

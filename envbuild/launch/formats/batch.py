"""Batch scripts, which run a command on the ranks of an image. Pure."""

from __future__ import annotations

import shlex

from envbuild.image.command_launchers import shell_text
from envbuild.launch.formats import TextFormat
from envbuild.launch.runtimes import WRITTEN, SiteLaunch, head_lines, rank_words, runtime
from envbuild.launch.schedulers import work_for

_RANKS = "$_eb_ranks"
_CHECK = '_eb_check_command "$_eb_ranks" "$_eb_nodes" "$@" || exit 2'


def _render(launch: SiteLaunch) -> str:
    """Return a batch script of the scheduler. RequestError: as `Runtime.entry` says it."""
    if launch.scheduler is None:
        raise ValueError("a batch script is for a scheduler")
    # Those of an EDF are in it.
    in_text = runtime(launch.runtime.name).keeps_variables
    variables = {} if in_text else launch.variables
    words = " ".join(f'"{_RANKS}"' if word == _RANKS else shlex.quote(word) for word in launch.line(_RANKS))
    words = " ".join([words, *rank_words(launch.manifest)])
    body = [
        *(shell_text() + _CHECK).splitlines(),
        "",
        # Variables that the user has set stay.
        *(
            f'[ -n "${{{name}+x}}" ] || export {name}={shlex.quote(value)}'
            for name, value in variables.items()
        ),
        f'exec {words} "$@"',
    ]
    work = work_for(
        launch.site,
        for_gpus=launch.for_gpus,
        name=launch.manifest.name,
        head=head_lines(launch),
        body=body,
    )
    return launch.scheduler.script(work)


def batch_format(scheduler: str, title: str) -> TextFormat:
    """Return the form of a scheduler's batch scripts, as messages name it."""
    return TextFormat(
        title=title,
        first_lines=f"#!/bin/sh\n{WRITTEN}",
        render=_render,
        runtimes=None,
        image_format=lambda name: runtime(name).reads,
        scheduler=scheduler,
    )

"""A batch script of Slurm that runs a command on the ranks of an image. Pure."""

from __future__ import annotations

import shlex

from envbuild.image.command_launchers import shell_text
from envbuild.launch.batch import job_options
from envbuild.launch.formats import TextFormat
from envbuild.launch.runtimes import OF_EDF, WRITTEN, Start, head_lines, start_words

_CHECK = """\
_eb_nodes=${SLURM_JOB_NUM_NODES:-1}
_eb_check_command "${SLURM_NTASKS:-$_eb_nodes}" "$_eb_nodes" "$@" || exit 2
"""


def _render(start: Start) -> str:
    """Return a batch script: ``sbatch FILE COMMAND [ARGUMENT ...]`` runs a command on the ranks of an image.

    RequestError: as `start_words` says it.
    """
    options = [f"--job-name={start.manifest.name}", *job_options(start.site, for_gpus=start.for_gpus)]
    # Those of an EDF are in it.
    variables = {} if start.runtime.name in OF_EDF else start.variables()
    lines = [
        "#!/bin/sh",
        *head_lines(start),
        "# sbatch --nodes=N --time=MINUTES [OPTION ...] FILE COMMAND [ARGUMENT ...]",
        *(f"#SBATCH {option}" for option in options),
        "",
        ': "${1:?sbatch FILE COMMAND [ARGUMENT ...]}"',
        "",
        # A job that was asked for nodes alone has one task on each.
        *(shell_text() + _CHECK).splitlines(),
        "",
        # Variables that the user has set stay.
        *(
            f'[ -n "${{{name}+x}}" ] || export {name}={shlex.quote(value)}'
            for name, value in variables.items()
        ),
        f'exec {shlex.join(start_words(start))} "$@"',
    ]
    return "\n".join(lines) + "\n"


FORMAT = TextFormat(
    title="a batch script",
    first_lines=f"#!/bin/sh\n{WRITTEN}",
    render=_render,
    runtimes=None,
    scheduler="slurm",
)

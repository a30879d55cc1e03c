"""PBS: the job that this runs in, and a batch script.

Read, not run: PBS Professional User's Guide 2022.1 (2.6 job attributes, 4.3 ``select``, 5.1 PBS_NODEFILE).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from envbuild.launch.schedulers import Allocation, Work, lines_of

# So many characters of a job's name every PBS takes.
_NAME = 15


class Pbs:
    """PBS Professional and OpenPBS."""

    name = "pbs"
    title = "PBS"
    launcher = "mpiexec"
    starts_ranks = False

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Return the job: PBS_NODEFILE has a line for each rank (``mpiprocs``)."""
        if "PBS_JOBID" not in environ:
            return None
        hosts = [line.split()[0] for line in lines_of(environ.get("PBS_NODEFILE", ""))]
        return Allocation(
            scheduler=self.name,
            nodes=len(set(hosts)) or 1,
            tasks=len(hosts) or 1,
            queue=environ.get("PBS_QUEUE", ""),
        )

    def script(self, work: Work) -> str:
        """Return a batch script; ENVBUILD_COMMAND has a user's command, as qsub passes no arguments on."""
        # On one node, unless something says how many ranks each of several has.
        per_node = work.ranks_per_node or (0 if work.nodes else work.ranks)
        node = [f"mpiprocs={per_node}"] if per_node else []
        node += [f"ngpus={work.gpus_per_node}"] if work.gpus_per_node else []
        options = [f"-N {work.name[:_NAME]}"]
        if node or work.nodes:
            options.append(f"-l select={':'.join([str(work.nodes or 1), *node])}")
        if work.time_min:
            options.append(f"-l walltime={work.time_min // 60:02}:{work.time_min % 60:02}:00")
        lines = [
            "#!/bin/sh",
            *work.head,
            '# qsub -l select=NODES:mpiprocs=RANKS_PER_NODE -v ENVBUILD_COMMAND="COMMAND ARGUMENT ..." FILE',
            "# In a job: sh FILE COMMAND [ARGUMENT ...]",
            *(f"#PBS {option}" for option in (*options, *work.options)),
            "",
            # The user's own words, as in a script that they write.
            '[ "$#" != 0 ] || eval "set -- ${ENVBUILD_COMMAND:-}"',
            f'[ "$#" != 0 ] || set -- {shlex.join(work.command)}'
            if work.command
            else ': "${1:?qsub -v ENVBUILD_COMMAND=\\"COMMAND ARGUMENT ...\\" FILE}"',
            'cd "${PBS_O_WORKDIR:-.}" || exit 2',
            '_eb_ranks=$(wc -l <"${PBS_NODEFILE:?this is not a job of PBS}") || exit 2',
            '_eb_nodes=$(sort -u "$PBS_NODEFILE" | wc -l) || exit 2',
            "",
            *work.body,
        ]
        return "\n".join(lines) + "\n"


SCHEDULER = Pbs()

"""PBS: the job that this runs in, and a batch script.

Read, not run: PBS Professional User's Guide 2022.1 (2.6 job attributes, 4.3 ``select``, 5.1 PBS_NODEFILE).
"""

from __future__ import annotations

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
        """Return a batch script; its command stands in ENVBUILD_COMMAND, as qsub passes no arguments on."""
        node = [f"mpiprocs={work.ranks_per_node}"] if work.ranks_per_node else []
        node += [f"ngpus={work.gpus_per_node}"] if work.gpus_per_node else []
        options = [f"-N {work.name[:_NAME]}", *([f"-l select=1:{':'.join(node)}"] if node else [])]
        lines = [
            "#!/bin/sh",
            *work.head,
            '# qsub -l select=NODES:mpiprocs=RANKS_PER_NODE -v ENVBUILD_COMMAND="COMMAND ARGUMENT ..." FILE',
            "# In a job: sh FILE COMMAND [ARGUMENT ...]",
            *(f"#PBS {option}" for option in (*options, *work.options)),
            "",
            # The user's own words, as in a script that they write.
            '[ "$#" != 0 ] || eval "set -- ${ENVBUILD_COMMAND:-}"',
            ': "${1:?qsub -v ENVBUILD_COMMAND=\\"COMMAND ARGUMENT ...\\" FILE}"',
            'cd "${PBS_O_WORKDIR:-.}" || exit 2',
            '_eb_ranks=$(wc -l <"${PBS_NODEFILE:?this is not a job of PBS}") || exit 2',
            '_eb_nodes=$(sort -u "$PBS_NODEFILE" | wc -l) || exit 2',
            "",
            *work.body,
        ]
        return "\n".join(lines) + "\n"


SCHEDULER = Pbs()

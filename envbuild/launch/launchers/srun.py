"""srun of Slurm: a container for each rank, on the nodes of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envbuild.launch.context import LaunchContext, choose_pmi_of, pmi_doubt
from envbuild.launch.launchers import Launcher, Shape, launcher_family, variables_of_separate_ranks

# MPICH 5.0 publishes the addresses of its UCX in lines that Slurm's PMI cuts: with some environments the
# memory that follows goes along, and ranks end in MPI_Init or hang. Those of libfabric are short.
_BY_PMI: Mapping[str, Mapping[str, str]] = {"mpich": {"MPIR_CVAR_CH4_NETMOD": "ofi"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Srun(Launcher):
    """Tasks of srun."""

    program: str = "srun"
    spans_nodes: bool = True
    scheduler: str = "slurm"
    job_variables: tuple[str, ...] = ("SLURM_",)
    own_mpi: bool = True
    """Whether the ranks run on the image's own MPI."""
    options: tuple[str, ...] = ()
    """Further options, which the site's fabric needs."""

    def words(self, shape: Shape) -> list[str]:
        """Return its words."""
        words = [self.program, *([f"--mpi={self.pmi}"] if self.pmi else []), *self.options]
        words += [f"--nodes={shape.nodes}"] if shape.nodes else []
        # Binding would show a task one CPU of its node.
        words += ["--ntasks-per-node=1", "--cpu-bind=none"] if shape.measures else []
        words += [f"--nodelist={','.join(shape.names)}"] if shape.names else []
        return [*words, *(["-n", str(shape.ranks)] if shape.ranks else [])]

    def variables(self, *, separate: bool = True) -> Mapping[str, str]:
        """Return the variables that tasks of srun need on their MPI."""
        by_pmi = _BY_PMI.get(self.family, {}) if self.own_mpi else {}
        return {**(variables_of_separate_ranks(self.family) if separate else {}), **by_pmi}


def choose(context: LaunchContext) -> Srun:
    """Choose the PMI by which ranks find each other."""
    family, _ = context.running_mpi
    choice = choose_pmi_of(context) if family else None
    return Srun(
        pmi=choice.type if choice is not None else "",
        family=launcher_family(family),
        doubt=pmi_doubt(choice) if choice is not None else "",
        own_mpi=context.host_mpi is None,
        options=context.srun_options,
    )

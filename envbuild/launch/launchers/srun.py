"""srun of Slurm: a container for each rank, on the nodes of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envbuild.launch.context import LaunchContext, choose_pmi_of, pmi_doubt
from envbuild.launch.launchers import Launcher, Shape, launcher_family, variables_of_separate_ranks
from envbuild.rules.facts import pmi_facts, texts_of
from envbuild.rules.pmi import choose_pmi

# MPICH 5.0 publishes the addresses of its UCX in lines that Slurm's PMI cuts: with some environments the
# memory that follows goes along, and ranks end in MPI_Init or hang. Those of libfabric are short.
_BY_PMI: Mapping[str, Mapping[str, str]] = {"mpich": {"MPIR_CVAR_CH4_NETMOD": "ofi"}}
# Type of `srun --mpi` → variables, one of which each task has under it. Under `cray_shasta` a task has
# PMI_RANK, too: the first type that fits counts. Source: src/plugins/mpi of Slurm.
_VARIABLES_OF_PMI: Mapping[str, tuple[str, ...]] = {
    "cray_shasta": ("PALS_RANKID",),
    "pmix": ("PMIX_RANK", "PMIX_NAMESPACE"),
    "pmi2": ("PMI_RANK", "PMI_FD"),
    "none": (),
}


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
    """Choose the PMI by which ranks find each other, unless the user names it."""
    family, _ = context.running_mpi
    choice = choose_pmi_of(context) if family and not context.user_names_pmi else None
    return Srun(
        pmi=choice.type if choice is not None else "",
        family=launcher_family(family),
        doubt=pmi_doubt(choice) if choice is not None else "",
        own_mpi=context.host_mpi is None,
        options=context.srun_options,
    )


def lone_tasks(family: str, version: str, *, host: bool) -> dict[tuple[str, ...], str]:
    """Return why tasks of srun run alone: variables, of which a task has one → the reason.

    The first entry that fits a task counts; its reason is empty if ranks may find each other. The MPI is the
    image's or the `host`'s; an empty family means no MPI.
    """
    if not family:
        return {}
    facts = pmi_facts(family, version, host=host)
    spoken, optional = (
        texts_of(facts, name) if name in facts else None for name in ("pmi.spoken", "pmi.optional")
    )
    choices = {
        pmi: choose_pmi(
            mpi=f"{family} {version}".rstrip(),
            spoken=spoken,
            optional=optional,
            offered=(pmi,),
            offer="srun started them with",
        )
        for pmi in _VARIABLES_OF_PMI
    }
    return {
        _VARIABLES_OF_PMI[pmi]: choice.reason if choice.outcome == "incompatible" else ""
        for pmi, choice in choices.items()
    }

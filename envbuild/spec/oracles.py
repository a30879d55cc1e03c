"""Standard oracles: what many jobs prove alike, with the faults by which such a job must fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from envbuild.jobs.judge import Job, Measure
from envbuild.spec.job import Control, JobHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Expectations that a job takes over by the oracle's name; `JobHeader` documents those of its keys."""

    title: str
    hint: str
    expect: Mapping[str, str]
    same_on_all_ranks: tuple[str, ...] = ()
    compare_with_single: Mapping[str, float] = field(default_factory=dict)
    controls: Mapping[str, Control] = field(default_factory=dict)
    explanation: str = ""
    """What the job computes, and why the result is right only if the ranks communicate; Markdown."""
    functions: tuple[str, ...] = ()
    """Functions of `envbuild_job` that report the values."""


def _fault(*fails: str, least_ranks: int = 2, **environment: str) -> Control:
    """Return a standard control; it may set variables of envbuild, which headers may not."""
    return Control.model_construct(fails=fails, least_ranks=least_ranks, environment=environment)


ORACLES: Final[Mapping[str, Oracle]] = {
    "averaging": Oracle(
        title="gradients averaged over all ranks, exact oracle",
        hint="gradients were not averaged over all ranks",
        expect={"weight_first": "-(n*(n+1)//2)", "weight_last": "-(n*(n+1)//2)"},
        controls={"no averaging": _fault("weight_first", "weight_last")},
        functions=("run_averaging",),
        explanation="""\
The weight w starts at 0. The loss of rank r (from 0) is ½(w + N(r+1))², its gradient w + N(r+1).
Averaged over the N ranks and with a learning rate of 1, the first step ends at exactly -N(N+1)/2, and
further steps leave it there. A rank whose gradients are not averaged ends at -N(r+1).

A library may average by multiplying with 1/N, which is not an exact number for every N: then w is a
float64, and the job reports the float32 nearest to it, which is exact.
""",
    ),
    "training": Oracle(
        title="a training run on N ranks against the same on one",
        hint="gradients were not synchronised, or a rank used the wrong data shard",
        expect={"steps": "25"},
        same_on_all_ranks=("parameter_hash",),
        compare_with_single={"losses": 1e-5, "parameters": 1e-5},
        controls={
            "no averaging": _fault("parameter_hash", "losses-as-one-rank", "parameters-as-one-rank"),
            "the same share for all": _fault(
                "losses-as-one-rank", "parameters-as-one-rank", ENVBUILD_SHARE_OF_RANK="0"
            ),
            "a step too few": _fault("steps", least_ranks=1, ENVBUILD_STEPS="24"),
        },
        functions=("training_data", "run_training"),
        explanation="""\
N ranks with a share each of the rows do what one rank does with all of them: 25 steps of gradient
descent on a network with one hidden layer. All ranks end with the same parameters to the last bit, and
losses and parameters are those of the same job on one rank, but for rounding. The labels are noisy:
training on one share, even the same for all ranks, ends far away.
""",
    ),
    "collectives": Oracle(
        title="MPI's collectives, exact oracle",
        hint="the ranks loaded another MPI than the one that started them, or messages were lost",
        expect={
            "sum": "n*(n+1)//2",
            "bor": "2**n - 1",
            "alltoall": "n*(n-1)*n*(n+1)//3 + r*n*(n+1)//2",
            "payload_least": "n*(n+1)//2",
            "payload_most": "n*(n+1)//2",
        },
        controls={
            "bits of one rank": _fault("bor"),
            "senders mixed up": _fault("alltoall"),
            "no large message": _fault("payload_least", "payload_most"),
        },
        explanation="""\
`sum` is an allreduce of r + 1. `bor` unites one bit of each rank by an allreduce with bitwise OR. In an
all-to-all rank s sends sN + d to rank d, which weighs what it receives with s + 1 and adds it up:
`alltoall` tells the senders apart. The large message is an allreduce of i(r+1) in element i: divided by
its index, every element of the sum is N(N+1)/2, which `payload_least` and `payload_most` bound.
""",
    ),
}
_NONE = Oracle(title="", hint="", expect={})


def controls_of(header: JobHeader) -> dict[str, Control]:
    """Return the controls of a header and of its oracle: name → control."""
    return {**_oracle_of(header).controls, **header.named_controls}


def jobs_of(header: JobHeader, recipe: str, file: str) -> Iterator[Job]:
    """Yield the job of a header, and its twin on GPUs; `file` is its name under ``verify/`` of the recipe."""
    oracle = _oracle_of(header)
    title = header.title or oracle.title
    for device in header.devices:
        is_twin = device == "gpu" and "cpu" in header.devices
        yield Job(
            id=f"{header.id}-gpu" if is_twin else header.id,
            recipe=recipe,
            file=file,
            title=f"{title}, on GPUs" if is_twin else title,
            hint=header.hint or oracle.hint,
            expect={**oracle.expect, **header.expect},
            same_on_all_ranks=tuple(dict.fromkeys((*oracle.same_on_all_ranks, *header.same_on_all_ranks))),
            compare_with_single={**oracle.compare_with_single, **header.compare_with_single},
            compare_with_reported=header.compare_with_reported,
            at_least=header.at_least,
            says=header.says,
            measures={
                name: Measure(unit=value.unit, higher_is_better=value.higher_is_better)
                for name, value in header.measures.items()
            },
            variants=header.variants,
            launcher=header.launcher,
            environment=header.environment,
            own_mpi=header.own_mpi,
            timeout_s=header.timeout_s,
            gpus_per_rank=max(1, header.gpus_per_rank) if device == "gpu" else 0,
        )


def _oracle_of(header: JobHeader) -> Oracle:
    return ORACLES[header.oracle] if header.oracle else _NONE

"""The model of a job's header: what it proves, what its ranks must report, and by which faults it must fail.

`job_file.py` beside it reads the header from the job's file; `oracles.py` has the standard expectations.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from envbuild.jobs.arithmetic import evaluate
from envbuild.spec.fields import Checked
from envbuild.spec.model import Model, Name, Text, VariableName, full_match

# An expression may have a value for one number of ranks and none for another.
_RANKS = (1, 2, 3, 64, 4096)
_SHOWN = 60
_ARITHMETIC = "integer arithmetic in `n` (ranks), `r` (this rank) and `h` (hosts), such as `n*(n+1)//2`"


def _arithmetic(value: str) -> str:
    for ranks in _RANKS:
        for rank, hosts in ((0, 1), (ranks - 1, ranks)):
            try:
                evaluate(value, n=ranks, r=rank, h=hosts)
            except ValueError as error:
                shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
                where = f"rank {rank} of {ranks}" + (f", {hosts} hosts" if hosts > 1 else "")
                raise ValueError(f"{error} (`{shown}` on {where})") from error
    return value


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


LauncherName = Literal["mpiexec", "torchrun", "any"]
Device = Literal["cpu", "gpu"]
OracleName = Literal["averaging", "training", "collectives"]
Arithmetic = Annotated[
    Text,
    Checked(_arithmetic, {}),
    BeforeValidator(_number_as_text),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer"},
                {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 500,
                    "patternErrorMessage": f"expected {_ARITHMETIC}",
                },
            ]
        }
    ),
]
JobId = Annotated[str, full_match(r"[a-z0-9][a-z0-9-]*\.[a-z0-9-]+", "a job id, such as `pytorch.ddp`")]
JobFile = Annotated[str, full_match(r"[a-z0-9_]+\.py", "a file name under verify/, such as `ddp.py`")]
LogText = Annotated[Text, Field(min_length=1)]
Tolerance = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Floor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ReportedName = Annotated[str, full_match(r"[A-Za-z0-9_.:-]+", "a name of a reported value")]
CheckName = Annotated[
    str, full_match(r"[A-Za-z0-9_.:-]+", "a check of this job, such as `sum` or `losses-as-one-rank`")
]
ControlName = Annotated[
    str, full_match(r"[A-Za-z0-9](?:[^:\s]| (?! ))*[^:\s]", "a name of a control, such as `no averaging`")
]
Unit = Annotated[Text, Field(min_length=1, max_length=20)]


class Control(Model):
    """A deliberate fault in a copy of the job, which must then fail.

    The fault is the lines that the job, or a module of ``verify/`` that it imports, marks with the control's
    name, and the variables below.
    """

    fails: Annotated[tuple[CheckName, ...], Field(min_length=1)]
    """Checks of the job that must fail; others may fail, too."""
    environment: dict[VariableName, Text] = {}
    """Variables of the ranks that differ from the job's."""
    needs: tuple[Name, ...] = ()
    """Recipes that the image must also contain for this control."""
    least_ranks: Annotated[int, Field(ge=1, le=2)] = 1
    """Ranks without which the fault changes nothing (count): on a machine with one GPU, a job on GPUs has one
    rank."""


def _kind_of_control(value: object) -> str | None:
    if isinstance(value, dict | Control):
        return "control"
    return "tuple" if isinstance(value, list | tuple) else None


ControlEntry = Annotated[
    Annotated[tuple[CheckName, ...], Field(min_length=1), Tag("tuple")] | Annotated[Control, Tag("control")],
    Discriminator(
        _kind_of_control,
        custom_error_type="setting_type",
        custom_error_message="expected a list of checks, or a mapping with `fails`",
    ),
]


class MeasuredValue(Model):
    """A number that ranks report and that the test shows; no value of it fails."""

    unit: Unit
    """Its unit (``words/s``)."""
    higher_is_better: bool = True
    """Whether a larger value is better; of several ranks the worst value counts."""
    scaling: Literal["weak", "strong"] | None = None
    """For benchmarks: how the work of a rate grows with the ranks, each rank the same (``weak``) or all ranks
    together (``strong``). `bench` then shows its efficiency."""
    message_bytes: Annotated[int, Field(gt=0)] | None = None
    """For benchmarks: the size of the message that a time is for (bytes). `bench` then shows the bandwidth,
    and fits a model to all sizes."""


class JobHeader(Model):
    """The header of a job.

    A job reports facts; the parent process judges them.
    """

    id: JobId
    """``WHAT.NAME`` (``pytorch.ddp``), unique in the image."""
    oracle: OracleName | None = None
    """Standard expectations and controls to start from; keys of the header add to them or replace them."""
    title: Text = ""
    """Claim that the job proves, in one line; that of its oracle if omitted."""
    hint: Text = ""
    """Hint for a failed job: the first things to check; that of its oracle if omitted."""
    expect: dict[ReportedName, Arithmetic] = {}
    """Reported value's name → expression in ``n`` (ranks), ``r`` (the reporting rank) and ``h`` (hosts),
    compared for equality on every rank. It must have a value on every rank of 1, 2, 3, 64 and 4096."""
    same_on_all_ranks: tuple[ReportedName, ...] = ()
    """Reported values that must be equal on all ranks."""
    compare_with_single: dict[ReportedName, Tolerance] = {}
    """Reported value's name (a number or list of numbers) → relative tolerance against the same job on one
    rank."""
    compare_with_reported: dict[
        ReportedName, Annotated[dict[ReportedName, Tolerance], Field(min_length=1)]
    ] = {}
    """Reported value's name → name of another value of the same rank, such as the exact result → relative
    tolerance between them."""
    at_least: dict[ReportedName, Floor] = {}
    """Reported value's name → smallest number that passes on every rank, such as a bandwidth in GB/s."""
    says: dict[ReportedName, Annotated[tuple[LogText, ...], Field(min_length=1)]] = {}
    """Name → texts, one of which the output of every rank must contain, such as a library's log line about
    the transport in use."""
    devices: Annotated[tuple[Device, ...], Field(min_length=1)] = ("cpu",)
    """Devices that ranks compute on. With ``[cpu, gpu]`` the job has a twin ``ID-gpu`` on GPUs."""
    gpus_per_rank: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs that each rank of a job on GPUs needs for itself (count); 1 if omitted. Such a job reports their
    ids as ``gpus``, starts no more ranks than there are GPUs for, and is skipped without any."""
    variants: tuple[Name, ...] = ()
    """Variants of the recipe that the job is for; all if empty."""
    launcher: LauncherName = "mpiexec"
    """Launcher of its ranks: ``mpiexec``, or another one that starts ranks of an MPI; PyTorch's ``torchrun``;
    or ``any`` for a job that needs no MPI."""
    environment: dict[VariableName, Text] = {}
    """Variables of its ranks, such as those that select a transport."""
    measures: dict[ReportedName, MeasuredValue] = {}
    """Reported value's name → unit of a number that the test or benchmark shows."""
    own_mpi: bool = False
    """Whether it tests the image's own MPI only, not the host's in its place."""
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Wall-clock limit in seconds, if it differs from the default."""
    controls: dict[ControlName, ControlEntry] = {}
    """Control's name → the checks that must fail, or a mapping. Those of the oracle, and "every rank alone",
    come without being named."""

    @property
    def named_controls(self) -> dict[str, Control]:
        """The controls by name."""
        return {
            name: entry if isinstance(entry, Control) else Control(fails=entry)
            for name, entry in self.controls.items()
        }

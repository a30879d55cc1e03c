"""The result of a benchmark run: the document of `bench --json`, of reports, and of kept results."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from envbuild.bench.bisect import State
from envbuild.bench.bisect import Verdict as BisectVerdict
from envbuild.bench.statistics import Interval, interval_of_median, median
from envbuild.spec.model import Model

Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]

BENCH_FORMAT: Final = 1
INTERRUPTED = "interrupted"
"""Reason of a benchmark whose runs a signal or a time limit ended."""


class MeasuredPoint(Model):
    """A value of a benchmark on a number of nodes and ranks."""

    benchmark: str
    """Id of the job."""
    files: str
    """``sha256:…`` of its files, `--data` and whose MPI and fabric it used: only the same is compared."""
    name: str
    """Name of the value."""
    unit: str
    """Unit of the value."""
    higher_is_better: bool
    """Whether a larger value is better."""
    scaling: Literal["weak", "strong"] | None = None
    """How the work grows with the ranks; of rates alone."""
    message_bytes: Count | None = None
    """Size of the message that a time is for."""
    nodes: Count
    """Nodes that ran ranks (count)."""
    ranks: Count
    """Processes (count)."""
    threads: Count
    """Threads of each rank (OMP_NUM_THREADS)."""
    gpus: Count = 0
    """GPUs that the ranks used (count)."""
    values: Annotated[tuple[Number, ...], Field(min_length=1)]
    """The worst rank's value in each repeat."""
    median: Number
    """Median of `values`."""
    low: Number | None = None
    """With `high` the interval of the median; null for too few repeats."""
    high: Number | None = None
    """See `low`."""
    coverage: Number | None = None
    """Probability with which the interval covers the median."""
    oversubscribed: bool = False
    """Whether a machine had more threads of ranks than cores: then there is no efficiency."""
    efficiency: Number | None = None
    """Rate for each core (ranks times threads), or GPU, against the first point; null without `scaling`."""
    bandwidth: Number | None = None
    """Bytes of the message per second; null without `message_bytes`."""
    network: str = ""
    """The interfaces that received the ranks' messages."""
    earlier: Literal["faster", "slower", "as before", "not decidable"] | None = None
    """Against earlier results of this site; null if there are none."""

    @property
    def interval(self) -> Interval | None:
        """The interval of the median; None for too few repeats."""
        if self.low is None or self.high is None or self.coverage is None:
            return None
        return Interval(low=self.low, high=self.high, coverage=self.coverage)

    @property
    def processors(self) -> int:
        """GPUs, or without GPUs the cores that its threads occupy (count)."""
        return self.gpus or self.ranks * self.threads

    @property
    def row(self) -> tuple[object, ...]:
        """Keys that name a point in a table."""
        return (self.benchmark, self.name, self.nodes, self.ranks)

    @property
    def subject(self) -> tuple[object, ...]:
        """Keys that must be equal for two points to be comparable."""
        return (self.files, self.benchmark, self.name, self.nodes, self.ranks, self.threads, self.gpus)


def statistics_of(values: tuple[float, ...]) -> dict[str, object]:
    """Return the keys of a point that follow from its values."""
    interval = interval_of_median(values)
    data: dict[str, object] = {"values": values, "median": median(values)}
    if interval is not None:
        data |= {"low": interval.low, "high": interval.high, "coverage": interval.coverage}
    return data


class UnmeasuredPoint(Model):
    """A benchmark that gave no values, and why."""

    benchmark: str
    """Id of the job."""
    nodes: Count
    """Nodes (count)."""
    ranks: Count
    """Processes (count)."""
    reason: str
    """The check that did not pass, or what it needs."""
    failed: bool
    """Whether it ran and failed; else it cannot run so."""


class FittedModel(Model):
    """A model of the time of a message by its size, for one number of ranks."""

    benchmark: str
    """Id of the job."""
    nodes: Count
    """Nodes (count)."""
    ranks: Count
    """Processes (count)."""
    latency_s: Number
    """Time of an empty message, in seconds."""
    bytes_per_s: Number | None
    """Rate at which the time grows with the size; null if it does not grow."""
    held_out_bytes: Count
    """The size that it was not fitted to."""
    predicted_s: Number
    """Time that the model predicts for that size, in seconds."""
    measured_s: Number
    """Measured time for that size, in seconds."""
    error: Number
    """Relative error of the prediction."""


class MeasuredImage(Model):
    """The image that was measured."""

    name: str
    """Its name."""
    version: str
    """Its version."""
    digest: str
    """``sha256:…``, its identity."""
    lock: str = ""
    """``sha256:…`` of its lock; empty for an image of another tool."""
    bare: str = ""
    """Version of the host's Python that ran the image's wheels without a container; empty for the image."""


class ComparedPoint(Model):
    """A value of this image against that of the other, by pairs of runs."""

    benchmark: str
    """Id of the job."""
    name: str
    """Name of the value."""
    nodes: Count
    """Nodes that ran ranks (count)."""
    ranks: Count
    """Processes (count)."""
    other: Annotated[tuple[Number, ...], Field(min_length=1)]
    """Values of the other image, in the order of those of this one."""
    ratio: Number
    """Median of this/other, pair by pair."""
    low: Number | None = None
    """With `high` the interval of the ratio; null for too few repeats."""
    high: Number | None = None
    """See `low`."""
    verdict: Literal["faster", "slower", "as before", "not decidable"]
    """Whether this image is faster or slower: only if the interval lies on one side of 1."""


class ComparedImage(Model):
    """Another image, and how this one compares with it."""

    image: MeasuredImage
    """The other image."""
    points: tuple[ComparedPoint, ...]
    """Values that both images have."""
    skipped: tuple[str, ...] = ()
    """Values of this image that were not compared, each with the reason."""


class BisectedDifference(Model):
    """A difference between two images, which is taken from one of them as a whole."""

    name: str
    """``numpy``, ``torch and 14 more``, ``mpi``, ``base``, ``system`` or ``environment``."""
    before: tuple[str, ...]
    """Packages with versions, variables and files of the other image."""
    after: tuple[str, ...]
    """Those of this image."""


class BisectedStep(Model):
    """A composition: the other image with some of the differences of this one."""

    taken: tuple[str, ...]
    """Names of the differences."""
    state: State
    """The image that it is like: the first is the other one, the second this one."""
    ratio: Number | None = None
    """Median of composition/other, run by run; null if it was skipped."""
    low: Number | None = None
    """With `high` the interval of the ratio; null for too few runs."""
    high: Number | None = None
    """See `low`."""
    runs: Count = 0
    """Runs of the composition, and of each image beside it (count)."""
    reason: str = ""
    """Why it was skipped; else empty."""


class Bisection(Model):
    """The search for the difference that makes this image slower, or faster, than the other one."""

    benchmark: str
    """Id of the job."""
    name: str
    """Name of the value."""
    nodes: Count
    """Nodes that ran ranks (count)."""
    ranks: Count
    """Processes (count)."""
    differences: tuple[BisectedDifference, ...]
    """All differences, each behind those that it needs."""
    steps: tuple[BisectedStep, ...] = ()
    """Compositions, as they were measured."""
    verdict: BisectVerdict
    """``found``: the cause is enough, and without it this image is like the other. ``not confirmed``: a
    composition says otherwise. ``not separated``: fewer differences could not be measured. ``not decidable``:
    runs were too close to both images."""
    cause: tuple[str, ...] = ()
    """Names of the differences that make the difference together; empty if the images do not differ."""
    along: tuple[str, ...] = ()
    """Further differences that these need."""
    reason: str = ""
    """Why it is not found; empty if it is."""

    def named(self, name: str) -> BisectedDifference:
        """Return a difference by its name."""
        return next(difference for difference in self.differences if difference.name == name)


class BenchResult(Model):
    """The benchmarks of an image on a machine."""

    schema_: Literal[1] = Field(default=BENCH_FORMAT, alias="schema")
    """Raised if a key changes its meaning."""
    image: MeasuredImage
    """The image that was measured."""
    site: str = ""
    """Name of the site, with its partition; empty without a site file."""
    fingerprint: str
    """``sha256:…`` of the host's facts."""
    facts: dict[str, str]
    """The host's facts."""
    launcher: str = ""
    """Launcher of the ranks; empty if none needs an MPI."""
    when: str
    """ISO 8601, UTC."""
    repeats: Annotated[int, Field(ge=1)]
    """Runs of each benchmark (count)."""
    points: tuple[MeasuredPoint, ...]
    """Measured values, by benchmark, nodes and ranks."""
    unmeasured: tuple[UnmeasuredPoint, ...] = ()
    """Benchmarks that gave no values."""
    models: tuple[FittedModel, ...] = ()
    """Models of message times."""
    compared: ComparedImage | None = None
    """Another image that was measured in turn with this one; null without one."""
    bisected: Bisection | None = None
    """The difference that makes this image slower or faster than the other; null without `--bisect`."""

    @property
    def failed(self) -> bool:
        """Whether a benchmark ran and failed, which a slow one did not, or a bisection found nothing."""
        found = self.bisected is None or self.bisected.verdict == "found"
        return not found or any(point.failed for point in self.unmeasured)

    @property
    def interrupted(self) -> bool:
        """Whether runs were ended before they were complete."""
        return any(point.reason == INTERRUPTED for point in self.unmeasured)

    def to_json(self) -> str:
        """Return the document."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"

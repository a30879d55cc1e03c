"""Bench: run the benchmarks of an image several times, and show medians with intervals and scaling."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from envbuild.bench import history
from envbuild.bench.result import (
    INTERRUPTED,
    BenchResult,
    ComparedImage,
    ComparedPoint,
    FittedModel,
    MeasuredImage,
    MeasuredPoint,
    UnmeasuredPoint,
    statistics_of,
)
from envbuild.bench.statistics import LEAST_REPEATS, against_earlier, checked_model, compare, efficiency
from envbuild.digests import canonical_json, sha256_of
from envbuild.errors import EnvbuildError, RequestError, did_you_mean, pluralize, some
from envbuild.events import Warned
from envbuild.image.file import ImageFile
from envbuild.inputs.catalog import DATA_VARIABLE, Benchmark, read_benchmarks
from envbuild.jobs.rank_reports import Reports, list_of
from envbuild.jobs.report import CheckResult, Section
from envbuild.jobs.run import JobResult, ranks_on_gpus
from envbuild.launch.context import NO_HOST_LIBS, HostLibraries
from envbuild.launch.start import with_gpus
from envbuild.system.apptainer import Bind
from envbuild.system.files import exists, sha256
from envbuild.workflows.arguments import check_architecture
from envbuild.workflows.bench_bare import bare_environment
from envbuild.workflows.hosting import lasting_stage
from envbuild.workflows.nodes import RANKS_PER_NODE
from envbuild.workflows.settings import Settings
from envbuild.workflows.test import (
    ImageJobs,
    Prepared,
    TestRequest,
    prepare,
    show_section,
    threads_per_rank,
)

# Where ranks see the data of the user; every base has the directory.
_DATA = "/srv"
# An interface that received less of all bytes did not carry the messages.
_SHARE_OF_NETWORK = 0.05
_LEAST_NETWORK_BYTES = 1 << 16
# Waiting processes for each core before the first run.
_MOST_LOAD = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """The image to measure, and how."""

    image: Path
    other: Path | None = None
    """An image that it is compared with; their runs alternate."""
    bare: Path | None = None
    """A Python of the host that runs the same wheels without a container, to compare with."""
    ranks: tuple[int, ...] = ()
    """Numbers of ranks; by default 1 and 2, and 2 a node."""
    nodes: tuple[int, ...] = ()
    """Numbers of nodes; empty for this machine."""
    only: tuple[str, ...] = ()
    """Ids of benchmarks; empty for all."""
    repeats: int = 5
    timeout_s: float | None = None
    """Limit of each run."""
    from_host: HostLibraries = NO_HOST_LIBS
    """Libraries of the site's host that replace the image's own."""
    launcher: str | None = None
    data: Path | None = None
    """A text, a sentence a line, for the language models."""
    results: Path | None = None
    """Directory of kept results; by default the user's."""

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """(nodes, ranks) of each point, by nodes; 0 nodes for this machine.

        RequestError: no number of ranks divides evenly onto a number of nodes.
        """
        ranks = self.ranks or tuple(sorted({1, 2, *(RANKS_PER_NODE * nodes for nodes in self.nodes)}))
        places = tuple(
            (nodes, count)
            for nodes in sorted(set(self.nodes or (0,)))
            for count in sorted(set(ranks))
            if count % max(nodes, 1) == 0
        )
        if idle := sorted(set(self.nodes) - {nodes for nodes, _ in places}):
            problem = f"no number of ranks divides evenly onto {idle[0]} nodes"
            raise RequestError(problem, hint=f"add one: `--ranks {','.join(map(str, (*ranks, idle[0])))}`")
        return places

    @property
    def ranks_per_node(self) -> int:
        """The most ranks that a node starts (count)."""
        return max(ranks // max(nodes, 1) for nodes, ranks in self.places)


def bench_image(request: BenchRequest, settings: Settings) -> BenchResult:
    """Measure an image, and another one in turn with it if there is one; a failed benchmark is no exception.

    RequestError: an image has no benchmarks, or not the named ones; and as for `test_image`.
    """
    history.check(request.results or history.default_directory())
    with opened_subjects(request, settings) as subjects:
        runs: list[dict[Place, Runs]] = [{} for _ in subjects]
        try:
            measure(subjects, request, runs)
        except KeyboardInterrupt:
            complete = request.repeats
            if not any(len(done.results) == complete for each in runs for done in each.values()):
                raise
            _mark_interrupted(runs, request)
        results = results_of(subjects, runs, request)
    return kept(results, request, settings)


@contextlib.contextmanager
def opened_subjects(request: BenchRequest, settings: Settings) -> Iterator[list[Subject]]:
    """Open what is measured: the image, behind what it is compared with; raises as `bench_image`."""
    paths = [path for path in (request.other, request.image) if path is not None]
    with contextlib.ExitStack() as opened:
        images = [opened.enter_context(ImageFile.open(path)) for path in paths]
        subjects = [subject_of(image, request, settings) for image in images]
        if request.bare is not None:
            bare = _bare_subject(subjects[-1], request.bare, opened)
            subjects.insert(0, bare)
        if request.repeats < LEAST_REPEATS:
            hint = f"{LEAST_REPEATS} repeats are the fewest with an interval"
            runs = f"{pluralize(request.repeats, 'repeat')} {'has' if request.repeats == 1 else 'have'}"
            text = f"{runs} no interval, and {'decides' if request.repeats == 1 else 'decide'} nothing"
            settings.emit(Warned(text=text, hint=hint))
        _warn_of_load(settings)
        yield subjects
        for image in images:
            image.check_still_there()


def measure(subjects: Sequence[Subject], request: BenchRequest, runs: Sequence[dict[Place, Runs]]) -> None:
    """Run the benchmarks of subjects in turn, and add the runs of each subject to its entry of `runs`."""
    # Images of different recipes have only some benchmarks in common.
    for name in dict.fromkeys(each.job.id for subject in subjects for each in subject.benchmarks):
        for nodes, ranks in request.places:
            series = [Series.of(subject, name, nodes, ranks) for subject in subjects]
            for done, each in zip(runs, series, strict=True):
                if each is not None:
                    done[Place(name, nodes, ranks)] = each.runs
            _alternate([each for each in series if each is not None], request.repeats)


def runs_of(subjects: Sequence[Subject], request: BenchRequest) -> list[dict[Place, Runs]]:
    """Run the benchmarks of subjects in turn, and return the runs of each subject."""
    runs: list[dict[Place, Runs]] = [{} for _ in subjects]
    measure(subjects, request, runs)
    return runs


def _mark_interrupted(runs: Sequence[Mapping[Place, Runs]], request: BenchRequest) -> None:
    """Say of the runs that are not complete why."""
    for done in (done for of_subject in runs for done in of_subject.values()):
        if len(done.results) < request.repeats and not done.reason:
            done.reason, done.failed = INTERRUPTED, True


def results_of(
    subjects: Sequence[Subject], runs: Sequence[Mapping[Place, Runs]], request: BenchRequest
) -> list[BenchResult]:
    """Return the result of each subject; that of the last one compares it with the one before."""
    results = [_result(subject, done, request) for subject, done in zip(subjects, runs, strict=True)]
    *others, result = results
    for other in others:
        result = result.model_copy(update={"compared": _compared(result, other)})
    return [*others, result]


def kept(results: Sequence[BenchResult], request: BenchRequest, settings: Settings) -> BenchResult:
    """Keep results, and return the last one, judged by earlier ones; it warns of one that is not kept."""
    directory = request.results or history.default_directory()
    earlier = history.read(directory, results[-1].image.name, settings.emit)
    result = _with_earlier(results[-1], earlier)
    try:
        for each in (*results[:-1], result):
            history.keep(directory, each)
    except EnvbuildError as error:
        settings.emit(Warned(text=f"the result was not kept: {error.problem}", hint=error.hint))
    return result


def _warn_of_load(settings: Settings) -> None:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > _MOST_LOAD * cores:
        text = f"other programs run here: the load is {load:.1f} on {pluralize(cores, 'core')}"
        settings.emit(Warned(text=text, hint="measure on a node that nothing else uses"))


@dataclass(frozen=True, slots=True)
class Place:
    """A benchmark on a number of nodes and ranks."""

    benchmark: str
    nodes: int
    ranks: int


@dataclass(slots=True)
class Runs:
    """The repeats of a benchmark at one place."""

    results: list[JobResult] = field(default_factory=list)
    threads: int = 1
    reason: str = ""
    """Why there are none, or not all."""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image whose benchmarks can start here."""

    image: ImageFile
    prepared: Prepared
    benchmarks: tuple[Benchmark, ...]
    request: BenchRequest
    settings: Settings

    @property
    def label(self) -> str:
        """The image's file, or that it is the bare environment."""
        bare = self.prepared.container.bare
        return self.image.path.name if bare is None else "the bare environment"

    def jobs(self, nodes: int, ranks: int, threads: int) -> ImageJobs:
        """Return what runs jobs on a number of nodes and ranks."""
        container = replace(self.prepared.container, threads=threads)
        request = _test_request(self.image.path, self.request, nodes)
        return ImageJobs(container, self.prepared.launcher, request, self.settings, ranks)

    def threads(self, nodes: int, ranks: int) -> int:
        """Return the threads of each rank as a user would set them: the image, the job, or all cores."""
        of_image = threads_per_rank(self.prepared.container.runnable)
        of_job = os.environ.get("SLURM_CPUS_PER_TASK", "")
        if of_image is not None or (of_job.isdecimal() and int(of_job)):
            return of_image or int(of_job)
        cores = len(os.sched_getaffinity(0))
        return max(1, cores // math.ceil(ranks / max(nodes, 1)))


def _test_request(image: Path, request: BenchRequest, nodes: int) -> TestRequest:
    return TestRequest(
        image=image,
        timeout_s=request.timeout_s,
        from_host=request.from_host,
        launcher=request.launcher,
        nodes=nodes,
    )


def subject_of(image: ImageFile, request: BenchRequest, settings: Settings) -> Subject:
    """Return an image whose benchmarks can start here; raises as `bench_image`."""
    prepared = prepare(image, _test_request(image.path, request, max(request.nodes, default=0)), settings)
    container, launcher = prepared.container, prepared.launcher
    check_architecture(image.path, container.runnable.architecture, hint="measure it where it can start")
    names = dict.fromkeys([*container.runnable.recipes, *(job.recipe for job in container.jobs)])
    for_gpus = container.runnable.accelerator != "cpu"
    known = [
        benchmark
        for benchmark in read_benchmarks(names, recipes=settings.recipes)
        if for_gpus or not benchmark.job.gpus_per_rank
    ]
    benchmarks = _chosen(known, request, container.label)
    limit_s = request.timeout_s or container.runnable.timeout_s
    container, _ = with_gpus(container, launcher, prepared.site, limit_s=limit_s)
    if container.host_libs is not None:
        stage = lasting_stage(container.host_libs, settings, one_machine=not prepared.spans_nodes)
        container = replace(container, stage=stage)
    if request.data is not None:
        data = request.data.absolute()
        container = replace(container, binds=(*container.binds, Bind(source=data.parent, target=_DATA)))
        variable = {DATA_VARIABLE: f"{_DATA}/{data.name}"}
        benchmarks = [
            replace(each, job=replace(each.job, environment={**each.job.environment, **variable}))
            if each.takes_data
            else each
            for each in benchmarks
        ]
    brought = {benchmark.job.id: benchmark.files for benchmark in benchmarks}
    container = replace(container, brought={**container.brought, **brought})
    return Subject(
        image=image,
        prepared=replace(prepared, container=container),
        benchmarks=tuple(benchmarks),
        request=request,
        settings=settings,
    )


def _bare_subject(subject: Subject, python: Path, opened: contextlib.ExitStack) -> Subject:
    """Return the wheels of an image on the host, in an environment that ends with `opened`.

    RequestError: the image has no lock, takes libraries of the host, or does not fit the Python.
    """
    if subject.prepared.extended is not None or subject.request.from_host:
        hint = "leave --bare out" if subject.prepared.extended is not None else "leave --mpi and --fabric out"
        raise RequestError("--bare compares an image of wheels, on its own MPI", hint=hint)
    made = bare_environment(subject.image, python, subject.settings, spans_nodes=subject.prepared.spans_nodes)
    bare = opened.enter_context(made)
    container = replace(subject.prepared.container, bare=bare, python=bare.python)
    return replace(subject, prepared=replace(subject.prepared, container=container))


def _chosen(known: Sequence[Benchmark], request: BenchRequest, label: str) -> list[Benchmark]:
    if request.data is not None and not exists(request.data):
        hint = "--data takes a text file with a sentence a line"
        raise RequestError(f"there is no file `{request.data}`", hint=hint)
    if not known:
        hint = "recipes with benchmarks are those with a directory `bench`, such as pytorch and mpich"
        raise RequestError(f"`{label}` has no recipe with benchmarks", hint=hint)
    ids = [benchmark.job.id for benchmark in known]
    for name in request.only:
        if name not in ids:
            hint = did_you_mean(name, ids) or f"there are: {', '.join(ids)}"
            raise RequestError(f"`{label}` has no benchmark `{name}`", hint=hint)
    chosen = [benchmark for benchmark in known if not request.only or benchmark.job.id in request.only]
    if request.data is not None and not any(benchmark.takes_data for benchmark in chosen):
        takers = [benchmark.job.id for benchmark in known if benchmark.takes_data]
        hint = f"--data is for {', '.join(takers)}" if takers else "leave --data out"
        raise RequestError(f"no benchmark of `{label}` that would run takes --data", hint=hint)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The repeats of a benchmark of an image at one place, under way."""

    benchmark: Benchmark
    jobs: ImageJobs
    where: str
    runs: Runs

    @staticmethod
    def of(subject: Subject, name: str, nodes: int, ranks: int) -> Series | None:
        """Return the series of a benchmark; None if the image lacks it."""
        benchmark = next((each for each in subject.benchmarks if each.job.id == name), None)
        if benchmark is None:
            return None
        threads = subject.threads(nodes, ranks)
        jobs = subject.jobs(nodes, ranks, threads)
        where = f"on {pluralize(ranks, 'rank')}" + (f" of {nodes} nodes" if nodes > 1 else "")
        if subject.request.other is not None or subject.request.bare is not None:
            where = f"in {subject.label} {where}"
        runs = Runs(threads=threads, reason=_why_not(jobs, benchmark, ranks))
        return Series(benchmark=benchmark, jobs=jobs, where=where, runs=runs)

    def run(self, repeat: int, repeats: int) -> None:
        """Run it once more, unless it cannot run or has failed."""
        if self.runs.reason:
            return
        job = replace(self.benchmark.job, title=f"{self.where}, run {repeat} of {repeats}")
        result = self.jobs.run(job)
        if failed := [check for check in result.checks if check.status != "PASS"]:
            show_section(Section(job.id, result.checks, output=result.output), self.jobs.settings)
            # How it ended says more than that its ranks reported nothing.
            ended = [check for check in failed if check.id == f"{job.id}/end"]
            self.runs.reason, self.runs.failed = _reason((ended or failed)[0]), True
            return
        hosts, nodes = len({report["host"] for report in result.reports[0].good}), self.jobs.request.nodes
        if nodes and hosts != nodes:
            self.runs.reason, self.runs.failed = (
                f"the ranks were on {hosts} of {pluralize(nodes, 'node')}",
                True,
            )
            return
        self.runs.results.append(result)


def _alternate(series: Sequence[Series], repeats: int) -> None:
    """Run several series in turn, every second time in the reverse order: neither is always the first."""
    for repeat in range(1, repeats + 1):
        for each in series if repeat % 2 else reversed(series):
            each.run(repeat, repeats)


def _why_not(jobs: ImageJobs, benchmark: Benchmark, ranks: int) -> str:
    """Return why a benchmark cannot run on a number of ranks; empty if it can."""
    job = benchmark.job
    if ranks == 1 and all(measure.message_bytes for measure in benchmark.measures.values()):
        return "messages need two ranks"
    if (check := jobs.skipped(job)) is not None:
        return _reason(check)
    spans = jobs.launcher is not None and jobs.launcher.spans_nodes
    if not spans and ranks_on_gpus(job, ranks, jobs.container.gpus) < ranks:
        return f"{ranks} ranks need {ranks * job.gpus_per_rank} GPUs, and {jobs.container.gpus} are here"
    return ""


def _reason(check: CheckResult) -> str:
    return f"{check.id}: {check.observed}" + (f" ({check.hint})" if check.hint else "")


def _result(subject: Subject, runs: Mapping[Place, Runs], request: BenchRequest) -> BenchResult:
    prepared, benchmarks = subject.prepared, {each.job.id: each for each in subject.benchmarks}
    points: list[MeasuredPoint] = []
    unmeasured: list[UnmeasuredPoint] = []
    brought = _brought(request)
    for place, done in runs.items():
        nodes = place.nodes or 1
        if done.reason:
            unmeasured.append(
                UnmeasuredPoint(
                    benchmark=place.benchmark,
                    nodes=nodes,
                    ranks=place.ranks,
                    reason=done.reason,
                    failed=done.failed,
                )
            )
            continue
        for name, measure in benchmarks[place.benchmark].measures.items():
            times = [value_of(each, name) for each in done.results]
            if measure.message_bytes and not all(map(_is_time, times)):
                unmeasured.append(
                    UnmeasuredPoint(
                        benchmark=place.benchmark,
                        nodes=nodes,
                        ranks=place.ranks,
                        reason=f"{name}: a time that cannot be",
                        failed=True,
                    )
                )
        points += _points(benchmarks[place.benchmark], place, done, brought)
    runnable, site = prepared.container.runnable, prepared.site
    host = prepared.fingerprint()
    lock = subject.image.manifest.lock_digest if prepared.extended is None else ""
    bare = prepared.container.bare.version if prepared.container.bare is not None else ""
    return BenchResult(
        image=MeasuredImage(
            name=runnable.name, version=runnable.version, digest=runnable.digest, lock=lock, bare=bare
        ),
        site=site.name if site is not None else "",
        fingerprint=host.digest,
        facts=dict(host.facts),
        launcher=prepared.launcher_label,
        when=datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        repeats=request.repeats,
        points=tuple(_with_efficiency(points)),
        unmeasured=tuple(unmeasured),
        models=tuple(_models(points)),
    )


def _brought(request: BenchRequest) -> dict[str, str]:
    """Return what a request brings beside a benchmark's own files: without it results are not comparable."""
    brought = {"--data": f"sha256:{sha256(request.data)}"} if request.data is not None else {}
    of_host = {"--mpi": request.from_host.mpi, "--fabric": request.from_host.fabric}
    return brought | {option: "host" for option, is_used in of_host.items() if is_used}


def _is_time(value: float) -> bool:
    return 1e-12 < value < 1e12


def _points(
    benchmark: Benchmark, place: Place, runs: Runs, brought: dict[str, str]
) -> Iterator[MeasuredPoint]:
    """Yield a point for each value of a benchmark at one place; a message without a time has none."""
    reports = runs.results[0].reports[0]
    nodes = len({report["host"] for report in reports.good})
    cpus = [len(list_of(report, "cpus")) for report in reports.good]
    communicates = any(measure.message_bytes or measure.scaling for measure in benchmark.measures.values())
    code = {name: sha256_of(content) for name, content in benchmark.files.items()} | brought
    # A rank that is bound to fewer CPUs has no use for more threads.
    threads = min([runs.threads, *(count for count in cpus if count)])
    for name, measure in benchmark.measures.items():
        values = tuple(value_of(result, name) for result in runs.results)
        if measure.message_bytes and not all(map(_is_time, values)):
            continue
        in_seconds = {"s": 1.0, "ms": 1e-3, "us": 1e-6}.get(measure.unit, 1.0)
        statistics = statistics_of(values)
        size = measure.message_bytes
        bandwidth = size / (float(str(statistics["median"])) * in_seconds) if size else None
        yield MeasuredPoint.model_validate(
            {
                "benchmark": place.benchmark,
                "files": sha256_of(canonical_json(code)),
                "name": name,
                "unit": measure.unit,
                "higher_is_better": measure.higher_is_better,
                "scaling": measure.scaling,
                "message_bytes": size,
                "nodes": nodes,
                "ranks": place.ranks,
                "threads": threads,
                "gpus": place.ranks * benchmark.job.gpus_per_rank,
                "oversubscribed": is_oversubscribed(reports, threads),
                "bandwidth": bandwidth,
                "network": network_of(reports) if communicates else "",
                **statistics,
            }
        )


def value_of(result: JobResult, name: str) -> float:
    """Return a value that the ranks of a run reported."""
    return next(value.value for value in result.measured if value.name == name)


def is_oversubscribed(reports: Reports, threads: int) -> bool:
    """Return whether a machine had more threads of ranks than CPUs that they could run on.

    Nodes that one kernel runs share its CPUs: pods, or a Slurm whose nodes are one machine.
    """
    ranks: dict[object, int] = {}
    cpus: dict[object, set[object]] = {}
    for report in reports.good:
        machine = report.get("boot") or report["host"]
        ranks[machine] = ranks.get(machine, 0) + 1
        cpus.setdefault(machine, set()).update(list_of(report, "cpus"))
    return any(count * threads > len(cpus[machine]) for machine, count in ranks.items() if cpus[machine])


def network_of(reports: Reports) -> str:
    """Return the interfaces that received the messages of ranks, by bytes; ``shared memory`` if none did.

    Ranks of a host count the same interfaces, over slightly different times: the largest count is taken.
    """
    received: dict[tuple[object, str], int] = {}
    for report in reports.good:
        counts = report.get("received")
        for name, count in counts.items() if isinstance(counts, dict) else ():
            if isinstance(count, int):
                key = (report["host"], str(name))
                received[key] = max(received.get(key, 0), count)
    totals: dict[str, int] = {}
    for (_, name), count in received.items():
        totals[name] = totals.get(name, 0) + count
    least = max(_LEAST_NETWORK_BYTES, _SHARE_OF_NETWORK * sum(totals.values()))
    carriers = sorted((name for name in totals if totals[name] >= least), key=lambda name: -totals[name])
    if carriers:
        return some(carriers)
    ranks, hosts = len(reports.good), {report["host"] for report in reports.good}
    return "" if ranks < 2 else "shared memory" if len(hosts) == 1 else "unknown"


def _with_efficiency(points: Sequence[MeasuredPoint]) -> Iterator[MeasuredPoint]:
    """Yield points with the efficiency of rates against the first point of the same value."""
    first: dict[tuple[str, str], tuple[int, float]] = {}
    for point in points:
        if point.scaling is None or point.oversubscribed or point.median <= 0:
            yield point
            continue
        here = point.processors, point.median
        base = first.setdefault((point.benchmark, point.name), here)
        yield point.model_copy(update={"efficiency": efficiency(base, here)})


def _models(points: Sequence[MeasuredPoint]) -> Iterator[FittedModel]:
    """Yield the model of message times of each benchmark and place."""
    times: dict[tuple[str, int, int], list[tuple[int, float]]] = {}
    for point in points:
        if point.message_bytes and point.bandwidth:
            series = (point.benchmark, point.nodes, point.ranks)
            times.setdefault(series, []).append((point.message_bytes, point.message_bytes / point.bandwidth))
    for (benchmark, nodes, ranks), sizes in times.items():
        checked = checked_model(sizes)
        if checked is None:
            continue
        slope = checked.model.seconds_per_byte
        yield FittedModel(
            benchmark=benchmark,
            nodes=nodes,
            ranks=ranks,
            latency_s=checked.model.latency_s,
            bytes_per_s=1 / slope if slope else None,
            held_out_bytes=checked.held_out_bytes,
            predicted_s=checked.predicted_s,
            measured_s=checked.measured_s,
            error=checked.error,
        )


def _compared(result: BenchResult, other: BenchResult) -> ComparedImage:
    """Return how a result compares with another one whose runs alternated with its own."""
    known = {point.subject: point for point in other.points}
    named = {point.row: point for point in other.points}
    points, skipped = [], []
    for point in result.points:
        first = known.get(point.subject)
        if first is None or min(*first.values, *point.values) <= 0:
            skipped.append(_why_not_compared(point, named.get(point.row)))
            continue
        compared = compare(first.values, point.values, higher_is_better=point.higher_is_better)
        interval = compared.interval
        points.append(
            ComparedPoint(
                benchmark=point.benchmark,
                name=point.name,
                nodes=point.nodes,
                ranks=point.ranks,
                other=first.values,
                ratio=compared.ratio,
                low=interval.low if interval is not None else None,
                high=interval.high if interval is not None else None,
                verdict=compared.verdict,
            )
        )
    return ComparedImage(image=other.image, points=tuple(points), skipped=tuple(skipped))


def _why_not_compared(point: MeasuredPoint, first: MeasuredPoint | None) -> str:
    where = f"{point.benchmark} {point.name} on {pluralize(point.ranks, 'rank')}"
    if first is None:
        return f"{where}: the other has no such value"
    if first.threads != point.threads:
        return f"{where}: threads differ: {first.threads} and {point.threads}"
    return f"{where}: " + ("values of 0" if first.subject == point.subject else "the benchmark differs")


def _with_earlier(result: BenchResult, earlier: Sequence[BenchResult]) -> BenchResult:
    """Return a result whose points are judged by earlier ones of the same image name and site."""
    same = [
        other
        for other in earlier
        if (other.image.name, other.image.bare) == (result.image.name, result.image.bare)
        and (other.site, other.launcher) == (result.site, result.launcher)
        and (result.site or other.fingerprint == result.fingerprint)
    ]
    known: dict[tuple[object, ...], list[MeasuredPoint]] = {}
    for point in (point for other in same for point in other.points):
        known.setdefault(point.subject, []).append(point)
    points = []
    for point in result.points:
        intervals = [old.interval for old in known.get(point.subject, ()) if old.interval is not None]
        verdict = against_earlier(point.interval, intervals, higher_is_better=point.higher_is_better)
        points.append(point.model_copy(update={"earlier": verdict}))
    return result.model_copy(update={"points": tuple(points)})

"""Bisect: name the difference between two images that makes one slower, by measured compositions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import ValidationError

from envbuild.bench.bisect import Judged, Outcome, State, bisect, judge_composition
from envbuild.bench.result import (
    BenchResult,
    BisectedDifference,
    BisectedStep,
    Bisection,
    ComparedPoint,
)
from envbuild.build.run import BuildContext, missing_layers
from envbuild.errors import BuildError, CheckError, EnvbuildError, Location, RequestError, pluralize, some
from envbuild.events import Note, task
from envbuild.extend.built import BuiltImage, read_built
from envbuild.image.compose import Provenance
from envbuild.image.file import ImageFile
from envbuild.image.mixed import Ingredients, Pair
from envbuild.image.provenance import check_provenance
from envbuild.image.request import ImageRequest
from envbuild.inputs.tools import tool_pins
from envbuild.lock.model import all_pins
from envbuild.plan.graph import LayerGraph
from envbuild.plan.model import PACKERS, BuildPlan, FilesStep, InputFile, Layer
from envbuild.preflight.python_packages import applies, read_requirement
from envbuild.spec.model import first_problem
from envbuild.workflows.bench import (
    BenchRequest,
    Place,
    Series,
    Subject,
    kept,
    opened_subjects,
    results_of,
    runs_of,
    subject_of,
    value_of,
)
from envbuild.workflows.fetch import fetch_pins, locator
from envbuild.workflows.make import make_image
from envbuild.workflows.plan import needed_pins
from envbuild.workflows.reproduce import origins_of_image
from envbuild.workflows.settings import Settings
from envbuild.workflows.upstreams import fetch_layers, with_upstreams

MOST_ROUNDS = 4
"""A composition is measured in rounds of `BenchRequest.repeats` runs, until it is decided (count)."""


def bisect_images(request: BenchRequest, settings: Settings, *, value: str | None = None) -> BenchResult:
    """Compare two images by one value of a benchmark, and name the difference that decides it.

    `value` may be left out if the benchmark has one. RequestError: the request names not just two images, a
    benchmark and a place; an image has no lock; or the images are the same, or cannot be mixed. CheckError:
    the benchmark fails in one of the images while compositions are measured.
    """
    if request.other is None:
        raise RequestError(
            "--bisect compares two images", hint="`envbuild bench BEFORE.sif AFTER.sif --bisect …`"
        )
    if len(request.only) != 1:
        raise RequestError("--bisect measures one benchmark", hint="name it with --only ID")
    if len(request.ranks) > 1 or len(request.nodes) > 1:
        raise RequestError(
            "--bisect measures at one place", hint="name one number with --ranks, and with --nodes"
        )
    for path in (request.other, request.image):
        _check_has_lock(path)
    settings = with_upstreams(settings)

    def waiting() -> None:
        settings.emit(Note(text="waiting for `envbuild cache prune`"))

    with (
        opened_subjects(request, settings) as subjects,
        settings.store.in_use(waiting),
        settings.store.stage() as work,
    ):
        pair = _pair(subjects, settings)
        place, name = _place(subjects, request), _value_name(subjects, request, value)
        request = replace(request, ranks=(place.ranks,))
        trial = _Trial(subjects, pair, request, settings, place, name, work)
        # What cannot be put together is known before the first run.
        trial.prepare()
        results = results_of(subjects, runs_of(subjects, request), request)
        point = _compared_point(results[-1], name)
        if point is None and not any(result.failed for result in results):
            problem = f"`{name}` has values that are not positive, and no ratio"
            raise RequestError(problem, hint="name another value with --value NAME")
        # The result says that a benchmark failed.
        if point is not None:
            update = {"bisected": _bisection(trial, point)}
            results[-1] = results[-1].model_copy(update=update)
    return kept(results, request, settings)


def _check_has_lock(path: Path) -> None:
    with ImageFile.open(path) as image:
        if not image.built_by_envbuild:
            raise RequestError(
                f"`{path.name}` has no lock, so its layers are not known",
                at=Location(path=path),
                hint="--bisect takes images that `envbuild build` made; build one from a spec",
            )


def _compared_point(result: BenchResult, name: str) -> ComparedPoint | None:
    points = result.compared.points if result.compared is not None else ()
    return next((point for point in points if point.name == name), None)


def _pair(subjects: Sequence[Subject], settings: Settings) -> Pair:
    """Return the two images as data; RequestError: they cannot be mixed, or do not differ."""
    first, second = (_ingredients(subject.image, settings) for subject in subjects)
    compression = first.plan.layers[0].compression.partition(":")[0]
    packer = tool_pins([PACKERS[compression]])
    pair = Pair(first=first, second=second, packer=packer)
    here, there = (subject.image.path.name for subject in subjects)
    for problem, hint in pair.obstacles:
        raise RequestError(f"`{here}` and `{there}`: {problem}", hint=hint)
    if not pair.differences:
        problem = f"`{here}` and `{there}` are made from the same layers: there is nothing to bisect"
        raise RequestError(
            problem, hint="compare runs of one image by its kept results: `envbuild bench IMAGE`"
        )
    return pair


def _ingredients(image: ImageFile, settings: Settings) -> Ingredients:
    check_provenance(image)
    built = read_built(image, settings.emit)
    return Ingredients(
        manifest=image.manifest, lock=image.lock, plan=image.plan, requirements=dict(_requirements(built))
    )


def _requirements(built: BuiltImage) -> Iterator[tuple[str, tuple[Requirement, ...]]]:
    """Yield distributions with their requirements that apply in an image, with all requested extras."""
    markers = built.python.markers
    written = {
        name: [requirement for text in distribution.requires if (requirement := read_requirement(text))]
        for name, distribution in built.python.installed.items()
    }
    extras: dict[str, set[str]] = {}
    requests = [requirement for text in built.image.lock.requests if (requirement := read_requirement(text))]
    for requirement in (*requests, *(each for entries in written.values() for each in entries)):
        extras.setdefault(canonicalize_name(requirement.name), set()).update(requirement.extras)
    for name, entries in written.items():
        yield name, tuple(each for each in entries if applies(each, extras.get(name, set()), markers))


def _place(subjects: Sequence[Subject], request: BenchRequest) -> Place:
    """Return the first place at which both images can run the benchmark; RequestError: there is none."""
    (benchmark,) = request.only
    reasons: list[str] = []
    for nodes, ranks in request.places:
        series = [Series.of(subject, benchmark, nodes, ranks) for subject in subjects]
        reasons = [each.runs.reason for each in series if each is not None and each.runs.reason]
        if not reasons:
            return Place(benchmark, nodes, ranks)
    raise RequestError(
        f"`{benchmark}` cannot run: {reasons[0]}", hint="name another number of ranks with --ranks N"
    )


def _value_name(subjects: Sequence[Subject], request: BenchRequest, value: str | None) -> str:
    """Return the name of the value that decides; RequestError: it has no such value, or several."""
    (benchmark,) = request.only
    names = [name for each in subjects[0].benchmarks if each.job.id == benchmark for name in each.measures]
    if value in names or (value is None and len(names) == 1):
        return value or names[0]
    problem = (
        f"`{benchmark}` has no value `{value}`" if value is not None else f"`{benchmark}` has several values"
    )
    raise RequestError(problem, hint=f"name one with --value: {some(names, 20)}")


def _bisection(trial: _Trial, point: ComparedPoint) -> Bisection:
    """Search for what makes the images differ, if they do."""
    differences = trial.pair.differences
    if point.verdict in ("faster", "slower"):
        outcome = bisect(
            [difference.name for difference in differences],
            {difference.name: difference.needs for difference in differences},
            trial.measure,
        )
    else:
        runs = pluralize(trial.request.repeats, "run")
        reason = f"after {runs} of each image it is open whether they differ"
        outcome = Outcome(verdict="not decidable", cause=(), along=(), reason=reason)
    return Bisection(
        benchmark=point.benchmark,
        name=point.name,
        nodes=point.nodes,
        ranks=point.ranks,
        differences=tuple(
            BisectedDifference(name=difference.name, before=difference.before, after=difference.after)
            for difference in differences
        ),
        steps=tuple(trial.steps),
        verdict=outcome.verdict,
        cause=outcome.cause,
        along=outcome.along,
        reason=outcome.reason,
    )


class _SkippedError(Exception):
    """A composition that cannot be measured, and why."""


@dataclass(slots=True)
class _Trial:
    """Compositions of two images, and their measured values."""

    subjects: Sequence[Subject]
    pair: Pair
    request: BenchRequest
    settings: Settings
    place: Place
    name: str
    """Name of the value."""
    work: Path
    """A directory for compositions."""
    steps: list[BisectedStep] = field(default_factory=list)
    context: BuildContext | None = None

    def prepare(self) -> None:
        """Make available the layers of all compositions.

        RequestError: the store lacks layers that cannot be built here.
        """
        settings = self.settings
        graph = LayerGraph.of(self._plans())
        fetch_layers(graph, settings)
        # Files that a composition writes itself need nothing.
        missing = [
            layer for layer in missing_layers(graph, settings.store) if not isinstance(layer.step, FilesStep)
        ]
        settings.store.freshen(graph.layers)
        locate: Callable[[InputFile], Path] = _without_files
        if missing:
            self._check_tools(missing)
            locate = self._fetched(missing)
            text = f"the store lacks {_names(missing)}, for compositions: built when needed"
            settings.emit(Note(text=text))
        self.context = BuildContext(
            store=settings.store, apptainer=settings.find_apptainer(), locate=locate, emit=settings.emit
        )

    def _plans(self) -> Iterator[BuildPlan]:
        """Yield plans that have, together, all layers of compositions, but for what they write themselves."""
        parts = [difference.parts for difference in self.pair.differences]
        every = frozenset[str]().union(*parts)
        below = [own for own in parts if own & self.pair.inputs]
        for taken in (frozenset[str](), every, *below, *(every - own for own in below)):
            try:
                yield self.pair.mixture(taken).plan
            except ValueError:
                continue

    def _check_tools(self, missing: Sequence[Layer]) -> None:
        tools = sorted({tool for layer in missing for tool in layer.step.tools})
        here = tool_pins([tool.name for tool in tools])
        if others := [tool.name for tool in tools if tool not in here]:
            problem = f"the store lacks {_names(missing)}, and {some(others)} of this machine did not"
            raise RequestError(
                f"{problem} make the images",
                hint="name the store in which both were built with --store DIR, or build both again",
            )

    def _fetched(self, missing: Sequence[Layer]) -> Callable[[InputFile], Path]:
        """Fetch the files of missing layers; return a function that locates them."""
        # An unknown base image is an error of its own: to build the specs again would not help.
        origins_by_image = [origins_of_image(subject.image, self.settings) for subject in self.subjects]
        try:
            for subject, origins in zip(self.subjects, origins_by_image, strict=True):
                pins = needed_pins(missing, all_pins(subject.image.lock))
                fetch_pins(pins, origins, self.settings, sources=(), offline=False)
        except EnvbuildError as error:
            problem = f"the store lacks {_names(missing)}, and what it is built from is not here"
            hint = "`envbuild build SPEC` of both specs, with this store, brings files and layers"
            raise RequestError(f"{problem}: {error.problem}", hint=hint) from error
        locks = [subject.image.lock for subject in self.subjects]
        pins = needed_pins(missing, [pin for lock in locks for pin in all_pins(lock)])
        return locator(pins, self.settings, self.work)

    def measure(self, taken: frozenset[str]) -> State:
        """Measure the first image with some differences of the second."""
        number = len(self.steps) + 1
        names = tuple(each.name for each in self.pair.differences if each.name in taken)
        title = f"step {number}: {len(names)} of {pluralize(len(self.pair.differences), 'difference')}"
        with task(self.settings.emit, "bisect", title) as running:
            path = self.work / f"step-{number}.sif"
            try:
                self._compose(path, taken)
                with ImageFile.open(path) as image:
                    judged, runs = self._judged(subject_of(image, self.request, self.settings))
                interval = judged.interval
                step = BisectedStep(
                    taken=names,
                    state=judged.state,
                    ratio=judged.ratio,
                    low=interval.low if interval else None,
                    high=interval.high if interval else None,
                    runs=runs,
                )
                running.detail = f"{judged.state}, ratio {judged.ratio:.3f}"
            except (_SkippedError, BuildError, RequestError) as error:
                reason = error.problem if isinstance(error, EnvbuildError) else str(error)
                step = BisectedStep(taken=names, state="skipped", reason=reason)
                running.detail = f"skipped: {reason}"
            finally:
                path.unlink(missing_ok=True)
        self.steps.append(step)
        return step.state

    def _compose(self, path: Path, taken: Set[str]) -> None:
        parts = frozenset[str]().union(
            *(difference.parts for difference in self.pair.differences if difference.name in taken)
        )
        try:
            mixture = self.pair.mixture(parts)
        except ValidationError as error:
            raise _SkippedError(first_problem(error)) from None
        except ValueError as error:
            raise _SkippedError(str(error)) from None
        make_image(
            path,
            ImageRequest(
                plan=mixture.plan,
                new=mixture.plan.image,
                provenance=Provenance(
                    manifest=mixture.manifest, lock=mixture.lock, plan=mixture.plan.to_json()
                ),
                conflict_hint="the composition is skipped",
            ),
            self.settings.store,
            self.settings,
            context=self.context,
            verb="bench",
        )

    def _judged(self, composed: Subject) -> tuple[Judged, int]:
        """Measure until it is decided what a composition is like, or for `MOST_ROUNDS`; return the runs, too.

        CheckError: the benchmark fails in one of the two images.
        """
        subjects = [*self.subjects, composed]
        values: tuple[list[float], ...] = ([], [], [])
        while True:
            measured = [done[self.place] for done in runs_of(subjects, self.request)]
            for subject, runs in zip(self.subjects, measured, strict=False):
                if runs.reason:
                    problem = f"`{self.place.benchmark}` failed in `{subject.image.path.name}`: {runs.reason}"
                    raise CheckError(problem, hint="run it alone: leave --bisect out")
            if measured[-1].reason:
                raise _SkippedError(measured[-1].reason)
            for known, runs in zip(values, measured, strict=True):
                known += [value_of(result, self.name) for result in runs.results]
            if min(map(min, values)) <= 0:
                raise _SkippedError(f"`{self.name}` is not positive")
            judged = judge_composition(*values)
            if judged.state != "not decidable" or len(values[0]) >= MOST_ROUNDS * self.request.repeats:
                return judged, len(values[0])


def _names(layers: Sequence[Layer]) -> str:
    # A composition on another base has layers of the same name.
    return some(sorted({layer.name for layer in layers}))


def _without_files(file: InputFile) -> Path:
    raise AssertionError(f"`{file.name}` is needed, and no layer was missing")

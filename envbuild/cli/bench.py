"""`envbuild bench`: how fast the ranks of an image are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import columns, print_data, print_message
from envbuild.cli.progress import session
from envbuild.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuild.bench.result import BenchResult

_MOST_RANKS, _MOST_NODES = 4096, 65_536
_MOST_COUNTS = 32
# Of a wrong list, in an error.
_SHOWN = 60


def _counts(text: str | None, most: int) -> tuple[int, ...]:
    """Read a list of counts, sorted: ``1,2,4``; empty for None."""
    words = text.split(",") if text is not None else []
    counts = [int(word) if word.isascii() and word.isdecimal() and len(word) < 10 else 0 for word in words]
    if not all(0 < count <= most for count in counts):
        problem = f"`{(text or '')[:_SHOWN]}` is not a list of counts from 1 to {most}"
        raise RequestError(problem, hint="write 1,2,4")
    if len(words) > _MOST_COUNTS:
        raise RequestError(f"{len(words)} counts are too many", hint=f"name at most {_MOST_COUNTS}")
    return tuple(sorted(set(counts)))


def command(
    context: typer.Context,
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE…",
            help="The image, or two of which the second is judged: files, or HOST/NAME:TAG in a registry.",
        ),
    ],
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks",
            metavar="N,N…",
            help="Numbers of ranks, over all nodes [1, 2, and 2 a node].",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option("--nodes", metavar="N,N…", help="In a job of Slurm on these numbers of nodes."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ID", help="This benchmark, such as pytorch.lstm (repeatable)."),
    ] = None,
    bare: Annotated[
        Path | None,
        typer.Option(
            "--bare",
            metavar="PYTHON",
            help="Compare with the image's wheels on this Python of the host, without a container.",
        ),
    ] = None,
    bisect: Annotated[
        bool,
        typer.Option("--bisect", help="Name the difference that makes the second image slower or faster."),
    ] = False,
    value: Annotated[
        str | None,
        typer.Option("--value", metavar="NAME", help="The value of the benchmark that --bisect goes by."),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, max=1000, help="Runs of each; 5 for an interval.")
    ] = 5,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="A text for language models, a sentence a line."),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results",
            metavar="DIR",
            parser=options.directory,
            help="Keep results here, and compare with those [the user's state directory].",
            show_default=False,
        ),
    ] = None,
    timeout: options.Timeout = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            parser=options.output_path,
            help="Write the result here as well: FILE.html, FILE.json, or FILE.log for MLPerf's tools.",
        ),
    ] = None,
    launcher: options.Launcher = None,
    partition: options.Partition = None,
    account: options.Account = None,
    time: options.Time = None,
    slurm: options.SlurmOptions = None,
    mpi: options.Mpi = "image",
    fabric: options.Fabric = "image",
    recipes: options.Recipes = None,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Run the benchmarks of an image's recipes several times; exit code 4 when one failed.

    --bisect puts the second image together from parts of both, measures that, and names the packages, MPI,
    variables or base that make it slower; exit code 4 if they remain unknown.

    A table shows the median of each value, an interval that covers it, and efficiency against the first row.
    Runs of two images alternate; the second is faster or slower only if the interval of the ratio says so. A
    slow benchmark has not failed.
    """
    given = options.first_given(partition=partition, account=account, time=time, slurm=slurm)
    if given and nodes is None:
        raise RequestError(f"{given} is for a job on nodes", hint="add --nodes N")
    if len(images) > 2:
        raise RequestError(f"{len(images)} images are too many", hint="name one, or two to compare")
    if bare is not None and len(images) > 1:
        raise RequestError("--bare compares one image with its wheels on the host", hint="name one image")
    if value is not None and not bisect:
        raise RequestError("--value is for --bisect", hint="add --bisect, or leave --value out")
    ranks_of_points, nodes_of_points = _counts(ranks, _MOST_RANKS), _counts(nodes, _MOST_NODES)
    with session(json=json, store=store, apptainer=apptainer, recipes=recipes, site=site) as settings:
        words = context.obj
        files = []
        for image in images:
            pinned = workflows.images.by_digest(image) if nodes else image
            words = options.with_image(words, image, pinned)
            files.append(workflows.images.image_file(pinned, settings))
        request = workflows.bench.BenchRequest(
            image=files[-1],
            other=files[0] if len(files) > 1 else None,
            bare=bare,
            ranks=ranks_of_points,
            nodes=nodes_of_points,
            only=tuple(only or ()),
            repeats=repeats,
            timeout_s=timeout,
            from_host=options.host_libraries(mpi, fabric),
            launcher=launcher,
            data=data,
            results=results,
        )
        if report is not None:
            workflows.bench_page.check_report(report, files, settings)
        if nodes_of_points and workflows.nodes.must_submit(max(nodes_of_points)):
            named_options = {"partition": partition, "account": account, "time": time}
            raise typer.Exit(
                workflows.nodes.submit(
                    words,
                    files[-1],
                    settings,
                    nodes=max(nodes_of_points),
                    named_options={**named_options, "ntasks-per-node": str(request.ranks_per_node)},
                    options=slurm,
                )
            )
        if bisect:
            result = workflows.bench_bisect.bisect_images(request, settings, value=value)
        else:
            result = workflows.bench.bench_image(request, settings)
    _show(result, report, files[-1], json=json)
    if result.interrupted:
        raise KeyboardInterrupt
    raise typer.Exit(4 if result.failed else 0)


def _show(result: BenchResult, report: Path | None, image: Path, *, json: bool) -> None:
    # First: standard output may be closed.
    if report is not None:
        workflows.bench_page.write_report(report, result, image)
    if json:
        print_data(result.to_json())
    else:
        print_data("\n\n".join(_text(result)))
    print_message(workflows.bench_report.last_line(result), problem=result.failed)


def _text(result: BenchResult) -> Iterator[str]:
    """Yield the table of each benchmark, and what was not measured."""
    report = workflows.bench_report
    for table in report.tables(result):
        yield "\n".join([table.benchmark, columns([table.columns, *table.rows]), *table.notes])
    for compared in (report.compared_table(result), report.bisected_table(result)):
        if compared is not None:
            yield "\n".join(
                [compared.benchmark, columns([compared.columns, *compared.rows]), *compared.notes]
            )
    if result.unmeasured:
        rows = [report.unmeasured_row(point) for point in result.unmeasured]
        yield columns([("not measured", "nodes", "ranks", "why"), *rows])

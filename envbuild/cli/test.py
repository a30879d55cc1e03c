"""`envbuild test`: prove that the ranks in an image really talk."""

from __future__ import annotations

import json as json_text
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options, submission
from envbuild.cli.members import finish_members
from envbuild.cli.output import print_data, print_message
from envbuild.cli.progress import session
from envbuild.errors import RequestError
from envbuild.events import Note

if TYPE_CHECKING:
    from envbuild.store.report import Report
    from envbuild.workflows.images import NamedImage
    from envbuild.workflows.members import Member
    from envbuild.workflows.settings import Settings


def command(
    context: typer.Context,
    images: options.Images = None,
    root: options.ModuleRoot = None,
    every: options.EveryImage = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            metavar="N",
            min=2,
            max=4096,
            help="Processes to start [under srun what the job says, else the image].",
        ),
    ] = None,
    timeout: options.Timeout = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            parser=options.output_path,
            help="Write the report here as well: FILE.json, or FILE.md or FILE.html for people.",
        ),
    ] = None,
    launcher: options.Launcher = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run one job of each framework; no verdict is kept.")
    ] = False,
    require_gpu: Annotated[
        bool, typer.Option("--require-gpu", help="Fail an image for GPUs if there is none to test it on.")
    ] = False,
    emulate: Annotated[
        bool,
        typer.Option(
            "--emulate", help="Start an image for arm64 through QEMU; proves nothing of a machine with arm64."
        ),
    ] = False,
    nodes: options.Nodes = None,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(
            "--ranks-per-node",
            metavar="R",
            min=1,
            max=4096,
            help="With --nodes [one for each GPU, else 2].",
            show_default=False,
        ),
    ] = None,
    submit: submission.Submit = False,
    at_once: submission.AtOnce = None,
    partition: options.Partition = None,
    account: options.Account = None,
    time: options.Time = None,
    slurm: options.SlurmOptions = None,
    collect: Annotated[
        str | None,
        typer.Option(
            "--collect",
            metavar="FILE",
            help="Judge the logs of a test that ran in pods (`export --test`); - reads standard input.",
        ),
    ] = None,
    vet: Annotated[
        bool, typer.Option("--vet", help="Measure the nodes, too; a bad one fails the test.")
    ] = False,
    sign: Annotated[
        bool, typer.Option("--sign", help="Sign the image and this verdict afterwards, whatever it is.")
    ] = False,
    key: options.Key = None,
    mpi: options.Mpi = "image",
    fabric: options.Fabric = "image",
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Run the image's mini jobs and judge them; exit code 4 when anything failed.

    PASS says that they ran right on this machine and on this many ranks, and nothing about other programs,
    other machines or speed: see "What PASS does not say" in the documentation.
    """
    given = options.first_given(partition=partition, account=account, time=time, slurm=slurm, at_once=at_once)
    more = options.first_given(ranks_per_node=ranks_per_node)
    if (given and nodes is None and not submit) or (more and nodes is None):
        hint = "add --submit, or --nodes N" if given else "add --nodes N"
        raise RequestError(f"{given or more} is for jobs", hint=hint)
    _check_can_emulate(emulate, options.first_given(nodes=nodes, submit=submit, vet=vet, sign=sign))
    _check_can_submit(submit, options.first_given(nodes=nodes, vet=vet, sign=sign, report=report))
    starts = options.first_given(
        timeout=timeout,
        launcher=launcher,
        quick=quick,
        nodes=nodes,
        require_gpu=require_gpu,
        emulate=emulate,
        submit=submit,
        vet=vet,
        sign=sign,
        mpi=mpi == "host",
        fabric=fabric == "host",
    )
    _check_collects(collect, starts)
    options.check_key(key, sign=sign)
    with session(json=json, store=store, apptainer=apptainer, site=site) as settings:
        named = workflows.images.named_images(settings, images or (), root=root, every=every or ())
        if named.many and (nodes or report is not None or collect is not None):
            option = "--nodes" if nodes else "--collect" if collect is not None else "--report"
            raise RequestError(
                f"{option} is for one image", hint="test them one after the other, or leave it out"
            )
        if submit:
            tests = named.each(
                lambda member, own: workflows.test.TestRequest(
                    image=member.get().file(own),
                    ranks=ranks,
                    timeout_s=timeout,
                    from_host=options.host_libraries(mpi, fabric),
                    launcher=launcher,
                    quick=quick,
                    require_gpu=require_gpu,
                ),
                settings,
            )
            jobs = submission.job_options(
                partition=partition,
                account=account,
                time=time,
                slurm=slurm,
                at_once=at_once,
                paths=[("--store", settings.store.path), ("--apptainer", apptainer), ("--site", site)],
            )
            submission.show(workflows.submit.submit_tests(tests, jobs, settings), json=json)
        if not named.many:
            # Jobs that start later take the image that a tag names now.
            image = named.only
            pinned = workflows.images.by_digest(image.path) if nodes else image.path
            file = replace(image, path=pinned).file(settings)
            if report is not None:
                workflows.test.check_report(report, file, settings)
            if nodes and workflows.nodes.must_submit(nodes):
                named_options = {"partition": partition, "account": account, "time": time}
                named_options["ntasks-per-node"] = None if ranks_per_node is None else str(ranks_per_node)
                raise typer.Exit(
                    workflows.nodes.submit(
                        options.with_image(context.obj, image.path, pinned),
                        file,
                        settings,
                        nodes=nodes,
                        named_options=named_options,
                        options=slurm,
                    )
                )
        if nodes and ranks is None and ranks_per_node is not None:
            ranks = nodes * ranks_per_node

        def test(member: Member[NamedImage], settings: Settings) -> Report:
            if named.many:
                settings.emit(Note(text="test"))
            if collect is not None:
                logs = None if collect == "-" else Path(collect)
                return workflows.collect.collect_test(member.get().file(settings), logs, ranks, settings)
            request = workflows.test.TestRequest(
                image=member.get().file(settings),
                ranks=ranks,
                timeout_s=timeout,
                from_host=options.host_libraries(mpi, fabric),
                launcher=launcher,
                nodes=nodes or 0,
                vet=vet,
                submitted_from=workflows.nodes.submitted_from(),
                quick=quick,
                require_gpu=require_gpu,
                emulate=emulate,
                key=key,
            )
            return workflows.test.test_image(request, settings)

        results = named.each(test, settings, last=True)
    if results.many:
        finish_members(
            results, row=_row, data=lambda result: json_text.loads(result.to_json()), json=json, code=_code
        )
        return
    result = results.only
    if json:
        print_data(result.to_json())
    print_message(result.last_line, problem=not result.passed)
    if nodes and not quick:
        print_message(result.certificate, problem=not result.passed)
    if report is not None:
        workflows.test.write_report(report, result, image=file, settings=settings)
    raise typer.Exit(_code(result))


def _row(result: Report) -> tuple[str, str]:
    return "PASS" if result.passed else "FAIL", result.last_line


def _code(result: Report) -> int:
    return 0 if result.passed else 4


def _check_collects(logs: str | None, option: str) -> None:
    """Raise a RequestError for an option on how jobs start, if those of a collected test have run."""
    if logs is not None and option:
        raise RequestError(f"{option} is not for --collect: the jobs have run", hint=f"leave {option} out")


def _check_can_emulate(emulate: bool, option: str) -> None:
    """Raise a RequestError for an option that an emulated test does not have; none if it is empty."""
    if emulate and option:
        hint = "leave one of the two out: what QEMU starts proves nothing of nodes, and nothing to be signed"
        raise RequestError(f"--emulate and {option} do not go together", hint=hint)


def _check_can_submit(submit: bool, option: str) -> None:
    """Raise a RequestError for an option that a submitted test does not have; none if it is empty."""
    if submit and option:
        hint = f"submit the test without it, or run `envbuild test {option}` for one image"
        raise RequestError(f"{option} is not for --submit", hint=hint)

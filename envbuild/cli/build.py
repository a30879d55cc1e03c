"""`envbuild build`: from a spec to an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options, submission
from envbuild.cli.members import finish_members
from envbuild.cli.output import print_json, print_message, print_next
from envbuild.cli.progress import session
from envbuild.errors import RequestError, pluralize
from envbuild.quoting import shell_path

if TYPE_CHECKING:
    from envbuild.preflight.report import PreflightReport
    from envbuild.workflows.build import Built


def command(
    specs: options.Specs,
    output: Annotated[
        str | None,  # a path would lose a slash at its end
        typer.Option(
            "-o",
            "--output",
            metavar="IMAGE.sif|DIR/",
            help="The image to write, or a directory for STEM.sif, made if absent [beside the spec].",
            show_default=False,
        ),
    ] = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="Refuse a lock that does not satisfy the spec.")
    ] = False,
    offline: options.Offline = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build every layer anew and compare with the store.")
    ] = False,
    compression: options.CompressionOption = "zstd",
    sources: options.SourceDirectories = None,
    store: options.Store = None,
    upstream: options.Upstream = None,
    push_layers: Annotated[
        str,
        typer.Option(
            "--push-layers",
            metavar="HOST/NAME",
            help="Push the finished layers to a registry, for builds that name it as an upstream.",
            show_default=False,
        ),
    ] = "",
    key: Annotated[
        Path | None, typer.Option("--key", metavar="PEM", help="The private key that signs these layers.")
    ] = None,
    submit: submission.Submit = False,
    test: Annotated[
        bool, typer.Option("--test", help="With --submit: test each image when it is built.")
    ] = False,
    at_once: submission.AtOnce = None,
    partition: options.Partition = None,
    account: options.Account = None,
    time: options.Time = None,
    slurm: options.SlurmOptions = None,
    apptainer: options.Apptainer = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
    architecture: options.Architecture = None,
    json: options.Json = False,
) -> None:
    """Build the images of specs: lock if needed, plan, build what the store lacks, compose, check.

    Of several, all are planned first, and a layer that several need is built
    once. One failure leaves the others done.
    """
    if key is not None and not push_layers:
        raise RequestError("--key signs pushed layers", hint="add --push-layers HOST/NAME")
    given = options.first_given(
        partition=partition, account=account, time=time, slurm=slurm, at_once=at_once, test=test
    )
    if given and not submit:
        raise RequestError(f"{given} is for jobs", hint="add --submit")
    if submit and (rebuild or push_layers):
        given = "--rebuild" if rebuild else "--push-layers"
        hint = f"submit first, and run `envbuild build {given}` in a job of yours afterwards"
        raise RequestError(f"{given} is not for --submit", hint=hint)
    with session(
        json=json, store=store, apptainer=apptainer, recipes=recipes, site=site, architecture=architecture
    ) as settings:
        file, directory = workflows.arguments.output_or_directory(output)
        request = workflows.build.BuildRequest(
            output=file,
            directory=directory,
            locked=locked,
            offline=offline,
            rebuild=rebuild,
            compression=compression,
            sources=sources or (),
            upstreams=upstream or (),
            push_layers=push_layers,
            key=key,
        )
        members = workflows.specs.specs_of(specs, settings.emit)
        if submit:
            jobs = submission.job_options(
                partition=partition,
                account=account,
                time=time,
                slurm=slurm,
                at_once=at_once,
                paths=[
                    ("--store", settings.store.path),
                    ("--apptainer", apptainer),
                    ("--site", site),
                    *(("--recipes", path) for path in recipes or ()),
                    *(("--upstream", path) for path in upstream or ()),
                ],
            )
            state = workflows.submit.submit_builds(members, request, jobs, settings, tests=test)
            submission.show(state, json=json)
        images = workflows.build.build_images(members, request, settings)
    if images.many:
        lines = _total_lines([member.get() for member in images.done])
        finish_members(images, row=_row, data=_data, json=json, code=_code, lines=lines)
        return
    if json:
        print_json(_data(images.only))
    _show(images.only, options.given_again(site=site))


def _row(built: Built) -> list[str]:
    """Return the cells of an image in the table: its state, its size, and what it lacks."""
    failed = [result for result in built.preflight.checks() if result.status == "FAIL"]
    state = "built, incomplete" if failed else "up to date" if built.unchanged else "built"
    new = f", {built.made} new" if built.made else ""
    size = f"{built.size_bytes / 1e6:.0f} MB, {pluralize(built.layers, 'layer')}{new}"
    return [state, size, *(result.line() for result in failed[:1])]


def _code(built: Built) -> int:
    return 0 if built.preflight.passed else 4


def _total_lines(images: Sequence[Built]) -> list[str]:
    """Return what was pushed of all images."""
    sent_bytes = sum(built.pushed.sent_bytes for built in images if built.pushed is not None)
    return [f"layers pushed: {sent_bytes / 1e6:.1f} MB sent"] if any(built.pushed for built in images) else []


def _show(built: Built, given: str) -> None:
    """Write at most six lines: the image, what was built and pushed, what `check` says, what to do next."""
    path, preflight = shell_path(built.path), built.preflight
    state = "is up to date" if built.unchanged else "built"
    size = f"{built.size_bytes / 1e6:.0f} MB, {pluralize(built.layers, 'layer')}"
    print_message(f"{built.path}: {state} ({size}, {built.digest[:19]})")
    if not built.unchanged:
        print_message(f"layers: {built.made} built, {built.layers - built.made} reused")
    if (pushed := built.pushed) is not None:
        signed = f"signed by key {pushed.key[7:19]}"
        text = f"{pluralize(pushed.layers, 'layer')} pushed, {pushed.sent_bytes / 1e6:.1f} MB sent, {signed}"
        print_message(f"{pushed.repository}: {text}")
    if preflight.passed:
        seen = (
            pluralize(preflight.objects, "ELF file"),
            pluralize(preflight.distributions, "Python distribution"),
        )
        print_message(f"check: passed ({', '.join(seen)})")
        print_next(f"test {path}{given}")
        return
    fail_preflight(built.path, preflight)


def fail_preflight(image: Path, preflight: PreflightReport) -> None:
    """Print what an image that was written lacks, and exit with the code of a check that failed."""
    first, *more = (result for result in preflight.checks() if result.status == "FAIL")
    print_message(first.line(), problem=True)
    others = f", and {pluralize(len(more), 'other problem')}" if more else ""
    text = f"{image}: written, but some programs would not start (see above{others})"
    print_message(text, problem=True)
    if more:
        print_message(f"next: envbuild check {shell_path(image)}", problem=True)
    raise typer.Exit(4)


def _data(built: Built) -> dict[str, object]:
    return {
        "image": built.path,
        "digest": built.digest,
        "size_bytes": built.size_bytes,
        "layers": built.layers,
        "unchanged": built.unchanged,
        "pushed": built.pushed,
        "preflight": {"passed": built.preflight.passed, "problems": built.preflight.problems},
    }

"""`envbuild check`: what an image would load and whether it fits its site, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import level, print_json, print_message, print_messages
from envbuild.cli.progress import session
from envbuild.errors import pluralize

if TYPE_CHECKING:
    from envbuild.workflows.check import CheckedImage


def command(
    image: options.Image,
    site: options.Site = None,
    mpi: options.Mpi = "image",
    fabric: options.Fabric = "image",
    runtime: Annotated[
        Literal["shifter"] | None,
        typer.Option("--runtime", help="Also report what this runtime hides, replaces or drops."),
    ] = None,
    srun: Annotated[
        bool, typer.Option("--srun", help="Also ask this machine's srun which PMI it offers.")
    ] = False,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Simulate the loader over the image's layers, and judge what fits; exit code 4 for anything wrong."""
    with session(json=json, store=store, site=site) as settings:
        image = workflows.images.image_file(image, settings)
        from_host, shifter = options.host_libraries(mpi, fabric), runtime is not None
        checked = workflows.check.check_image(
            image, settings, from_host=from_host, lint_shifter=shifter, srun=srun
        )
    if json:
        print_json(checked.document())
    for section in checked.sections():
        print_messages(section.to_text(verbose=level() > 0), problem=section.status == "FAIL")
    for partition in checked.partitions:
        outcome = "may run" if partition.fits else f"cannot run: {'; '.join(partition.reasons)}"
        print_message(f"{partition.name}: {outcome}", problem=not partition.fits)
    print_message(_summary(checked), problem=not checked.passed)
    raise typer.Exit(0 if checked.passed else 4)


def _summary(checked: CheckedImage) -> str:
    preflight, runnable = checked.preflight, checked.runnable
    problems = len(preflight.problems)
    problems += sum(result.outcome == "incompatible" for result in checked.rule_results)
    problems += sum(result.status == "FAIL" for result in checked.others)
    unknown = sum(result.outcome == "unknown" for result in checked.rule_results)
    outcome = "passed" if checked.passed else f"failed: {pluralize(problems, 'problem')}"
    skipped = dict.fromkeys(check.id for check in checked.checks() if check.status == "SKIP")
    # A slow path without an error is one of these.
    outcome += f"; skipped: {', '.join(skipped)}" if skipped else ""
    lacking = f"; {unknown} rules lack facts (--json names them)" if unknown else ""
    digest = runnable.digest.removeprefix("sha256:")[:12]
    return (
        f"{runnable.name}/{runnable.version} ({digest}): {outcome}; {preflight.objects} ELF files,"
        f" {preflight.processes} processes in {checked.seconds:.1f} s{lacking}"
    )

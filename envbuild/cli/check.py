"""`envbuild check`: what an image would load and whether it fits its site, without running it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.members import finish_members, members_data
from envbuild.cli.output import columns, level, print_data, print_json, print_message, print_messages
from envbuild.cli.progress import session
from envbuild.errors import RequestError, pluralize

if TYPE_CHECKING:
    from envbuild.workflows.check import CheckedImage
    from envbuild.workflows.fit import SiteFit
    from envbuild.workflows.members import Members


def command(
    images: options.Images = None,
    root: options.ModuleRoot = None,
    every: options.EveryImage = None,
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
    """Simulate the loader over the image's layers, and judge what fits; exit code 4 for anything wrong.

    With --all, images are judged at the site by the facts that they carry, and none is simulated: which can
    run there, and why not. Exit code 4 if one can run in no partition, or cannot be read.
    """
    from_host, shifter = options.host_libraries(mpi, fabric), runtime is not None
    if every and (shifter or srun):
        raise RequestError("--all takes no --runtime and no --srun", hint="name one image")
    with session(json=json, store=store, site=site) as settings:
        named = workflows.images.named_images(settings, images or (), root=root, every=every or ())
        if every:
            fits = workflows.fit.judge_fits(named, settings, from_host)
        else:
            checked = named.each(
                lambda member, settings: workflows.check.check_image(
                    member.get().file(settings),
                    settings,
                    from_host=from_host,
                    lint_shifter=shifter,
                    srun=srun,
                ),
                settings,
                last=True,
            )
    if every:
        finish_fits(fits, json=json)
        return
    if checked.many:
        finish_members(
            checked,
            row=lambda image: ("PASS" if image.passed else "FAIL", _summary(image)),
            data=lambda image: image.document(),
            json=json,
            code=_code,
        )
        return
    _print_checked(checked.only, json=json)
    raise typer.Exit(_code(checked.only))


def _code(checked: CheckedImage) -> int:
    return 0 if checked.passed else 4


def _print_checked(checked: CheckedImage, *, json: bool) -> None:
    if json:
        print_json(checked.document())
    for section in checked.sections():
        print_messages(section.to_text(verbose=level() > 0), problem=section.status == "FAIL")
    for partition in checked.partitions:
        outcome = "may run" if partition.fits else f"cannot run: {'; '.join(partition.reasons)}"
        print_message(f"{partition.name}: {outcome}", problem=not partition.fits)
    print_message(_summary(checked), problem=not checked.passed)


def finish_fits(members: Members[SiteFit], *, json: bool) -> None:
    """Print images and verdicts, the worst first; exit code 4 if one cannot run or cannot be read."""
    verdicts = workflows.explain.VERDICTS
    if json:
        print_json(members_data(members, data=lambda fit: fit.document(), code=_fit_code))
    else:
        fits = [member.get() for member in members.items]
        rows = [
            (fit.verdict if number == 0 else "", fit.image.name if number == 0 else "", reason)
            for verdict in verdicts
            for fit in fits
            if fit.verdict == verdict and (verdict != "ok" or level() > 0)
            for number, reason in enumerate(fit.reasons or ("",))
        ]
        counts = Counter(fit.verdict for fit in fits)
        summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in verdicts if counts[verdict])
        print_data("\n".join([*([columns(rows)] if rows else []), summary or "no images"]))
    raise typer.Exit(members.exit_code(_fit_code))


def _fit_code(fit: SiteFit) -> int:
    return 4 if fit.verdict == "reject" or fit.image.problem else 0


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

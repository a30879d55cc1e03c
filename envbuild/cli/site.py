"""`envbuild site`: machines, described so that images fit them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import completion, options
from envbuild.cli.output import columns, print_data, print_json, print_message
from envbuild.cli.progress import session
from envbuild.errors import EnvbuildError, RequestError, raise_all

if TYPE_CHECKING:
    from envbuild.jobs.report import CheckResult

app = typer.Typer(
    help="Machines, described so that images fit them.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("ls")
def ls(json: options.Json = False) -> None:
    """List the sites that can be named."""
    listing = workflows.sites.list_sites()
    sites = [(loaded.value.name, loaded.value.summary, loaded.path) for loaded in listing.sites]
    if json:
        print_json([{"name": name, "summary": summary, "file": path} for name, summary, path in sites])
    elif sites:
        print_data(columns([(name, summary) for name, summary, _ in sites]))
    # After listing the readable ones.
    raise_all(listing.errors)


@app.command("show")
def show(
    site: Annotated[
        Path,
        typer.Argument(
            metavar="SITE",
            help="A name of `site ls`, or a file; behind a slash a partition.",
            autocompletion=completion.sites,
        ),
    ],
    json: options.Json = False,
) -> None:
    """Show a site file; --json adds the facts of it."""
    text, data = workflows.sites.show_site(site)
    if json:
        print_json(data)
    else:
        print_data(text)


@app.command("probe")
def probe(
    output: Annotated[
        Path | None, options.output("FILE", "Write it here; the stem becomes the name.")
    ] = None,
    mpi: Annotated[
        list[Path] | None,
        typer.Option("--mpi", metavar="DIR", help="Where an MPI is installed (repeatable)."),
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option(
            "--module", metavar="NAME", help="Load this module first: an MPI, or other software (repeatable)."
        ),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition", metavar="NAME", help="Probe a node of this partition by srun, too (repeatable)."
        ),
    ] = None,
    all_partitions: Annotated[
        bool, typer.Option("--all-partitions", help="Probe a node of each partition of Slurm.")
    ] = False,
    report: Annotated[
        list[Path] | None,
        typer.Option("--report", metavar="FILE", help="Merge what --json wrote on a node (repeatable)."),
    ] = None,
    account: options.Account = None,
    time: options.Time = None,
    slurm: Annotated[
        str | None,
        typer.Option("--slurm", metavar="WORDS", help='Further options of srun ("--qos=debug").'),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Write the facts of this node as JSON, for --report.")
    ] = False,
) -> None:
    """Draft a site file of what can be seen here, and on a compute node of each named partition.

    Exit code 4 if a partition reported nothing.
    """
    on_nodes = bool(partition or all_partitions or report)
    if json and (on_nodes or output is not None):
        hint = "leave --json out; the draft has the facts of all nodes"
        raise RequestError("--json writes the facts of this node alone", hint=hint)
    given = options.first_given(account=account, time=time, slurm=slurm)
    if given and not (partition or all_partitions):
        raise RequestError(f"{given} is for jobs on compute nodes", hint="add --partition NAME")
    errors: Sequence[EnvbuildError] = ()
    with session() as settings:
        if json:
            print_json(workflows.sites.report_node(mpi=mpi or (), modules=module or ()))
            return
        name = "here" if output is None else workflows.sites.name_of_output(output)
        if on_nodes:
            request = workflows.sites.ClusterRequest(
                partitions=tuple(partition or ()),
                all_partitions=all_partitions,
                reports=tuple(report or ()),
                options=tuple(workflows.nodes.option_words({"account": account, "time": time}, slurm)),
            )
            probed = workflows.sites.probe_cluster(
                request, name=name, mpi=mpi or (), modules=module or (), emit=settings.emit
            )
            draft, errors = probed.draft, probed.errors
        else:
            draft = workflows.sites.probe_machine(name=name, mpi=mpi or (), modules=module or ())
        if output is not None:
            workflows.sites.write_draft(draft, output)
    if output is None:
        print_data(draft.text())
    else:
        print_message(f"{output}: written")
    for error in errors:
        print_message(f"{error.problem}; {error.hint}", problem=True)
    raise typer.Exit(4 if errors else 0)


@app.command("check")
def check(
    site: Annotated[
        Path | None,
        typer.Argument(
            metavar="SITE",
            help="A name of `site ls`, or a file; behind a slash a partition; the machine's own if absent.",
            envvar="ENVBUILD_SITE",
            autocompletion=completion.sites,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Compare a site file with this machine.

    Exit code 4 if something differs.
    """
    with session(json=json):
        checked = workflows.sites.check_site(site)
    if json:
        data = {"file": checked.path, "site": checked.site, "holds": checked.holds}
        print_json({**data, "findings": checked.findings})
    else:
        for finding in checked.findings:
            print_data(format_difference(finding))
    outcome = "agrees with this machine" if checked.holds else "the machine differs"
    if checked.others:
        names = ", ".join(checked.others)
        print_message(f"note: compared what all partitions share; name one with a slash behind SITE: {names}")
    label = f"{checked.path} ({checked.site})" if "/" in checked.site else f"{checked.path}"
    print_message(f"{label}: {outcome}", problem=not checked.holds)
    raise typer.Exit(0 if checked.holds else 4)


def format_difference(finding: CheckResult) -> str:
    """Return one line."""
    kind = finding.id.removeprefix("site.")
    verb = "the machine has " if kind == "changed" else ""
    return f"{kind:<10}  {finding.subject}: {finding.expected}: {verb}{finding.observed}"

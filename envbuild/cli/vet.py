"""`envbuild vet`: find slow and broken nodes before a job does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import columns, print_data, print_json
from envbuild.cli.progress import session
from envbuild.errors import RequestError

if TYPE_CHECKING:
    from envbuild.launch.vet import Node, Vetting


def command(
    context: typer.Context,
    image: options.Image,
    nodes: options.Nodes = None,
    partition: options.Partition = None,
    account: options.Account = None,
    time: options.Time = None,
    slurm: options.SlurmOptions = None,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Measure nodes with one rank each, and name those to leave out; exit code 4 if there are any.

    Without --nodes it measures the nodes of the job that it runs in, or else this machine.
    """
    given = options.first_given(partition=partition, account=account, time=time, slurm=slurm)
    if given and nodes is None:
        raise RequestError(f"{given} is for a job on several nodes", hint="add --nodes N")
    with session(json=json, store=store, apptainer=apptainer, site=site) as settings:
        named, pinned = image, workflows.images.by_digest(image) if nodes else image
        image = workflows.images.image_file(pinned, settings)
        if nodes and workflows.nodes.must_submit(nodes):
            named_options = {"ntasks-per-node": 1, "partition": partition, "account": account, "time": time}
            raise typer.Exit(
                workflows.nodes.submit(
                    options.with_image(context.obj, named, pinned),
                    image,
                    settings,
                    nodes=nodes,
                    named_options=named_options,
                    options=slurm,
                )
            )
        vetting = workflows.nodes.vet_image(image, nodes, settings)
    if json:
        print_json(vetting.to_data())
    else:
        print_data(_text(vetting))
    raise typer.Exit(4 if vetting.bad else 0)


def _text(vetting: Vetting) -> str:
    named = vetting.columns
    rows = [[node.name, *map(node.shown, named)] for node in vetting.nodes]
    heading = ["node", *named.values()]
    if any(node.gpus for node in vetting.nodes):
        heading.append("GPUs")
        rows = [[*row, _gpus(node)] for row, node in zip(rows, vetting.nodes, strict=True)]
    table = columns([heading, *rows])
    names = ",".join(vetting.excluded)
    bad = f"bad: {','.join(vetting.bad) or 'none'}" + (f" (`srun --exclude={names}`)" if names else "")
    return "\n".join([table, *vetting.lines, f"good: {','.join(vetting.good) or 'none'}", bad])


def _gpus(node: Node) -> str:
    """Return ``2 (39 °C, 41 °C)``."""
    temperatures = ", ".join(
        f"{gpu['gpu_celsius']} °C" if "gpu_celsius" in gpu else "no answer" for gpu in node.gpus
    )
    return f"{len(node.gpus)} ({temperatures})" if node.gpus else "-"

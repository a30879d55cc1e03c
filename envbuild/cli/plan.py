"""`envbuild plan`: what a build would do, and why."""

from __future__ import annotations

from envbuild import workflows
from envbuild.cli.options import (
    CompressionOption,
    JsonOption,
    OfflineOption,
    RecipesOption,
    SiteOption,
    SpecArgument,
    StoreOption,
    UpstreamOption,
)
from envbuild.cli.output import print_data, print_json, print_message
from envbuild.cli.progress import session


def command(
    spec: SpecArgument,
    compression: CompressionOption = "zstd",
    offline: OfflineOption = False,
    store: StoreOption = None,
    upstream: UpstreamOption = None,
    recipes: RecipesOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Show the layers, their keys, what is cached or to build, and why. Changes nothing."""
    with session(json=json, store=store, recipes=recipes, site=site) as settings:
        shown = workflows.plan.show_plan(
            spec,
            settings,
            compression=compression,
            offline=offline,
            upstreams=tuple(upstream or ()),
        )
    if json:
        print_json(shown.to_data())
        return
    for change in shown.lock_changes:
        print_message(f"lock: {change}")
    width = max(len(row.name) for row in shown.rows)
    for row in shown.rows:
        print_data(f"{row.state:<8} {row.name:<{width}}  {row.key[7:19]}  {row.reason}".rstrip())
    print_message(f"image: {len(shown.image)} layers, {shown.image[0]} at the bottom")

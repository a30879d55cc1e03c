"""`envbuild plan`: what a build would do, and why."""

from __future__ import annotations

import json as json_text

from envbuild.cli.options import (
    Compression,
    CompressionOption,
    JsonOption,
    OfflineOption,
    RecipesOption,
    SiteOption,
    SpecArgument,
    StoreOption,
    UpstreamOption,
)
from envbuild.cli.streams import put, say


def command(
    spec: SpecArgument,
    compression: CompressionOption = Compression.ZSTD,
    offline: OfflineOption = False,
    store: StoreOption = None,
    upstream: UpstreamOption = None,
    recipes: RecipesOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Show the layers, their keys, what is cached or to build, and why. Changes nothing."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.plan import show_plan  # noqa: PLC0415
    from envbuild.workflows.settings import Settings  # noqa: PLC0415

    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=None, recipes=recipes, site=site, emit=emit)
        shown = show_plan(
            spec,
            settings,
            compression=compression.value,
            offline=offline,
            upstreams=tuple(upstream or ()),
        )
    if json:
        put(json_text.dumps(shown.to_data(), indent=2))
        return
    for change in shown.lock_changes:
        say(f"lock: {change}")
    width = max(len(row.name) for row in shown.rows)
    for row in shown.rows:
        put(f"{row.state:<8} {row.name:<{width}}  {row.key[7:19]}  {row.reason}".rstrip())
    say(f"image: {len(shown.image)} layers, {shown.image[0]} at the bottom")

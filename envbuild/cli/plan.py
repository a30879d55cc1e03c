"""`envbuild plan`: what a build would do, and why."""

from __future__ import annotations

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_data, print_json, print_message
from envbuild.cli.progress import session


def command(
    spec: options.Spec,
    compression: options.CompressedBy = "zstd",
    offline: options.Offline = False,
    store: options.Store = None,
    upstream: options.Upstream = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Show the layers, their keys, what is cached or to build, and why. Changes nothing."""
    with session(json=json, store=store, recipes=recipes, site=site) as settings:
        plan = workflows.plan.show_plan(
            spec, settings, compression=compression, offline=offline, upstreams=upstream or ()
        )
    if json:
        print_json(
            {
                "lock_changes": plan.lock_changes,
                "layers": plan.layers,
                "image": plan.image,
                "compatibility": [result.to_data() for result in plan.rule_results],
            }
        )
        return
    for change in plan.lock_changes:
        print_message(f"lock: {change}")
    width = max(len(layer.name) for layer in plan.layers)
    for layer in plan.layers:
        print_data(f"{layer.state:<8} {layer.name:<{width}}  {layer.key[7:19]}  {layer.reason}".rstrip())
    print_message(f"image: {len(plan.image)} layers, {plan.image[0]} at the bottom")

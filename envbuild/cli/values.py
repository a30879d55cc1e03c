"""What values of options and arguments may be completed to in a shell."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer


def recipes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return recipes that begin so."""
    return _beginning(incomplete, _recipes(ctx))


def frameworks(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return frameworks that begin so."""
    return _beginning(incomplete, _recipes(ctx, "framework"))


def mpis(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return MPIs that begin so, and the word for none."""
    return _beginning(incomplete, [*_recipes(ctx, "mpi"), "none"])


def fabrics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return libraries of the interconnect that begin so."""
    return _beginning(incomplete, _recipes(ctx, "fabric"))


def bases(incomplete: str) -> list[str]:
    """Return base images that begin so."""
    from envbuild.workflows.names import base_names  # noqa: PLC0415  # start-up time

    return _beginning(incomplete, base_names())


def sites(incomplete: str) -> list[str]:
    """Return sites that begin so; where there are none, the shell completes files."""
    from envbuild.workflows.names import site_names  # noqa: PLC0415  # start-up time

    return _beginning(incomplete, site_names())


def modules(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return modules of the root on the line that begin so: with their versions."""
    from envbuild.workflows.names import module_names  # noqa: PLC0415  # start-up time

    root = ctx.params.get("root")
    return _beginning(incomplete, module_names(Path(root))) if root else []


def _recipes(ctx: typer.Context, kind: str = "") -> list[str]:
    from envbuild.workflows.names import recipe_names  # noqa: PLC0415  # start-up time

    return recipe_names(kind, [Path(given) for given in ctx.params.get("recipes") or ()])


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]

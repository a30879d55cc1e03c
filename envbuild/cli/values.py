"""What values of options and arguments may be completed to in a shell."""

from __future__ import annotations


def recipes(incomplete: str) -> list[str]:
    """Return recipes that begin so."""
    from envbuild.workflows.names import recipe_names  # noqa: PLC0415  # start-up time

    return _beginning(incomplete, recipe_names())


def frameworks(incomplete: str) -> list[str]:
    """Return frameworks that begin so."""
    from envbuild.workflows.names import recipe_names  # noqa: PLC0415  # start-up time

    return _beginning(incomplete, recipe_names("framework"))


def mpis(incomplete: str) -> list[str]:
    """Return MPIs that begin so, and the word for none."""
    from envbuild.workflows.names import recipe_names  # noqa: PLC0415  # start-up time

    return _beginning(incomplete, [*recipe_names("mpi"), "none"])


def fabrics(incomplete: str) -> list[str]:
    """Return libraries of the interconnect that begin so."""
    from envbuild.workflows.names import recipe_names  # noqa: PLC0415  # start-up time

    return _beginning(incomplete, recipe_names("fabric"))


def bases(incomplete: str) -> list[str]:
    """Return base images that begin so."""
    from envbuild.workflows.names import base_names  # noqa: PLC0415  # start-up time

    return _beginning(incomplete, base_names())


def sites(incomplete: str) -> list[str]:
    """Return sites that begin so; where there are none, the shell completes files."""
    from envbuild.workflows.names import site_names  # noqa: PLC0415  # start-up time

    return _beginning(incomplete, site_names())


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]

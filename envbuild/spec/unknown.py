"""The errors for names that nothing has."""

from __future__ import annotations

from collections.abc import Sequence

from envbuild.errors import Location, RequestError, did_you_mean


def not_known(what: str, name: str, known: Sequence[str], at: Location | None) -> RequestError:
    """Return the error for a name that nothing has, with the nearest and all that could be named."""
    return _not_known(what, name, known, at, f"known: {', '.join(known)}")


def recipe_not_known(name: str, known: Sequence[str], at: Location | None = None) -> RequestError:
    """Return the error for a recipe that is not there; there are too many to name them all."""
    return _not_known("recipe", name, known, at, "`envbuild recipes ls` lists all")


def _not_known(what: str, name: str, known: Sequence[str], at: Location | None, listed: str) -> RequestError:
    words = [did_you_mean(name, known), listed if known else "none is known here"]
    return RequestError(f"unknown {what} `{name}`", at=at, hint=" ".join(word for word in words if word))

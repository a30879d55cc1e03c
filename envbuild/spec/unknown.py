"""The errors for names that nothing has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envbuild.errors import Location, RequestError, did_you_mean
from envbuild.spec.load import Loaded
from envbuild.spec.model import SPEC_KEYS, Choice, EnvSpec


def not_known(what: str, name: str, known: Sequence[str], at: Location | None) -> RequestError:
    """Return the error for a name that nothing has, with the nearest and all that could be named."""
    return _not_known(what, name, known, at, f"known: {', '.join(known)}")


def recipe_not_known(name: str, known: Sequence[str], at: Location | None = None) -> RequestError:
    """Return the error for a recipe that is not there; there are too many to name them all."""
    return _not_known("recipe", name, known, at, "`envbuild recipes ls` lists all")


def unknown_among_spared(spec: Loaded[EnvSpec], known: Sequence[str]) -> Iterator[RequestError]:
    """Yield the errors for recipes that nothing has in lists that have other mistakes."""
    for loc, entry in spec.spared.items():
        if loc[0] in SPEC_KEYS.values() and isinstance(entry, Choice) and entry.name not in known:
            yield recipe_not_known(entry.name, known, spec.at(*loc))


def _not_known(what: str, name: str, known: Sequence[str], at: Location | None, listed: str) -> RequestError:
    words = [did_you_mean(name, known), listed if known else "none is known here"]
    return RequestError(f"unknown {what} `{name}`", at=at, hint=" ".join(word for word in words if word))

"""The errors for names that nothing has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envbuild.errors import Location, RequestError, did_you_mean
from envbuild.spec.load import MAX_ERRORS, Loaded
from envbuild.spec.model import NAME, SPEC_KEYS, EnvSpec


def not_known(what: str, name: str, known: Sequence[str], at: Location | None) -> RequestError:
    """Return the error for a name that nothing has, with the nearest and all that could be named."""
    return _not_known(what, name, known, at, f"known: {', '.join(known)}")


def recipe_not_known(name: str, known: Sequence[str], at: Location | None = None) -> RequestError:
    """Return the error for a recipe that is not there; there are too many to name them all."""
    return _not_known("recipe", name, known, at, "`envbuild recipes ls` lists all")


def unknown_beside_errors(spec: Loaded[EnvSpec], known: Sequence[str]) -> Iterator[RequestError]:
    """Yield the errors for unknown recipes in lists that also have other errors."""
    for key in sorted(spec.invalid_keys & {*SPEC_KEYS.values()}):
        entries = spec.document.value.get(key)
        for index, entry in enumerate(entries[:MAX_ERRORS] if isinstance(entries, tuple) else ()):
            name = entry.partition("@")[0] if isinstance(entry, str) else ""
            if re.fullmatch(NAME, name) and name not in known:
                yield recipe_not_known(name, known, spec.at(key, index))


def _not_known(what: str, name: str, known: Sequence[str], at: Location | None, listed: str) -> RequestError:
    words = [did_you_mean(name, known), listed if known else "none is known here"]
    return RequestError(f"unknown {what} `{name}`", at=at, hint=" ".join(word for word in words if word))

"""Verdicts for people: what is refused, and what is warned of."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from envbuild.compat.engine import Verdict
from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.events import Emit, Warned


def tell_verdicts(
    verdicts: Iterable[Verdict],
    emit: Emit,
    *,
    place: Callable[[Verdict], Location | None] = lambda _: None,
    hint: Callable[[Verdict], str] = lambda verdict: verdict.hint,
) -> None:
    """Refuse what is incompatible, all of it at once, and warn of what people should know.

    Parameters
    ----------
    place : callable, optional
        Returns where a verdict can be mended; nowhere if absent.
    hint : callable, optional
        Returns what to do about a verdict; its own hint if absent.

    Raises
    ------
    RequestError, ManyErrors
        With the rule, the facts that clash and where each stands.
    """
    errors: list[EnvbuildError] = []
    for verdict in verdicts:
        if verdict.outcome == "incompatible":
            errors.append(RequestError(verdict.explained, at=place(verdict), hint=hint(verdict)))
        elif verdict.tell:
            emit(Warned(text=verdict.sentence, hint=hint(verdict)))
    raise_all(errors)

"""`envbuild explain`: which rules hold for a stack, and why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import escape, level, print_data, print_json
from envbuild.cli.progress import session
from envbuild.errors import pluralize, some

if TYPE_CHECKING:
    from envbuild.rules.judge import RuleResult
    from envbuild.workflows.explain import Explanation

_INDENT = " " * 9


def command(
    stack: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SPEC|IMAGE]", help="A spec, or an image: a file, or HOST/NAME:TAG in a registry."
        ),
    ] = None,
    facts: Annotated[
        Path | None, typer.Option("--facts", metavar="FILE", help="Facts of a stack instead: YAML or JSON.")
    ] = None,
    knowledge: Annotated[
        Path | None, typer.Option("--knowledge", metavar="FILE", help="Judge by the rows of this file, too.")
    ] = None,
    offline: options.Offline = False,
    store: options.Store = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Show which rules hold for a stack, from frameworks to driver; exit code 4 if one refuses it.

    Each link has its verdict, the facts with their origin, the source, and the smallest change that helps.
    """
    with session(json=json, store=store, recipes=recipes, site=site) as settings:
        explained = workflows.explain.explain(
            settings, stack=stack, facts=facts, knowledge=knowledge, offline=offline
        )
    if json:
        print_json(explained.document())
    else:
        print_data("\n".join(map(escape, _lines(explained, verbose=level() > 0))))
    raise typer.Exit(4 if explained.verdict == "reject" else 0)


def _lines(explained: Explanation, *, verbose: bool) -> Iterator[str]:
    lacking = []
    for result in explained.results:
        verdict = workflows.explain.verdict_of(result)
        if verdict == "unknown" and not workflows.explain.is_undecided(result) and not verbose:
            lacking.append(result)
        else:
            yield from _link(result, verdict)
    if lacking:
        names = some(explained.lacking, 6)
        yield f"unknown  {pluralize(len(lacking), 'rule')} (`-v` lists them), for want of: {names}"
    if explained.unread:
        yield f"not read {some(explained.unread, 20)}: not facts of envbuild"
        yield from (f"{_INDENT}{name}: {hint}" for name, hint in explained.hints.items())
    where = f" at {', '.join(explained.sites)}" if explained.sites else ""
    yield f"verdict: {explained.verdict}, {explained.subject}{where}"


def _link(result: RuleResult, verdict: str) -> Iterator[str]:
    name = f"{result.rule}/{result.subject}" if result.subject else result.rule
    yield f"{verdict:<7}  {name}: {result.partition_reason}"
    yield from (_INDENT + line for line in result.fact_lines)
    yield f"{_INDENT}source: {result.source}"
    if result.silenced and verdict == "ok":
        yield f"{_INDENT}silenced: {result.silenced}"
    if result.hint:
        yield f"{_INDENT}fix: {result.hint}"

"""The YAML text of a proposal."""

from __future__ import annotations

import yaml

from envbuild.importers.proposal import Proposal

_MAX_COMMENTS = 1000  # a spec has a limit, too


class _Dumper(yaml.SafeDumper):
    """Quotes all text that may be a number: versions of YAML disagree about `1e3` and `0o17`."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None if text[:1].isalpha() or text[:1] == "/" else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def proposal_text(proposal: Proposal, source: str, *, comments: bool) -> str:
    """Return the text of the spec; `comments` at its end hold the parts that it lacks or changes."""
    spec = yaml.dump(proposal.spec, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    lines = [f"# Proposed from {source}: check it, then run `envbuild lock`.\n", spec]
    notes = (
        [note for note in proposal.notes if note.outcome in ("changed", "unsupported")] if comments else []
    )
    if notes:
        lines.append(f"# Changed or not taken over from {source}:\n")
    for note in notes[:_MAX_COMMENTS]:
        lines.append(f"# line {note.line}: {note.outcome}: {note.text}\n#   {note.explanation}\n")
    if len(notes) > _MAX_COMMENTS:
        lines.append(f"# and {len(notes) - _MAX_COMMENTS} more\n")
    return "".join(lines)

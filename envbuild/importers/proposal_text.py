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


def proposal_text(proposal: Proposal, source: str) -> str:
    """Return the text of the spec; comments at its end hold the statements that it does not take over."""
    spec = yaml.dump(proposal.spec, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    lines = [f"# Proposed from {source}: check it, then run `envbuild lock`.\n", spec]
    unsupported = [note for note in proposal.notes if note.outcome == "unsupported"]
    if unsupported:
        lines.append(f"# Not taken over from {source}:\n")
    lines += [f"# line {note.line}: {note.text}\n#   {note.what}\n" for note in unsupported[:_MAX_COMMENTS]]
    if len(unsupported) > _MAX_COMMENTS:
        lines.append(f"# and {len(unsupported) - _MAX_COMMENTS} more\n")
    return "".join(lines)

"""A site file from what was seen of a machine: the same text for the same machine."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import yaml

from envbuild.site.probe import Probed

_WIDTH = 100
_HEAD = """\
# What `envbuild site probe` saw of this machine. Look it over: a fact that is wrong misleads every
# rule that asks for it; one that is left out is unknown, which is never shown as fine. The keys are
# explained in docs/sites.md.
"""
_DRAFTED = ("architecture", "glibc", "libstdcxx", "gpus", "scheduler", "mpi", "fabric", "runtimes", "modules")


class _Dumper(yaml.SafeDumper):
    """YAML as people write it: lists are set in below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002  # PyYAML's
        super().increase_indent(flow, False)


def draft(probed: Probed) -> str:
    """Return the text of a site file; what cannot be told is a comment that says why."""
    data = probed.site.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    lines = [_HEAD, _dumped("name", probed.site.name)]
    for key in _DRAFTED:
        lines.append("\n")
        lines += (_comment(text) for text in probed.remarks.get(key, ()))
        if key in data:
            lines.append(_dumped(key, data[key]))
        lines += _unknown(probed, key)
    lines.append("\n# Where the facts stand, and when they were read, for those who come after you.\n")
    lines.append("# sources: []\n# seen: YYYY-MM-DD\n")
    return "".join(lines)


def _unknown(probed: Probed, key: str) -> Iterator[str]:
    for name, why in probed.unknown.items():
        if name.partition(".")[0] == key:
            yield _comment(f"{name}: unknown: {why}")


def _dumped(key: str, value: object) -> str:
    return yaml.dump(
        {key: value},
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=_WIDTH,
    )


def _comment(text: str) -> str:
    wrapped = textwrap.wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in wrapped)

"""The libfabric that each release of NCCL's plug-in for libfabric needs: its release notes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from envbuild.rules.knowledge import Row
from knowledge.ranges import equal_runs, following, newest
from knowledge.stored import Input
from knowledge.write import new_row

INPUTS = ("ofi-plugin",)
_HEADING = re.compile(r"^# v([0-9.]+)(-aws)?\b", re.MULTILINE)
_LIBFABRIC = r"(?: at least)? \[(?:Libfabric )?v?([0-9]+\.[0-9]+\.[0-9]+)"
_OF_EFA = re.compile(rf"(?:platform-aws|AWS-specific support)(?: now)? requires{_LIBFABRIC}")
_OF_ALL = re.compile(rf"(?:plugin|release|which|that) requires{_LIBFABRIC}")


def extract(text: str) -> dict[str, Any]:
    """Return the oldest libfabric of each release, for EFA and for Slingshot (``cxi``); None for unknown."""
    parts = _HEADING.split(text)[1:]
    facts: dict[str, Any] = {"efa": {}, "cxi": {}}
    for version, aws, notes in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        line = " ".join(notes.split())
        of_efa, of_all = _OF_EFA.search(line), _OF_ALL.search(line)
        of_aws = of_efa or of_all
        facts["efa"][version] = of_aws[1] if of_aws else None
        facts["cxi"][version] = of_all[1] if of_all and not aws else None
    return facts


def rows(inputs: Mapping[str, Input]) -> Iterator[Row]:
    """Yield the oldest libfabric for each release and provider."""
    (source,) = (inputs[name] for name in INPUTS)
    for provider, floors in source.facts.items():
        for series, floor in equal_runs(floors):
            yield new_row(
                "FABRIC.libfabric-at-least-plugins",
                if_={
                    "fabric.provider": provider,
                    "fabric.plugin_version": f">={series.first},<={series.last}",
                },
                needs={"fabric.libfabric": f">={floor}"},
                reason=f"aws-ofi-nccl {series.words} needs a libfabric of at least {floor} for {provider}",
                source=source.origin,
                seen=source.date,
                fix="inject the host's libfabric together with the host's plug-in",
            )
        after = following(newest(floors))
        yield new_row(
            "FABRIC.libfabric-at-least-plugins",
            if_={"fabric.provider": provider, "fabric.plugin_version": f">={after}"},
            needs={"fabric.libfabric": "?"},
            reason=f"which libfabric aws-ofi-nccl {after} and newer needs for {provider} has not been read",
            source=source.origin,
            seen=source.date,
            fix="inject the host's libfabric together with the host's plug-in",
        )

"""The predicates that rules are made of: what is compared with what, and what cannot be told."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packaging.specifiers import SpecifierSet

from envbuild.compat.rules import version_of

# True, False, or None for what cannot be told.
Truth = bool | None


def _compared(compare: Callable[[Any, Any], bool]) -> Callable[[str, Sequence[str]], Truth]:
    def judge(fact: str, others: Sequence[str]) -> Truth:
        mine = version_of(fact)
        theirs = [version_of(other) for other in others]
        if mine is None or not theirs or None in theirs:
            return None
        return all(compare(mine, other) for other in theirs)

    return judge


def _same_series(fact: str, others: Sequence[str]) -> Truth:
    mine = version_of(fact)
    theirs = [version_of(other) for other in others]
    if mine is None or not theirs or None in theirs:
        return None
    return all((mine.major, mine.minor) == (one.major, one.minor) for one in theirs if one is not None)


def _admitted(fact: str, ranges: Sequence[str]) -> Truth:
    version = version_of(fact)
    if version is None or not ranges:
        return None
    return all(SpecifierSet(one).contains(version, prereleases=True) for one in ranges)


def _run_code(gpus: Sequence[str], code: Sequence[str]) -> Truth:
    """Whether every GPU runs some of the code; None where only PTX is left, which the driver compiles.

    A binary of CUDA runs on GPUs of its major and of no lower minor, one of
    ROCm on its own target alone.
    """
    verdicts = [_runs(gpu, code) for gpu in gpus]
    return False if False in verdicts else None if None in verdicts or not verdicts else True


def _runs(gpu: str, code: Sequence[str]) -> Truth:
    if gpu in code:
        return True
    mine = _compute_capability(gpu)
    if mine is None:
        # Code for a family of AMD's (`gfx9-4-generic`) runs on GPUs that its name does not tell.
        amd = gpu.startswith("gfx") and not any(one.endswith("-generic") for one in code)
        return False if amd else None
    # `sm_90a` is for that very GPU, which sites call `sm_90`; `sm_100f` for it and its family's later ones.
    if f"{gpu}a" in code:
        return True
    binaries = [_compute_capability(one) for one in code if re.fullmatch(r"sm_[0-9]+f?", one)]
    if any(one is not None and one[0] == mine[0] and one[1] <= mine[1] for one in binaries):
        return True
    ptx = [_compute_capability(one) for one in code if re.fullmatch(r"compute_[0-9]+", one)]
    return None if any(one is not None and one <= mine for one in ptx) else False


def _compute_capability(name: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"(?:sm|compute)_([0-9]+)([0-9])[af]?", name)
    return (int(found[1]), int(found[2])) if found else None


# Predicate → its judgement of a fact and the operand's texts.
COMPARISONS: Mapping[str, Callable[[Any, Sequence[str]], Truth]] = {
    "one_of": lambda fact, others: fact in others,
    "none_of": lambda fact, others: fact not in others,
    "at_least": _compared(lambda mine, other: mine >= other),
    "at_most": _compared(lambda mine, other: mine <= other),
    "same_series": _same_series,
    "admitted_by": _admitted,
    "subset_of": lambda fact, others: set(fact) <= set(others),
    "intersects": lambda fact, others: bool(set(fact) & set(others)),
    "disjoint": lambda fact, others: not set(fact) & set(others),
    "may_intersect": lambda fact, others: None if set(fact) & set(others) else False,
    "run_code_for": _run_code,
}

# Predicate → its judgement of a fact and of what the rule itself gives.
TESTS: Mapping[str, Callable[[Any, Any], Truth]] = {
    "is_": lambda fact, wanted: fact == wanted,
    "is_true": lambda fact, wanted: fact is wanted,
    "is_empty": lambda fact, wanted: (not fact) is wanted,
    "version": lambda fact, wanted: _admitted(fact, [wanted]),
    "all_equal": lambda fact, _: len(set(fact)) <= 1,
}

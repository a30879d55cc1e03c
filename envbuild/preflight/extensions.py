"""Extension modules that the image's Python does not take for its own. Pure.

Source: PEP 3149 (tags of extension modules), PEP 384 (``abi3``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from envbuild.preflight.problems import Problem
from envbuild.preflight.tree import ImageTree

_TAGGED = re.compile(r".+?\.(?:[^/]+\.)?(cpython-[0-9]+[a-z]*|pypy[0-9]+|abi3)(?:-[^/.]+)*\.so")


def foreign_extensions(tree: ImageTree, places: Collection[str], python: str) -> Iterator[Problem]:
    """Yield a problem for each module of which no variant is for the image's Python.

    Parameters
    ----------
    places : collection of str
        Directories of packages, such as ``/opt/env/lib/python3.11/site-packages``.
    python : str
        The version of the image's Python (``3.11``).
    """
    ours = _ours(python)
    tags: dict[str, dict[str, str]] = {}
    for path, _ in tree.objects():
        if not path.startswith(tuple(f"{place}/" for place in places)):
            continue
        directory, _, name = path.rpartition("/")
        tagged = _TAGGED.fullmatch(name)
        # Of one module there may be variants, for several Pythons and for several MPIs.
        tags.setdefault(f"{directory}/{name.partition('.')[0]}", {})[path] = tagged[1] if tagged else ""
    for variants in tags.values():
        if all(tag not in ours for tag in variants.values()):
            path, tag = min(variants.items())
            yield Problem(
                rule="python.abi",
                file=path,
                need=tag,
                winner=f"Python {python}",
                hint="it cannot be imported: take a wheel for this Python, or have it built from its source",
            )


def _ours(python: str) -> set[str]:
    """Return the tags that a Python imports; what has none it takes as well."""
    tag = f"cpython-{python.replace('.', '')}"
    # Until 3.7 a letter told of the allocator.
    return {"", tag, f"{tag}m"} | ({"abi3"} if python.startswith("3.") else set())

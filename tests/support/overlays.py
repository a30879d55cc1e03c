"""Layers over one another, and a model of what overlayfs shows of them."""

from hypothesis import strategies as st

NAMES = (b"a", b"b", b"a/a", b"a/b", b"a/a/a", b"b/a")


@st.composite
def trees(draw: st.DrawFn) -> dict[bytes, str]:
    """One layer: path → ``d``, ``o`` (opaque), ``f`` or ``w``, each in a directory of its own layer."""
    tree: dict[bytes, str] = {b"/": "d"}
    for name in NAMES:
        parent = name.rpartition(b"/")[0] or b"/"
        if tree.get(parent) in ("d", "o"):
            kind = draw(st.sampled_from(["d", "o", "f", "w", ""]))
            if kind:
                tree[name] = kind
    return tree


def overlay(trees: list[dict[bytes, str]]) -> dict[bytes, tuple[int, str]]:
    """What overlayfs shows, the naive way: lay one layer after the other over the result."""
    result: dict[bytes, tuple[int, str]] = {}
    for number, tree in enumerate(trees):
        for path, kind in sorted(tree.items()):
            if kind != "d" or result.get(path, (0, "f"))[1] != "d":
                for gone in [held for held in result if held == path or held.startswith(path + b"/")]:
                    del result[gone]
            if kind != "w":
                result[path] = (number, "d" if kind == "o" else kind)
    return result

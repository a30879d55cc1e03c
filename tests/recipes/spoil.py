"""Negative controls: each spoils a copy of a shipped job in one way, and the judge must see it.

The shipped jobs know nothing of this: no hook that could weaken them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).resolve().parents[2] / "recipes"

SINGLETONS = """\
import os
for name in list(os.environ):
    if name.startswith(("PMI", "OMPI")):
        del os.environ[name]
"""

# Alone, and each with an address of its own to publish: the ranks share a directory of results.
RECLUSES = (
    SINGLETONS
    + """\
import envbuild_job, pathlib, tempfile
own = pathlib.Path(tempfile.mkdtemp())
envbuild_job.publish = lambda name, text: (own / name).write_text(text)
envbuild_job.await_published = lambda name, **_: (own / name).read_text()
"""
)


@dataclass(frozen=True, kw_only=True)
class Control:
    """A spoiled job.

    Attributes
    ----------
    changes : tuple of (str, str)
        Text that stands once in the job → what stands there instead.
    before : str
        What runs before the job's own text.
    fails : tuple of str
        Ids of findings that must fail; others may fail too.
    """

    name: str
    recipe: str
    file: str
    fails: tuple[str, ...]
    changes: tuple[tuple[str, str], ...] = ()
    before: str = ""

    def text(self) -> str:
        """Return the spoiled job."""
        text = (RECIPES / self.recipe / "verify" / self.file).read_text()
        for old, new in self.changes:
            assert text.count(old) == 1, f"{self.name}: `{old}` stands {text.count(old)} times in {self.file}"
            text = text.replace(old, new)
        return self.before + text


def control(
    recipe: str, stem: str, name: str, fails: str, *changes: tuple[str, str], before: str = ""
) -> Control:
    """Return a control of the job in `stem`.py; `fails` holds ids of findings, with spaces between."""
    return Control(
        name=f"{recipe}/{stem}: {name}",
        recipe=recipe,
        file=f"{stem}.py",
        fails=tuple(fails.split()),
        changes=changes,
        before=before,
    )

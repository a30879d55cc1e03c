"""Negative controls of a recipe: spoiled copies of its jobs, which the judge must see."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from envbuild.spec.fields import Format
from envbuild.spec.model import Model, Name, Text, full_match
from envbuild.spec.recipe import JobFile

FailingCheck = Annotated[
    str, full_match(r"(D0/)?[A-Z][0-9]+(\.[a-z0-9-]+)?(/[A-Za-z0-9_.:-]+)?", "a check, such as `D2.ddp/sum`")
]


class Change(Model):
    """One change to a job.

    Attributes
    ----------
    this : str
        Text that stands exactly once in the job.
    becomes : str
        What stands there instead.
    """

    this: Annotated[str, Field(min_length=1)]
    becomes: str


class Control(Model):
    """A job that is spoiled in one way.

    Attributes
    ----------
    name : str
        What is wrong with it, unique among the job's controls.
    job : str
        The file under ``verify/`` that is spoiled.
    fails : tuple of str
        Findings that must fail (``D2.ddp/sum``, ``D0/D2.ddp``); others may fail too.
    needs : tuple of str
        Recipes without which it spoils nothing: it is for images that hold them all.
    alone : str or None
        ``singletons``: each rank believes that it is alone. ``recluses``: nor
        does it hear what the others publish.
    before : str
        What runs before the job's own text.
    changes : tuple of Change
        Made one after the other.
    """

    name: Text
    job: JobFile
    fails: Annotated[tuple[FailingCheck, ...], Field(min_length=1)]
    needs: tuple[Name, ...] = ()
    alone: Literal["singletons", "recluses"] | None = None
    before: str = ""
    changes: tuple[Change, ...] = ()

    def changed(self, text: str) -> str:
        """Return the job's text with all changes made.

        Raises
        ------
        ValueError
            What is to be changed does not stand there exactly once.
        """
        for change in self.changes:
            times = text.count(change.this)
            if times != 1:
                raise ValueError(f"`{change.this}` stands {times} times in {self.job}, not once")
            text = text.replace(change.this, change.becomes)
        return text


class Controls(Model):
    """The file ``controls.yaml`` of a recipe: spoiled copies of its jobs, which the judge must see.

    Attributes
    ----------
    schema_ : int
        The format of the file; 1, the only one so far.
    controls : tuple of Control
        One for each way in which a job can be wrong; every value that is
        judged needs one that fails it.
    """

    schema_: Annotated[Format, Field(alias="schema")] = 1
    controls: tuple[Control, ...]

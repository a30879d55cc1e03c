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
    """One change to a job."""

    this: Annotated[str, Field(min_length=1)]
    """Text that occurs exactly once in the job."""
    becomes: str
    """Text to replace it with."""


class Control(Model):
    """A job with one deliberate error."""

    name: Text
    """The error, unique among the job's controls."""
    job: JobFile
    """File under ``verify/`` to change."""
    fails: Annotated[tuple[FailingCheck, ...], Field(min_length=1)]
    """Findings that must fail (``D2.ddp/sum``, ``D0/D2.ddp``); others may fail too."""
    needs: tuple[Name, ...] = ()
    """Recipes that the image must also contain for this control."""
    alone: Literal["singletons", "recluses"] | None = None
    """``singletons``: each rank believes that it is alone. ``recluses``: nor does it receive what the others
    publish."""
    before: str = ""
    """Code to run before the job."""
    changes: tuple[Change, ...] = ()
    """Changes to the job, in order."""

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
    """The file ``controls.yaml`` of a recipe: jobs with deliberate errors, which must fail."""

    schema_: Annotated[Format, Field(alias="schema")] = 1
    """Format of the file: 1."""
    controls: tuple[Control, ...]
    """One for each possible error of a job; every judged value needs one that makes it fail."""

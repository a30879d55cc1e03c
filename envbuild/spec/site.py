"""What belongs to a centre or a machine and never to a spec: the model of a site."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from envbuild.spec.fields import Address, Format, WheelPlace
from envbuild.spec.model import BindTarget, ImagePath, Model, Name, Origin, Text


class SiteBind(Model):
    """A host path that every start of an image binds."""

    source: ImagePath
    target: BindTarget
    writable: bool = False


class Site(Model):
    """What belongs to a centre or a machine and never to a spec.

    Attributes
    ----------
    origins : dict of str to tuple of str
        Logical origin → addresses to ask, in order (``https://…``,
        ``file:///…``). An index for Python, an archive for Debian.
    find_links : tuple of str
        Directories or pages with wheels.
    binds : tuple of SiteBind
        Host paths that wrappers bind.
    """

    schema_: Annotated[Format, Field(alias="schema")] = 1
    name: Name
    summary: Text = ""
    origins: dict[Origin, tuple[Address, ...]] = {}
    find_links: tuple[WheelPlace, ...] = ()
    binds: tuple[SiteBind, ...] = ()

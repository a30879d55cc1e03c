"""The stores of other accounts from which a run takes layers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from envbuild.errors import EnvbuildError, RequestError
from envbuild.events import Warned
from envbuild.inputs.sites import read_upstreams
from envbuild.spec.site import SiteUpstream
from envbuild.store.store import Store
from envbuild.store.upstream import Upstream
from envbuild.system import host
from envbuild.workflows.settings import Settings


def with_upstreams(settings: Settings, given: Sequence[Path] = ()) -> Settings:
    """Return settings whose store also takes layers from upstreams: `given` ones, then those of site files.

    A given store must belong to the user or to root, and be usable. An unusable upstream of a ``site.yaml``
    is only a warning: it may not be mounted here.
    """
    upstreams = [Upstream(path.absolute(), (os.geteuid(), 0)) for path in given]
    for upstream in read_upstreams():
        try:
            upstreams.append(Upstream(Path(upstream.path), [owner_of(upstream)]))
        except EnvbuildError as error:
            settings.emit(Warned(text=f"an upstream is not used: {error.problem}", hint=error.hint or ""))
    return replace(settings, store=Store(settings.store.path, upstreams))


def owner_of(upstream: SiteUpstream) -> int:
    """Return the user id of an upstream's owner; RequestError if this machine has no such account."""
    owner = host.user_id(upstream.owner)
    if owner is None:
        raise RequestError(
            f"the owner of the upstream store `{upstream.path}` is not an account here: `{upstream.owner}`",
            hint="correct `owner` in site.yaml",
        )
    return owner


def trusted_owners() -> set[int]:
    """Return the user ids whose layers are trusted: the user, root, and the owners of upstreams."""
    owners = {os.geteuid(), 0}
    for upstream in read_upstreams():
        with contextlib.suppress(RequestError):
            owners.add(owner_of(upstream))
    return owners

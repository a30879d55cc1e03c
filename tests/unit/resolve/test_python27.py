"""Requests on a base whose Python is 2.7: each names one version."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.files import FileCache
from envbuild.resolve.origins import Machine
from envbuild.resolve.python27 import Python27
from envbuild.spec.base import BasePython
from tests.support.resolved_specs import base_image, resolved

PYTHON27 = BasePython(version="2.7", abi="cp27mu")


@pytest.fixture
def resolver() -> Python27:
    context = ResolveContext(
        machine=Machine(), cache_dir=Path("cache"), files=FileCache(Path("files")), emit=lambda event: None
    )
    return Python27(resolved(base=base_image(python=PYTHON27, glibc="2.31")), context)


def test_exactly_the_named_versions_are_taken(resolver: Python27) -> None:
    wanted = ["NumPy==1.16.6", "numpy==1.16.6", "enum34==1.1.10", "dataclasses==0.8; python_version >= '3'"]
    resolved = resolver.resolve(wanted, keep={"numpy": "1.0"})
    assert {entry.name: entry.version for entry in resolved} == {"numpy": "1.16.6", "enum34": "1.1.10"}


@pytest.mark.parametrize("text", ["numpy", "numpy>=1.16", "numpy==1.16.*", "numpy==1.16.6,!=1.16.5"])
def test_anything_less_is_refused(resolver: Python27, text: str) -> None:
    with pytest.raises(RequestError, match="is not of the form `name==version`"):
        resolver.resolve([text], keep={})


def test_two_versions_contradict_each_other(resolver: Python27) -> None:
    with pytest.raises(RequestError, match=r"`numpy` is to be 1\.16\.6 and 1\.16\.5"):
        resolver.resolve(["numpy==1.16.6", "numpy==1.16.5"], keep={})

"""Requests on a base whose Python is 2.7: each names one version."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import Location, RequestError
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.files import FileCache
from envbuild.resolve.origins import Machine, PythonSources
from envbuild.resolve.python27 import Python27
from envbuild.spec.base import BasePython
from envbuild.spec.requirements import RequirementEntry
from tests.support.resolved_specs import base_image, resolved

PYTHON27 = BasePython(version="2.7", abi="cp27mu")


@pytest.fixture
def resolver() -> Python27:
    context = ResolveContext(
        machine=Machine(), cache_dir=Path("cache"), files=FileCache(Path("files")), emit=lambda event: None
    )
    request = resolved(base=base_image(python=PYTHON27, glibc="2.31")).python
    return Python27(request, PythonSources(), context)


def entries(*texts: str) -> list[RequirementEntry]:
    return [RequirementEntry(text=text, at=Location(path=Path("spec.yaml"))) for text in texts]


def test_exactly_the_named_versions_are_taken(resolver: Python27) -> None:
    wanted = ["NumPy==1.16.6", "numpy==1.16.6", "enum34==1.1.10", "dataclasses==0.8; python_version >= '3'"]
    resolved = resolver.resolve(entries(*wanted), preferred_versions={"numpy": "1.0"})
    assert resolved.versions == {"numpy": "1.16.6", "enum34": "1.1.10"}


@pytest.mark.parametrize("text", ["numpy", "numpy>=1.16", "numpy==1.16.*", "numpy==1.16.6,!=1.16.5"])
def test_anything_less_is_refused(resolver: Python27, text: str) -> None:
    with pytest.raises(RequestError, match="is not of the form `name==version`"):
        resolver.resolve(entries(text), preferred_versions={})


def test_two_versions_contradict_each_other(resolver: Python27) -> None:
    with pytest.raises(RequestError, match=r"`numpy` is to be 1\.16\.6 and 1\.16\.5"):
        resolver.resolve(entries("numpy==1.16.6", "numpy==1.16.5"), preferred_versions={})

"""Finding the wheels of exact versions, for a Python that uv does not know."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.events import Event
from envbuild.resolve.exact import Finder
from envbuild.resolve.origins import PythonSources
from envbuild.spec.base import BasePython
from envbuild.system import network
from tests.support.asking import asked, base_image

PYTHON2 = BasePython(version="2.7", abi="cp27mu", packages=("python2.7",))
WHEEL = "numpy-1.16.6-cp27-cp27mu-manylinux1_x86_64.whl"
INDEX = "https://index.example.org/simple"


class Pages(network.Client):
    """Answers from a table instead of the network."""

    def __init__(self, pages: Mapping[str, network.Page]) -> None:
        self.pages = pages

    def page(self, address: str, *, accept: str) -> network.Page:
        assert "application/vnd.pypi.simple.v1+json" in accept
        if address not in self.pages:
            raise network.NetworkError("not there", gone="lost" not in address)
        return self.pages[address]


def finder(
    *,
    pages: Mapping[str, network.Page] | None = None,
    told: list[Event] | None = None,
    offline: bool = False,
    **sources: object,
) -> Finder:
    what = asked(base=base_image(python=PYTHON2, glibc="2.31"))
    places = PythonSources(**{"named": {}, "indexes": (INDEX,), **sources})  # type: ignore[arg-type]
    emit = (told if told is not None else []).append
    return Finder(asked=what, sources=places, client=Pages(pages or {}), emit=emit, offline=offline)


def listing(*files: str, address: str = f"{INDEX}/numpy/", size: int | None = 7) -> network.Page:
    entries = [
        {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": "a" * 64}, "size": size}
        for name in files
    ]
    data = {"meta": {"api-version": "1.1"}, "name": "numpy", "versions": ["1.16.6"], "files": entries}
    kind = "application/vnd.pypi.simple.v1+json; charset=utf-8"
    return network.Page(address=address, content=json.dumps(data).encode(), kind=kind)


def test_what_is_named_exactly_is_what_is_taken() -> None:
    wanted = ["NumPy==1.16.6", "numpy==1.16.6", "enum34==1.1.10", "dataclasses==0.8; python_version >= '3'"]
    found = finder().resolve(wanted, keep={"numpy": "1.0"})
    assert {entry.name: entry.version for entry in found} == {"numpy": "1.16.6", "enum34": "1.1.10"}


@pytest.mark.parametrize("text", ["numpy", "numpy>=1.16", "numpy==1.16.*", "numpy==1.16.6,!=1.16.5"])
def test_anything_less_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="is not of the form `name==version`"):
        finder().resolve([text], keep={})


def test_two_versions_contradict_each_other() -> None:
    with pytest.raises(RequestError, match=r"`numpy` is to be 1\.16\.6 and 1\.16\.5"):
        finder().resolve(["numpy==1.16.6", "numpy==1.16.5"], keep={})


def test_a_page_in_json() -> None:
    page = listing(WHEEL, "numpy-1.16.5-cp27-cp27mu-manylinux1_x86_64.whl", "numpy-1.16.6.zip", "odd.whl")
    it = finder(pages={f"{INDEX}/numpy/": page})
    ((offer,),) = it.locate({"numpy": "1.16.6"}).values()
    assert (offer.file, offer.sha256, offer.size_bytes) == (WHEEL, "a" * 64, 7)
    assert offer.address == f"https://index.example.org/files/{WHEEL}"
    (entry,) = it.resolve(["numpy==1.16.6"], keep={})
    assert it.origin(entry, offer.address) == "pypi"


def test_a_page_in_html_without_lengths_and_one_link_without_a_digest() -> None:
    html = f'<a href="/f/{WHEEL}#sha256={"b" * 64}">{WHEEL}</a><a href="/f/{WHEEL}">{WHEEL}</a>'
    page = network.Page(address=f"{INDEX}/numpy/", content=html.encode(), kind="text/html")
    ((offer,),) = finder(pages={f"{INDEX}/numpy/": page}).locate({"numpy": "1.16.6"}).values()
    assert (offer.sha256, offer.size_bytes) == ("b" * 64, None)


def test_a_page_that_is_none_is_told() -> None:
    page = network.Page(address=INDEX, content=b"{}", kind="application/vnd.pypi.simple.v1+json")
    with pytest.raises(MachineError, match="is no page of an index"):
        finder(pages={f"{INDEX}/numpy/": page}).locate({"numpy": "1.16.6"})


def test_a_directory_with_wheels(tmp_path: Path) -> None:
    (tmp_path / WHEEL).write_bytes(b"content")
    (tmp_path / "numpy-1.16.5-py2-none-any.whl").touch()
    it = finder(find_links=(str(tmp_path),), offline=True)
    ((offer,),) = it.locate({"numpy": "1.16.6"}).values()
    assert (offer.sha256, offer.size_bytes) == (hashlib.sha256(b"content").hexdigest(), 7)
    (entry,) = it.resolve(["numpy==1.16.6"], keep={})
    assert it.origin(entry, offer.address) == "find-links"


def test_an_index_in_a_directory(tmp_path: Path) -> None:
    page = tmp_path / "numpy/index.html"
    page.parent.mkdir()
    page.write_text(f'<a href="{WHEEL}#sha256={"c" * 64}">{WHEEL}</a>')
    ((offer,),) = finder(indexes=(tmp_path.as_uri(),)).locate({"numpy": "1.16.6"}).values()
    assert offer.address == (tmp_path / "numpy" / WHEEL).as_uri()


def test_credentials_of_an_index_are_for_its_own_files_alone() -> None:
    secret = "https://me:pw@index.example.org/simple"
    pages = {f"{secret}/numpy/": listing(WHEEL), f"{secret}/enum34/": listing()}
    ((offer,),) = finder(pages=pages, indexes=(secret,)).locate({"numpy": "1.16.6"}).values()
    assert offer.address == f"https://me:pw@index.example.org/files/{WHEEL}"
    elsewhere = {f"{secret}/numpy/": listing(WHEEL, address="https://files.example.org/a/b/")}
    ((offer,),) = finder(pages=elsewhere, indexes=(secret,)).locate({"numpy": "1.16.6"}).values()
    assert "pw" not in offer.address


def test_all_that_is_nowhere_is_named_at_once() -> None:
    with pytest.raises(EnvbuildError) as caught:
        finder().locate({"numpy": "1.16.6", "enum34": "1.1.10"})
    assert [error.problem for error in caught.value.each()] == [
        "no origin has a wheel of enum34 1.1.10",
        "no origin has a wheel of numpy 1.16.6",
    ]


def test_an_index_that_does_not_answer_is_told_and_left_out() -> None:
    told: list[Event] = []
    lost = "https://lost.example.org"
    pages = {f"{INDEX}/numpy/": listing(WHEEL)}
    assert finder(pages=pages, told=told, indexes=(lost, INDEX)).locate({"numpy": "1.16.6"})
    assert len(told) == 1


def test_without_network_nobody_is_asked() -> None:
    pages = {f"{INDEX}/numpy/": listing(WHEEL)}
    with pytest.raises(EnvbuildError):
        finder(pages=pages, offline=True).locate({"numpy": "1.16.6"})
    with pytest.raises(EnvbuildError):
        finder(pages=pages, no_index=True).locate({"numpy": "1.16.6"})


def test_who_does_not_answer_may_have_it(tmp_path: Path) -> None:
    lost = finder(indexes=("https://lost.example.org/simple",))
    with pytest.raises(MachineError, match="not there"):
        lost.locate({"numpy": "1.16.6"})
    (tmp_path / WHEEL).write_bytes(b"")
    here = finder(indexes=("https://lost.example.org/simple",), find_links=(str(tmp_path),))
    assert [offer.file for offer in here.locate({"numpy": "1.16.6"})["numpy"]] == [WHEEL]


def test_an_index_of_another_age_is_told() -> None:
    page = listing(WHEEL)
    newer = json.loads(page.content)
    newer["meta"]["api-version"] = "2.0"
    pages = {
        page.address: network.Page(address=page.address, content=json.dumps(newer).encode(), kind=page.kind)
    }
    with pytest.raises(MachineError, match="no page of an index"):
        finder(pages=pages).locate({"numpy": "1.16.6"})

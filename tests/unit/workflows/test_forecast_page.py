"""The page of a forecast: one file, everything escaped, nothing that is fetched or run."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.rules.facts import Fact
from envbuild.rules.judge import RuleResult
from envbuild.rules.repair import Repair
from envbuild.store.store import Store
from envbuild.workflows.forecast import Forecast, KnownImage, Outlook
from envbuild.workflows.forecast_page import forecast_page, write_page
from envbuild.workflows.pages import check_page, html
from envbuild.workflows.settings import Settings

HOSTILE = "<script>alert(1)</script>&\"'`x`\u202e\x1b[31m"


def result(text: str) -> RuleResult:
    return RuleResult(
        rule="CUDA.driver-floor",
        title="t",
        outcome="incompatible",
        facts={"driver.version": Fact("575", "site:a")},
        missing=(),
        reason=text,
        hint=text,
        source=text,
    )


def forecast_of(text: str) -> Forecast:
    broken = Outlook(
        partition=f"here/{text}",
        state="breaks",
        results=(result(text),),
        repair=Repair(release="older", layers=("accelerator", f"framework {text}")),
    )
    unread = KnownImage(name=text, path=Path("b.sif"), problem=text)
    return Forecast(
        site=text,
        changes={"driver.version": (text, text)},
        images=(
            (
                KnownImage(name=text, path=Path("a.sif"), facts={}),
                (broken, replace(broken, partition="here/other")),
            ),
            (unread, (Outlook(partition="here", state="unknown"),)),
            (KnownImage(name="c", path=Path("c.sif"), facts={}), (Outlook(partition="here", state="holds"),)),
        ),
    )


class Reader(HTMLParser):
    """Collects elements, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_has_no_script_and_no_request() -> None:
    for text in ("a", HOSTILE):
        page = html(forecast_page(forecast_of(text)))
        read = Reader(page)
        assert not read.elements & {"script", "img", "link", "iframe", "object", "embed", "a", "form", "base"}
        assert not read.attributes & {"src", "href", "style", "srcset", "action"}
        assert not {name for name in read.attributes if name.startswith("on")}
        assert "url(" not in page
        assert "@import" not in page
        assert "default-src 'none'" in page


def test_every_text_is_escaped() -> None:
    plain, hostile = (Reader(html(forecast_page(forecast_of(text)))) for text in ("a", HOSTILE))
    # What is in backquotes is code.
    assert hostile.elements - plain.elements <= {"code"}
    assert hostile.attributes == plain.attributes
    page = html(forecast_page(forecast_of(HOSTILE)))
    assert "<script>" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 12
    assert not {"\u202e", "\x1b"} & {*page}


def test_the_page_says_what_the_forecast_says() -> None:
    texts = " ".join(" ".join(Reader(html(forecast_page(forecast_of("gpu")))).texts).split())
    for words in (
        "Forecast for gpu",
        "Breaks: 1 image (here/gpu 1, here/other 1)",
        "Unknown: 1 image (here 1)",
        "Holds: 1 image (here 1)",
        "CUDA.driver-floor: gpu",
        "Fix: gpu",
        "Source: gpu",
        "Repair: an older release in the spec, and envbuild build SPEC",
        "Layers that change: accelerator, framework gpu",
    ):
        assert words in texts
    assert texts.index("CUDA.driver-floor") < texts.index("The facts do not say")
    # What is the same in several partitions is said once.
    assert texts.count("CUDA.driver-floor: gpu") == 1


def test_the_same_forecast_gives_the_same_page(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_page(tmp_path / name, forecast_of("gpu"))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_page_replaces_a_page_and_nothing_else(tmp_path: Path) -> None:
    settings = Settings(store=Store(tmp_path / "store"))
    path = tmp_path / "page.html"
    check_page(path, settings)
    write_page(path, forecast_of("gpu"))
    check_page(path, settings)
    path.write_text("notes of mine")
    with pytest.raises(RequestError, match="already exists and is not a page") as caught:
        check_page(path, settings)
    assert caught.value.hint == "name another file with --html FILE.html"
    with pytest.raises(RequestError, match="no directory"):
        check_page(tmp_path / "none/page.html", settings)

"""Chromium without a window, from a root of Debian that `make pages` writes."""

from __future__ import annotations

import html
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

PLACE = Path(__file__).resolve().parents[2] / "build/chromium.sqfs"
PACKAGES, SUITE = "chromium,fonts-dejavu-core", "bookworm"
_LIMIT_S = 120.0
# Reads the page in a frame of a width, which a page of another origin could not.
_FRAME = """\
<!doctype html><body><iframe width="{width}" height="900" src="{page}"></iframe><pre id="found"></pre><script>
addEventListener("load", () => {{
  const of_page = document.querySelector("iframe").contentDocument, root = of_page.documentElement;
  const texts = [...of_page.querySelectorAll("p, td, th, h1, h2, svg text")];
  const heights = [...of_page.querySelectorAll("svg text")].map(one => one.getBoundingClientRect().height);
  const filled = texts.filter(one => one.textContent.trim());
  const boxes = filled.map(one => one.getBoundingClientRect()).filter(box => box.width);
  document.getElementById("found").textContent = JSON.stringify({{
    width: root.scrollWidth,
    right: Math.max(...boxes.map(box => box.right)),
    letters: heights.length ? Math.min(...heights) : null,
    text: root.textContent.length,
  }});
}});
</script>
"""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a page lies in a window; all lengths in CSS pixels."""

    width: float
    """Width of all that can be scrolled to."""
    right: float
    """Rightmost edge of a text."""
    letters: float | None
    """Smallest height of a text in a chart."""
    text: int
    """Characters of the page (count)."""


def version() -> str:
    """Return what Chromium calls itself."""
    return _run(["--version"], PLACE.parent).stdout.strip()


def layout(page: Path, width: int) -> Layout:
    """Open a page in a frame of a width, and measure it."""
    frame = page.with_name(f"{page.stem}-{width}.frame.html")
    frame.write_text(_FRAME.format(width=width, page=page.as_uri()))
    words = ["--allow-file-access-from-files", "--virtual-time-budget=3000", "--dump-dom", frame.as_uri()]
    shown = _run(words, page.parent).stdout
    found = re.search(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)
    assert found is not None, shown[-2000:]
    assert found[1], f"{page} was not measured"
    return Layout(**json.loads(html.unescape(found[1])))


def screenshot(page: Path, to: Path, width: int, *, is_dark: bool) -> None:
    """Write how a page looks at a width."""
    words = [f"--window-size={width},2400", "--hide-scrollbars", f"--screenshot={to}"]
    words += ["--blink-settings=preferredColorScheme=0"] if is_dark else []
    _run([*words, page.as_uri()], page.parent, to.parent)


def requests(page: Path) -> set[str]:
    """Return the addresses that a page has a browser ask; files are not among them."""
    log = page.with_suffix(".netlog.json")
    _run([f"--log-net-log={log}", "--virtual-time-budget=3000", "--dump-dom", page.as_uri()], page.parent)
    events = json.loads(log.read_text())["events"]
    asked = [event["params"] for event in events if "initiator" in event.get("params", {})]
    # Chromium has requests of its own, for updates and dictionaries.
    return {params["url"] for params in asked if params["initiator"] != "not an origin"}


def _run(words: list[str], *places: Path) -> subprocess.CompletedProcess[str]:
    assert PLACE.exists(), "`setup/chromium.py` writes it; `make pages` runs that"
    inside = ["apptainer", "-s", "exec", "--userns", "--containall", "--net", "--network=none"]
    inside += [f"--bind={place}" for place in places]
    chromium = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    line = [*inside, str(PLACE), *chromium, *words]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=_LIMIT_S)

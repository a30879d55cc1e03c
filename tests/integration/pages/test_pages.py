"""The pages that envbuild writes, in Chromium: `make pages`; screenshots stay in build/pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Desk
from tests.support import chromium

# Chromium is a root of a GB, which `make test` does without.
pytestmark = pytest.mark.slow

WIDTHS = (1280, 390)
PAGES = ("test", "bench", "observed", "killed", "forecast", "trial/pilot")
UNEVEN = """\
import sys, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
end = time.monotonic() + 4
while time.monotonic() < end:
    sum(range(10_000)) if rank == 0 else time.sleep(0.05)
if rank == 0 and "kill" in sys.argv:
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def pages(desk: Desk, small_image: Path) -> Path:
    """A directory with a page of each kind."""
    place = desk.place / "pages"
    place.mkdir()
    desk.write("uneven.py", UNEVEN)
    desk.write("pages/here.yaml", "name: here\nscheduler: {name: slurm, mpi_types: [pmi2]}\n")
    desk.envbuild("test", small_image, "--report", "pages/test.html")
    bench = ("bench", small_image, "--only", "mpi.allreduce", "--ranks", "2", "--repeats", "2")
    desk.envbuild(*bench, "--report", "pages/bench.html")
    launch = ("launch", small_image, "-n", "2", "--observe")
    desk.envbuild(*launch, "observed", "--", "python", "uneven.py")
    desk.envbuild("observe", "observed", "--report", "pages/observed.html")
    desk.envbuild(*launch, "killed", "--", "python", "uneven.py", "kill", code=None)
    desk.envbuild("observe", "killed", "--report", "pages/killed.html")
    forecast = ("forecast", "--all", desk.place, "--site", "pages/here.yaml", "--change", "pmi.offered=pmix")
    desk.envbuild(*forecast, "--html", "pages/forecast.html", code=None)
    # Two steps fail, for a page with all kinds of rows.
    desk.write(
        "failing", '#!/bin/sh\ncase $1 in doctor | bench) printf "%0300d\\n" 1; exit 5 ;; esac\n'
    ).chmod(0o755)
    pilot = (ROOT / "examples/pilot.sh", "-n", "0", "-o", place / "trial")
    desk.run(pilot, code=4, env={"ENVBUILD": str(desk.place / "failing")})
    return place


@pytest.mark.parametrize("name", PAGES)
def test_it_asks_no_address_for_anything(pages: Path, name: str) -> None:
    assert chromium.requests(pages / f"{name}.html") == set()


def test_what_a_page_asks_for_would_be_found(pages: Path) -> None:
    asking = pages / "asking.html"
    asking.write_text('<!doctype html><img src="http://192.0.2.1/a.png">')
    assert chromium.requests(asking) == {"http://192.0.2.1/a.png"}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_it_fits_a_window_and_its_letters_can_be_read(pages: Path, name: str, width: int) -> None:
    layout = chromium.layout(pages / f"{name}.html", width)
    assert layout.text > 500
    assert layout.width <= width
    assert layout.right <= width
    assert layout.letters is None or layout.letters >= 10
    shots = ROOT / "build/pages"
    shots.mkdir(parents=True, exist_ok=True)
    for is_dark in (False, True):
        shot = shots / f"{Path(name).name}-{width}-{'dark' if is_dark else 'light'}.png"
        chromium.screenshot(pages / f"{name}.html", shot, width, is_dark=is_dark)
        assert shot.stat().st_size > 10_000

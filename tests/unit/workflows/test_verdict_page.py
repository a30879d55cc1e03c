"""The page that `test --report FILE.html` writes."""

from __future__ import annotations

from pathlib import Path

from envbuild.image.file import ImageFile
from envbuild.image.model import ImagePackage
from envbuild.jobs.report import CheckResult, Measured
from envbuild.store.report import Report
from envbuild.store.store import Store
from envbuild.workflows.settings import Settings
from envbuild.workflows.test import write_report
from tests.support.small_images import BASE, small_image
from tests.unit.workflows.test_bench_bare import pin

HOSTILE = '<script>alert(1)</script>"&'
PACKAGES = (
    ImagePackage(name="demo", version="1", requested=True),
    ImagePackage(name="needed", version="1", requested=False),
)


def page(tmp_path: Path, *, other_image: bool = False) -> str:
    pins = (pin("demo"), pin("needed"))
    image = small_image(
        tmp_path, BASE, python=pins, recipes={"mpich": "5"}, mpi="mpich", python_packages=PACKAGES
    )
    with ImageFile.open(image) as opened:
        digest = opened.manifest.digest
    report = Report(
        name="small",
        version="1",
        digest="sha256:" + "0" * 64 if other_image else digest,
        ranks=2,
        checks=(
            CheckResult("PASS", "mpi.collectives/ranks", "2", "2"),
            CheckResult("FAIL", "mpi.collectives/sum", "3", HOSTILE, "look there"),
            CheckResult("SKIP", "gpu.visible", "a GPU", "none here", "take another node"),
        ),
        outputs={"mpi.collectives": f"a line\n{HOSTILE}"},
        measured=(Measured("lstm.train", "words", 812.25, "words/s", higher_is_better=True, ranks=2),),
        fingerprint="sha256:" + "cd" * 32,
        facts={"kernel": "6.1.0"},
        when="2026-11-27T11:00:00Z",
        nodes=2,
        launcher="slurm 25 --mpi=pmi2",
    )
    (tmp_path / "site.yaml").write_text("name: here\n")
    settings = Settings(store=Store(tmp_path / "store"), site=tmp_path / "site.yaml")
    write_report(tmp_path / "report.html", report, image=image, settings=settings)
    return (tmp_path / "report.html").read_text()


def test_the_page_has_verdict_circumstances_and_contents_and_nothing_that_is_fetched_or_run(
    tmp_path: Path,
) -> None:
    text = page(tmp_path)
    for expected in (
        *("1 PASS, 1 FAIL, 1 SKIP", "2 of 2 nodes", ">here<", "slurm 25 --mpi=pmi2"),
        *("2026-11-27T11:00:00Z", "look there", "812.2 words/s", "kernel", "take another node"),
        *("Layers", "layer-0", "mpich", "demo", "And 1 Python package that these need"),
        "says nothing about other programs",
    ):
        assert expected in text
    assert HOSTILE not in text
    assert "<script" not in text
    assert "http:" not in text
    assert "https:" not in text


def test_the_contents_of_another_image_are_not_shown(tmp_path: Path) -> None:
    text = page(tmp_path, other_image=True)
    assert "Layers" not in text
    assert "look there" in text

"""The Python packages that a spec requests are imported by `test`; one that does not import fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.torture.ground import Ground
from tests.support.wheels import make_wheel


def built(ground: Ground, work: Path, more: str = "", **modules: str) -> list[dict[str, Any]]:
    """Build an image with a wheel `demo` of these modules; return what `test` says of its imports."""
    wheel = make_wheel(work, "demo-1.0-py3-none-any.whl", **{"demo/__init__.py": "", **modules})
    packages = f"packages: {{python: [alpha, {{wheel: {wheel.name}}}]}}\n"
    (work / "demo.yaml").write_text(f'name: demo\nversion: "1"\nbase: tiny\n{packages}{more}')
    ground.own(work)
    done = ground.run(["build", "demo.yaml"], work)
    assert done.returncode == 0, done.stderr
    done = ground.run(["test", "demo.sif", "--json"], work)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["passed"] else 4)
    return [one for one in report["findings"] if one["id"] == "image.imports"]


@pytest.fixture
def work(ground: Ground) -> Path:
    return ground.desk("imports")


def test_a_package_that_does_not_import_fails_and_no_module_requires_it(ground: Ground, work: Path) -> None:
    good, bad = built(ground, work, **{"demo/__init__.py": "import gone"})
    assert (good["status"], good["expected"]) == ("PASS", "alpha")
    assert (bad["status"], bad["expected"]) == ("FAIL", "`import demo` (demo 1.0)")
    assert bad["observed"] == "ModuleNotFoundError: No module named 'gone'"
    done = ground.run(["module", "install", "demo.sif", "--root", "modules", "--require-pass"], work)
    assert done.returncode == 4
    assert not (work / "modules/modulefiles").exists()


@pytest.mark.slow  # unit/jobs/test_imports has such names
def test_the_spec_names_what_to_import_instead(ground: Ground, work: Path) -> None:
    more = "imports: {demo: [demo.part], alpha: []}\n"
    (passed,) = built(ground, work, more, **{"demo/part.py": "", "other.py": "import gone"})
    assert (passed["status"], passed["expected"]) == ("PASS", "demo.part")
    assert passed["observed"] == "all import; nothing to import, as recipe or spec says: alpha"


def test_a_name_that_is_no_package_of_the_image_is_warned_of(ground: Ground, work: Path) -> None:
    (work / "demo.yaml").write_text(f"{ground.spec.read_text()}imports: {{alhpa: []}}\n")
    ground.own(work)
    done = ground.run(["plan", "demo.yaml"], work)
    assert "`imports` names `alhpa`, which is not among the image's packages" in done.stderr


def test_a_module_that_the_images_environment_puts_first_fails(ground: Ground, work: Path) -> None:
    (work / "first.py").write_text("")
    more = "files: [{source: first.py, target: /srv/first/demo.py}]\n"
    more += "environment: {PYTHONPATH: {prepend: /srv/first}}\n"
    _, bad = built(ground, work, more)
    assert (bad["status"], bad["observed"]) == ("FAIL", "/srv/first/demo.py")
    assert "PYTHONPATH" in bad["hint"]

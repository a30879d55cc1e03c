"""What a release must hold, and what the script of its bundle refuses."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "setup"))

import release  # noqa: E402
from common import SetupError  # noqa: E402

sys.path.remove(str(TOP / "setup"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(words, cwd=TOP, check=True, capture_output=True)
    return next(directory.iterdir())


def test_the_wheel_has_man_pages_completions_and_data(wheel: Path) -> None:
    release.check_contents(wheel)


def test_a_wheel_without_a_page_is_refused(wheel: Path, tmp_path: Path) -> None:
    lacking = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(lacking, "w") as target:
        for name in source.namelist():
            if not name.endswith("/envbuild-build.1"):
                target.writestr(name, source.read(name))
    with pytest.raises(SetupError, match=r"lacks .*/envbuild-build\.1$"):
        release.check_contents(lacking)


def test_each_template_names_version_and_digest_of_the_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / f"{release.STEM}-bundle.tar.gz"
    bundle.write_bytes(b"bundle")
    written = release.packaging(tmp_path, [bundle])
    assert {path.suffix for path in written} == {".spec", ".eb", ".py"}
    for path in written:
        text = path.read_text()
        assert "@" not in text.replace("python@3.11", "")
        assert release.VERSION in text
        assert release.sha256_of(bundle) in text
        if path.suffix != ".spec":
            compile(text, str(path), "exec")


def _install(bundle: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = ["sh", str(bundle / "install.sh"), *words]
    return subprocess.run(script, capture_output=True, text=True, check=False)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "install.sh").write_bytes(release.INSTALL.read_bytes())
    return tmp_path


def test_an_existing_directory_is_not_touched(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    done = _install(bundle, str(tmp_path / "there"))
    assert done.returncode == 2
    assert "exists" in done.stderr


def test_another_python_is_refused_by_name(bundle: Path, tmp_path: Path) -> None:
    done = _install(bundle, str(tmp_path / "new"), "/bin/false")
    assert done.returncode == 5
    assert "`/bin/false` is not Python 3.11 to 3.14" in done.stderr
    assert not (tmp_path / "new").exists()


def test_nothing_is_left_if_the_wheels_are_damaged(bundle: Path, tmp_path: Path) -> None:
    (bundle / "wheels" / "pip-26.3-py3-none-any.whl").write_bytes(b"damaged")
    (bundle / "requirements.txt").write_text("")
    done = _install(bundle, str(tmp_path / "new"), sys.executable)
    assert done.returncode == 5
    assert not (tmp_path / "new").exists()


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((TOP / "CITATION.cff").read_text())
    assert citation["version"] == release.VERSION
    assert citation["license"] == "Apache-2.0"

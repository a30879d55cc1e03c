"""Wheels that a spec names itself."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from envbuild.errors import Location, render
from envbuild.resolve.context import ResolveContext, Upgrade
from envbuild.resolve.explicit_wheels import ExplicitWheels
from envbuild.resolve.files import FileCache
from envbuild.resolve.origins import Machine
from envbuild.spec.python_platform import target_of
from envbuild.spec.python_request import PythonRequest
from envbuild.spec.requirements import ExplicitWheel, RequirementEntry
from tests.support.resolved_specs import base_image


def test_all_files_that_are_not_archives_are_named_with_their_lines(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "good-1-py3-none-any.whl", "w") as archive:
        archive.writestr("good.py", "")
    (tmp_path / "page-1-py3-none-any.whl").write_text("<!DOCTYPE html>")
    (tmp_path / "void-1-py3-none-any.whl").touch()
    entries = []
    for line, file in enumerate(sorted(path.name for path in tmp_path.glob("*.whl")), 1):
        sha256 = hashlib.sha256((tmp_path / file).read_bytes()).hexdigest()
        wheel = ExplicitWheel(
            file=file, sha256=sha256, address=str(tmp_path / file), has_declared_digest=False
        )
        at = Location(path=Path("requirements.txt"), line=line, column=1)
        entries.append(RequirementEntry(text=f"{file[:4]}===1", at=at, wheel=wheel))
    request = PythonRequest(
        target=target_of(base_image(), "amd64"),
        path=Path("spec.yaml"),
        written=tuple(entries),
        explicit_wheels={entry.name: entry for entry in entries},
    )
    files = FileCache(tmp_path / "files")
    context = ResolveContext(machine=Machine(), cache_dir=tmp_path / "c", files=files, emit=lambda _: None)
    errors = list(ExplicitWheels(request, context).prepare((), Upgrade()))
    assert [(error.problem.partition("`")[2], str(error.at)) for error in errors] == [
        (
            f"{name}-1-py3-none-any.whl` is not a wheel that can be read: it is not a zip archive",
            f"requirements.txt:{line}:1",
        )
        for line, name in ((2, "page"), (3, "void"))
    ]
    assert "a web page or an unfinished file has its name" in render(errors[0])

"""A report takes the place of reports alone, and that is known before anybody waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.cli.main import main
from tests.support.small_images import UNREAD, small_image


@pytest.mark.parametrize("place", ["small.sif", "spec.yaml", ".", "nowhere/report.json", "-"])
def test_nothing_else_is_replaced(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = small_image(tmp_path, UNREAD)
    kept = image.read_bytes()
    (tmp_path / "spec.yaml").write_text("name: x\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["test", str(image), "--report", place])
    assert ended.value.code == 2
    assert "name another file with --report FILE.json" in capsys.readouterr().err
    assert image.read_bytes() == kept
    assert (tmp_path / "spec.yaml").read_text() == "name: x\n"

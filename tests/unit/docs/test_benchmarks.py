"""The page of the benchmarks shows the newest committed results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import page, results


def test_the_page_is_current() -> None:
    assert page.PAGE.read_text() == page.text()


def test_the_newest_row_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    results.write(tmp_path / "2026-01-02-bench.json", {"a": {"value": 2}})
    results.write(tmp_path / "2026-01-01-bench.json", {"a": {"value": 1}, "b": {"value": 1}})
    results.write(tmp_path / "2026-01-03-vendor.json", {"a": {"value": 3}})
    assert results.newest("bench") == {
        "a": {"value": 2, "date": "2026-01-02"},
        "b": {"value": 1, "date": "2026-01-01"},
    }


def test_a_run_replaces_only_its_rows_of_the_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    for name, value in (("a", 1), ("b", 2), ("a", 3)):
        results.record("bench", name, {"value": value})
    rows = results.newest("bench")
    assert {name: row["value"] for name, row in rows.items()} == {"a": 3, "b": 2}
    assert rows["a"]["machine"]["cores"] > 0
    assert "envbuild" in rows["a"]["versions"]


def test_a_missing_tool_and_a_problem_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    cases = {"envbuild": {"seconds": [2.0, 1.0, 4.0], "cpu_seconds": [1.0]}}
    cases["stock"] = {"seconds": [8.0], "cpu_seconds": [3.0]}
    build = {"cases": cases, "missing": {"buildah": "not installed"}}
    results.write(tmp_path / "2026-01-01-bench.json", {"build": build})
    failed = {"cells": {"own": {"seconds": 5.0}}, "problems": ["on mpich MPI: crashed"]}
    results.write(tmp_path / "2026-01-01-vendor.json", {"test/openmpi/pytorch": failed})
    text = page.text()
    assert "| 2.00 s | stock | 8.00 s | 4.00 | 3.00 | 3 | 2026-01-01 |" in text
    assert "| 2.00 s | buildah | not installed | - | - | 3 | 2026-01-01 |" in text
    assert "| openmpi | pytorch | 5 s | failed |" in text
    assert "- 2026-01-01, test/openmpi/pytorch: on mpich MPI: crashed" in text


def test_a_row_without_a_figure_is_found() -> None:
    cases = {case: {"seconds": [1.0]} for case in ("envbuild", "stock", "tuned")}
    missing = {"buildah": "not installed"}
    assert page.absent_figures("build", {"cases": cases, "missing": missing}) == []
    assert page.absent_figures("build", {"cases": cases, "missing": {}}) == ["buildah"]
    cases["stock"]["seconds"] = [0.0]
    assert page.absent_figures("build", {"cases": cases, "missing": missing}) == ["stock"]
    assert page.absent_figures("nothing", {"cases": {}, "missing": {}}) == ["envbuild"]

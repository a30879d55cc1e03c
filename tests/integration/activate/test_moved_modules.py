"""A checkout that was moved or copied sets up Environment Modules again."""

from __future__ import annotations

import sys

from tests.integration.conftest import ROOT

sys.path.insert(0, str(ROOT / "setup"))

import modules

sys.path.remove(str(ROOT / "setup"))


def test_modules_of_another_place_do_not_answer(tmp_path):
    assert modules.answers(modules.PLACE)
    elsewhere = tmp_path / "usr/share/modules/init"
    elsewhere.mkdir(parents=True)
    (elsewhere / "sh").write_bytes((modules.PLACE / "usr/share/modules/init/sh").read_bytes())
    assert modules.answers(tmp_path) is None

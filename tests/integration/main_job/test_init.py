"""The first spec that `envbuild init` writes builds."""

from pathlib import Path

import pytest

from tests.integration.conftest import Desk, locked_versions


@pytest.mark.slow  # `make demo` builds it
def test_the_first_spec_builds(desk: Desk, image: Path) -> None:
    desk.envbuild("init", "first")
    desk.envbuild("build", "first/spec.yaml")
    show = "import mpi4py, torch; print(torch.__version__)"
    said = desk.apptainer("exec", "first/spec.sif", "python", "-c", show).stdout
    assert said.startswith(locked_versions(desk, "first/spec.yaml")["torch"])

"""The image under plain Apptainer: it behaves as people expect of any other."""

import json
import re
from pathlib import Path

from tests.integration.conftest import Desk


def python(code: str) -> list[str]:
    return ["python", "-c", code]


def test_exec_finds_the_environment_even_when_everything_of_the_host_is_taken_away(
    desk: Desk, image: Path
) -> None:
    for flags in ([], ["--cleanenv", "--containall", "--no-home"]):
        said = desk.apptainer(
            "exec", *flags, image, *python("import sys, torch; print(sys.prefix, torch.__version__)")
        )
        assert said.stdout == "/opt/env 2.13.0+cpu\n"


def test_run_runs_its_arguments_and_shell_is_a_shell(desk: Desk, image: Path) -> None:
    assert desk.apptainer("run", image, *python("print(6*7)")).stdout == "42\n"
    said = desk.apptainer("shell", image, script="mpiexec --version\n")
    assert "HYDRA" in said.stdout


def test_environment_options_arrive(desk: Desk, image: Path) -> None:
    show = python("import os; print(os.environ['COLOUR'], os.environ['PATH'].split(':')[0])")
    said = desk.apptainer(
        "exec", "--env", "COLOUR=red", image, *show, env={"APPTAINERENV_PREPEND_PATH": "/first"}
    )
    assert said.stdout == "red /first\n"


def test_nv_puts_host_libraries_last(desk: Desk, image: Path) -> None:
    show = python("import os; print(os.environ['LD_LIBRARY_PATH'])")
    said = desk.apptainer("exec", "--nv", image, *show)
    assert said.stdout.strip().endswith("/.singularity.d/libs")
    assert said.stdout.startswith("/opt/fabric/lib:/opt/mpi/lib")


def test_inspect_shows_labels(desk: Desk, image: Path) -> None:
    labels = json.loads(desk.run(["apptainer", "inspect", "--json", "--labels", image]).stdout)
    found = labels["data"]["attributes"]["labels"]
    assert found["org.opencontainers.image.title"] == "pytorch-mpi"


def test_apptainer_test_gives_the_judges_verdict(desk: Desk, image: Path) -> None:
    said = desk.apptainer("test", image)
    assert "PASS D2.ddp" in said.stdout + said.stderr


def test_where_overlay_is_disabled_the_guard_refuses_and_the_flat_form_runs(desk: Desk, image: Path) -> None:
    config = re.search(r"APPTAINER_CONF_FILE=(\S+)", desk.run(["apptainer", "buildcfg"]).stdout)
    assert config is not None
    text = Path(config[1]).read_text()
    assert "enable overlay" in text
    changed = desk.write("no-overlay.conf", re.sub(r"(?m)^enable overlay = .*$", "enable overlay = no", text))
    userns = ["--userns"] if desk.root else []
    said = desk.run(["apptainer", "--config", changed, "exec", *userns, image, "true"], code=78)
    assert "without its upper layers" in said.stderr
    assert "--flat" in said.stderr
    desk.envbuild("build", "pytorch-mpi.yaml", "--flat", "-o", "flat.sif")
    said = desk.run(
        ["apptainer", "--config", changed, "exec", *userns, "flat.sif", *python("import torch; print(1)")]
    )
    assert said.stdout == "1\n"

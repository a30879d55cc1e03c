"""What `envbuild vet` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.launch.vet import Node, Vetting
from tests.unit.cli.test_command import run

CPUS = Node(name="n1", values={"memory_gbs": 380.0})
GPUS = Node(
    name="n2", values={}, gpus=[{"index": "0", "gpu_celsius": "41"}, {"error": "No devices were found"}]
)


@pytest.mark.parametrize(
    ("nodes", "columns"),
    [((CPUS,), {"n1": "-"}), ((CPUS, GPUS), {"node": "GPUs", "n1": "-", "n2": "2 (41 °C, no answer)"})],
    ids=["without GPUs", "with GPUs"],
)
def test_gpus_have_a_column_where_a_node_has_some(
    nodes: tuple[Node, ...],
    columns: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("envbuild.workflows.nodes.vet_image", lambda *_: Vetting(nodes=nodes, findings=()))
    code, out, _ = run(["vet", "x.sif", "--store", str(tmp_path)], capsys)
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0
    assert all(rows[name].endswith(text) for name, text in columns.items())
    assert ("GPUs" in out) == (len(nodes) > 1)

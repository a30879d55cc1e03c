"""Make a solver of Caffe, which reads its descriptions from files."""

import tempfile
from pathlib import Path

import caffe


def solver(net: str, learning_rate: float) -> caffe.SGDSolver:
    """Return plain stochastic gradient descent for a net (prototxt)."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "net.prototxt").write_text(net)
        settings = directory / "solver.prototxt"
        settings.write_text(
            f'net: "{directory}/net.prototxt" base_lr: {learning_rate} lr_policy: "fixed" '
            "momentum: 0 weight_decay: 0 display: 0 snapshot_after_train: false solver_mode: CPU\n"
        )
        return caffe.SGDSolver(str(settings))

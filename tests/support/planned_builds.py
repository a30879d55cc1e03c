"""Builds whose lock and plan a test gives; layers are packed, spliced and checked as ever."""

from __future__ import annotations

import base64
from pathlib import Path

from envbuild.plan.model import BaseStep, BuildPlan, Compression, FilesStep, InlineFile, Layer, layer_key
from envbuild.workflows.lock import Locked
from tests.support.resolved_specs import bare_lock, resolved


def layer(name: str, compression: Compression, **files: str) -> Layer:
    entries = tuple(
        InlineFile(path=f"/etc/{path}", content=base64.b64encode(text.encode()).decode())
        for path, text in files.items()
    )
    step = FilesStep(files=entries, tools=())
    return Layer(name=name, key=layer_key(step, (), compression), step=step, compression=compression)


class Bench:
    """A spec whose layers a test decides."""

    def __init__(self, place: Path) -> None:
        self.spec = place / "demo.yaml"
        self.spec.write_text('name: demo\nversion: "1"\n')
        self.image = place / "demo.sif"
        self.architecture = "amd64"
        self.steps: dict[str, BaseStep] = {}
        """Name → step of further layers."""
        self.files = {"base": {"os-release": "ID=debian\n"}, "venv": {"motd": "hello\n"}}

    def locked(self) -> Locked:
        path = self.spec.with_suffix(".lock.yaml")
        lock = bare_lock(architecture=self.architecture)
        return Locked(resolved=resolved(path=self.spec), lock=lock, path=path, changes=())

    def plan(self, _: Locked, *, compression: Compression = "zstd") -> BuildPlan:
        layers = tuple(layer(name, compression, **files) for name, files in self.files.items())
        layers += tuple(
            Layer(name=name, key=layer_key(step, (), compression), step=step, compression=compression)
            for name, step in self.steps.items()
        )
        return BuildPlan(layers=layers, image=tuple(each.name for each in layers), tools=())

"""Plans the layers of a lock, and which of them the image contains. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from envbuild.lock.model import DebPin, Lock, PythonPin, RootPin, ToolPin
from envbuild.plan.model import (
    ENV_PREFIX,
    MPI_PREFIX,
    PACKERS,
    BaseStep,
    BuildPlan,
    Compression,
    FilesStep,
    InlineFile,
    InputFile,
    Interpreter,
    Layer,
    Patch,
    RootStep,
    SourceStep,
    Step,
    SystemStep,
    environment_step,
    layer_key,
)
from envbuild.spec.resolved import ResolvedSpec

_BY_NAME = attrgetter("name")
_BY_PATH = attrgetter("path")

# An image unsets a variable by an empty value, which Python 2.7 takes for a directory.
_LEGACY_START = """\
#!/bin/sh
[ -n "$PYTHONHOME" ] || unset PYTHONHOME
[ -n "$PYTHONPATH" ] || unset PYTHONPATH
exec /usr/bin/python{version} "$@"
"""

_VENV = """\
home = /usr/bin
include-system-site-packages = {sees_debian}
version = {version}
"""


def make_plan(
    resolved: ResolvedSpec,
    lock: Lock,
    *,
    root_texts: Mapping[str, str],
    metadata: Sequence[InlineFile],
    compression: Compression = "zstd",
) -> BuildPlan:
    """Plan the layers of an image.

    `root_texts` maps paths to contents that the image format needs in every root; `metadata` are the files in
    which the image describes itself; `compression` is that of its file system.
    """
    planner = _Planner(resolved, lock, root_texts, PACKERS[compression])
    base = planner.base()
    below = [base]
    if lock.system_debs:
        below.append(planner.debian("system", base, lock.system_debs))
    wheels = [planner.wheel(pin, base) for pin in sorted(lock.python) if pin.is_wheel]
    venv = planner.venv()
    built = planner.source_layers(base, venv)
    above = [venv, *planner.written_layers(metadata)]
    image = [*below, *wheels, *(layer for layer in built if isinstance(layer.step, SourceStep)), *above]
    layers = (*below, *wheels, venv, *built, *above[1:])
    return BuildPlan(
        layers=layers if compression == "zstd" else _packed(layers, compression),
        image=tuple(layer.name for layer in image),
        tools=planner.tools(planner.packer),
    )


def _packed(layers: Sequence[Layer], compression: Compression) -> tuple[Layer, ...]:
    """Return layers, each after those that it is made from, with another compression."""
    packed: dict[str, Layer] = {}
    for layer in layers:
        inputs = [packed[name] for name in layer.inputs]
        key = layer_key(layer.step, inputs, compression)
        packed[layer.name] = layer.model_copy(update={"key": key, "compression": compression})
    return tuple(packed.values())


@dataclass(frozen=True, slots=True)
class _Planner:
    """The layers of one lock."""

    resolved: ResolvedSpec
    lock: Lock
    root_texts: Mapping[str, str]
    packer: str
    """The tool that packs what envbuild itself writes."""

    def base(self) -> Layer:
        if self.lock.base_root:
            root = RootStep(
                format=self.lock.base_root[0].kind,
                archives=tuple(map(_input_file, self.lock.base_root)),
                python=self.lock.base.python,
                texts=dict(self.root_texts),
                tools=self.tools("mksquashfs"),
            )
            return _layer("base", root)
        step = BaseStep(
            suite=self.resolved.base.suite,
            architecture=self.lock.architecture,
            debs=_sorted_files(self.lock.base_debs),
            texts=dict(self.root_texts),
            tools=self.tools("mmdebstrap", "mksquashfs"),
        )
        return _layer("base", step)

    def debian(self, name: str, base: Layer, debs: Iterable[DebPin]) -> Layer:
        step = SystemStep(
            suite=self.resolved.base.suite,
            architecture=self.lock.architecture,
            debs=_sorted_files(debs),
            texts=dict(self.root_texts),
            tools=self.tools("mmdebstrap", "mksquashfs"),
        )
        return _layer(name, step, [base])

    def wheel(self, pin: PythonPin, base: Layer) -> Layer:
        return wheel_layer(pin, self.interpreter(), self.tools("installer", self.packer), base)

    def venv(self) -> Layer:
        """Return the layer that makes the Python layers an environment."""
        version = self.resolved.base.python.version
        if self.resolved.base.python.is_legacy:
            # Python 2.7 has no virtual environments: its system's own follows a .pth to our prefix.
            site = f"{ENV_PREFIX}/lib/python{version}/site-packages\n"
            start = _LEGACY_START.format(version=version)
            return self.written(
                "venv",
                _text(f"/usr/lib/python{version}/dist-packages/envbuild.pth", site),
                _text(f"{ENV_PREFIX}/bin/python", start, executable=True),
                links={f"{ENV_PREFIX}/bin/{name}": "python" for name in ("python2", f"python{version}")},
            )
        # As `python -m venv --without-pip` makes it (PEP 405), without the scripts that activate it:
        # the paths of an image are set.
        sees_debian = any(chosen.recipe.debian_python for chosen in self.resolved.recipes)
        configuration = _VENV.format(version=version, sees_debian=str(sees_debian).lower())
        links = {
            f"{ENV_PREFIX}/bin/python": "/usr/bin/python3",
            f"{ENV_PREFIX}/bin/python3": "python",
            f"{ENV_PREFIX}/bin/python{version}": "python",
            f"{ENV_PREFIX}/lib64": "lib",
        }
        return self.written("venv", _text(f"{ENV_PREFIX}/pyvenv.cfg", configuration), links=links)

    def source_layers(self, base: Layer, venv: Layer) -> list[Layer]:
        """Return the layers that are built from source, each after its toolchain."""
        lock = self.lock
        layers: list[Layer] = []
        pins = {pin.name: pin for pin in lock.python if not pin.is_wheel}
        for build in self.resolved.builds.values():
            pin = pins.get(build.distribution)
            if pin is None and build.declared is None:  # nothing requires it
                continue
            if pin is None:
                raise AssertionError(f"the lock has no source archive for {build.name}")
            inputs = [base]
            debs = [deb for deb in lock.build_debs if deb.layer == build.layer]
            if debs:
                layers.append(self.debian(f"toolchain:{build.name}", base, debs))
                inputs.append(layers[-1])
            inputs.append(venv)
            owners = {"mpi" if name == "mpi" else f"framework:{name}" for name in build.against}
            against = (other for other in sorted(lock.python) if other.layer in owners and other.is_wheel)
            inputs += [self.wheel(other, base) for other in against]
            step = SourceStep(
                prefix=ENV_PREFIX,
                interpreter=self.interpreter(),
                archive=_input_file(pin),
                build_wheels=_sorted_files(tool for tool in lock.build_python if tool.layer == build.layer),
                patches=tuple(
                    Patch(name=name, content=_base64(content)) for name, content in build.patches.items()
                ),
                environment={**build.environment, **_scm_version(pin)},
                tools=self.tools("installer", self.packer),
            )
            layers.append(_layer(build.layer, step, inputs))
        return layers

    def written_layers(self, metadata: Sequence[InlineFile]) -> list[Layer]:
        """Return the layers of links and files that come with recipes, the spec and the image itself."""
        layers = [
            self.written(f"links:{chosen.recipe.name}", links=chosen.recipe.links)
            for chosen in self.resolved.recipes
            if chosen.recipe.links
        ]
        spec_files = [
            InlineFile(
                path=entry.target,
                content=_base64(self.resolved.files[entry.source]),
                executable=entry.executable,
            )
            for entry in self.resolved.spec.files
        ]
        if spec_files:
            layers.append(self.written("files", *sorted(spec_files, key=_BY_PATH)))
        return [*layers, self.written("metadata", *sorted(metadata, key=_BY_PATH))]

    def written(self, name: str, *files: InlineFile, links: Mapping[str, str] | None = None) -> Layer:
        return _layer(name, FilesStep(files=files, links=dict(links or {}), tools=self.tools(self.packer)))

    def interpreter(self) -> Interpreter:
        return Interpreter(abi=self.lock.base.abi, architecture=self.lock.architecture)

    def tools(self, *names: str) -> tuple[ToolPin, ...]:
        return tuple(pin for pin in self.lock.tools if pin.name in names)


def wheel_layer(pin: PythonPin, interpreter: Interpreter, tools: Sequence[ToolPin], base: Layer) -> Layer:
    """Return the layer of one wheel, compiled in `base`; `tools` install and pack it."""
    prefix = MPI_PREFIX if pin.layer == "mpi" else ENV_PREFIX
    step = environment_step(_input_file(pin), prefix, interpreter, tools)
    return _layer(f"wheel:{pin.name}", step, [base])


def _scm_version(pin: PythonPin) -> dict[str, str]:
    """Return the variable from which setuptools-scm takes the version: an archive has no history."""
    return {"SETUPTOOLS_SCM_PRETEND_VERSION": pin.version} if pin.origin.startswith("git:") else {}


def _layer(name: str, step: Step, inputs: Sequence[Layer] = ()) -> Layer:
    return Layer(
        name=name,
        key=layer_key(step, inputs),
        step=step,
        inputs=tuple(layer.name for layer in inputs),
    )


def _text(path: str, text: str, *, executable: bool = False) -> InlineFile:
    return InlineFile(path=path, content=_base64(text.encode()), executable=executable)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _input_file(pin: DebPin | PythonPin | RootPin) -> InputFile:
    return InputFile(name=pin.file_name, sha256=pin.sha256)


def _sorted_files(pins: Iterable[DebPin | PythonPin]) -> tuple[InputFile, ...]:
    return tuple(sorted(map(_input_file, pins), key=_BY_NAME))

"""Plans the layers of a lock, and which of them the image contains. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from envbuild.lock.model import DebPin, Lock, PythonPin, RootPin
from envbuild.plan.model import (
    ENV_PREFIX,
    MPI_PREFIX,
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
    Tool,
    WheelStep,
    layer_key,
)
from envbuild.spec.resolved import ResolvedSpec

_BY_NAME = attrgetter("name")

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
    base = _base(resolved, lock, root_texts)
    below = [base]
    if lock.system_debs:
        below.append(_debian_layer("system", resolved, lock, root_texts, base, lock.system_debs))
    wheels = [_wheel(pin, resolved, lock) for pin in sorted(lock.python) if pin.is_wheel]
    venv = _venv(resolved, lock)
    built = _source_layers(resolved, lock, root_texts, base, venv)
    above = [venv, *_written_layers(resolved, lock, metadata)]
    image = [*below, *wheels, *(layer for layer in built if isinstance(layer.step, SourceStep)), *above]
    layers = (*below, *wheels, venv, *built, *above[1:])
    return BuildPlan(
        layers=layers if compression == "zstd" else _packed(layers, compression),
        image=tuple(layer.name for layer in image),
        tools=_tools(lock, "zstandard"),
    )


def _packed(layers: Sequence[Layer], compression: Compression) -> tuple[Layer, ...]:
    """Return layers, each after those that it is made from, with another compression."""
    packed: dict[str, Layer] = {}
    for layer in layers:
        inputs = [packed[name] for name in layer.inputs]
        key = layer_key(layer.step, inputs, compression)
        packed[layer.name] = layer.model_copy(update={"key": key, "compression": compression})
    return tuple(packed.values())


def _base(resolved: ResolvedSpec, lock: Lock, root_texts: Mapping[str, str]) -> Layer:
    if lock.base_root:
        root = RootStep(
            format=lock.base_root[0].kind,
            archives=tuple(map(_input_file, lock.base_root)),
            python=lock.base.python,
            texts=dict(root_texts),
            tools=_tools(lock, "mksquashfs"),
        )
        return _layer("base", root, ())
    step = BaseStep(
        suite=resolved.base.suite,
        architecture=lock.base.architecture,
        debs=_sorted_files(lock.base_debs),
        texts=dict(root_texts),
        tools=_tools(lock, "mmdebstrap", "mksquashfs"),
    )
    return _layer("base", step, ())


def _written_layers(resolved: ResolvedSpec, lock: Lock, metadata: Sequence[InlineFile]) -> list[Layer]:
    """Return the layers of links and files that come with recipes, the spec and the image itself."""
    layers = []
    squash = _tools(lock, "mksquashfs")
    for chosen in resolved.recipes:
        if chosen.recipe.links:
            links = FilesStep(files=(), links=dict(chosen.recipe.links), tools=squash)
            layers.append(_layer(f"links:{chosen.recipe.name}", links, ()))
    if resolved.spec.files:
        entries = tuple(
            InlineFile(
                path=entry.target,
                content=base64.b64encode(resolved.files[entry.source]).decode(),
                executable=entry.executable,
            )
            for entry in sorted(resolved.spec.files, key=lambda entry: entry.target)
        )
        layers.append(_layer("files", FilesStep(files=entries, tools=squash), ()))
    metadata_step = FilesStep(files=tuple(sorted(metadata, key=lambda entry: entry.path)), tools=squash)
    layers.append(_layer("metadata", metadata_step, ()))
    return layers


def _wheel(pin: PythonPin, resolved: ResolvedSpec, lock: Lock) -> Layer:
    step = WheelStep(
        prefix=MPI_PREFIX if pin.layer == "mpi" else ENV_PREFIX,
        interpreter=_interpreter(resolved, lock),
        wheel=_input_file(pin),
        tools=_tools(lock, "installer", "mksquashfs"),
    )
    return _layer(f"wheel:{pin.name}", step, (), needs=("base",))


def _venv(resolved: ResolvedSpec, lock: Lock) -> Layer:
    """Return the layer that makes the Python layers an environment."""
    version = resolved.base.python.version
    squash = _tools(lock, "mksquashfs")
    if resolved.base.python.is_legacy:
        # Python 2.7 has no virtual environments: its system's own follows a .pth to our prefix.
        site = f"{ENV_PREFIX}/lib/python{version}/site-packages\n"
        start = _LEGACY_START.format(version=version)
        files = (
            _text(f"/usr/lib/python{version}/dist-packages/envbuild.pth", site),
            _text(f"{ENV_PREFIX}/bin/python", start, executable=True),
        )
        links = {f"{ENV_PREFIX}/bin/{name}": "python" for name in ("python2", f"python{version}")}
        return _layer("venv", FilesStep(files=files, links=links, tools=squash), ())
        # As `python -m venv --without-pip` makes it (PEP 405), without the scripts that activate it:
        # the paths of an image are set.
    sees_debian = any(chosen.recipe.debian_python for chosen in resolved.recipes)
    configuration = _VENV.format(version=version, sees_debian=str(sees_debian).lower())
    links = {
        f"{ENV_PREFIX}/bin/python": "/usr/bin/python3",
        f"{ENV_PREFIX}/bin/python3": "python",
        f"{ENV_PREFIX}/bin/python{version}": "python",
        f"{ENV_PREFIX}/lib64": "lib",
    }
    described = (_text(f"{ENV_PREFIX}/pyvenv.cfg", configuration),)
    return _layer("venv", FilesStep(files=described, links=links, tools=squash), ())


def _text(path: str, text: str, *, executable: bool = False) -> InlineFile:
    return InlineFile(path=path, content=base64.b64encode(text.encode()).decode(), executable=executable)


def _source_layers(
    resolved: ResolvedSpec, lock: Lock, root_texts: Mapping[str, str], base: Layer, venv: Layer
) -> list[Layer]:
    """Return the layers that are built from source, each after its toolchain."""
    layers: list[Layer] = []
    for chosen in resolved.recipes:
        source = chosen.recipe.source
        pin = next((pin for pin in lock.python if pin.layer == chosen.layer and not pin.is_wheel), None)
        if source is None:
            continue
        if pin is None:
            raise AssertionError(f"the lock has no source archive for {chosen.recipe.name}")
        inputs = [base]
        debs = [deb for deb in lock.build_debs if deb.layer == chosen.layer]
        if debs:
            name = f"toolchain:{chosen.recipe.name}"
            layers.append(_debian_layer(name, resolved, lock, root_texts, base, debs))
            inputs.append(layers[-1])
        inputs.append(venv)
        owners = {"mpi" if name == "mpi" else f"framework:{name}" for name in source.against}
        inputs += [
            _wheel(other, resolved, lock)
            for other in sorted(lock.python)
            if other.layer in owners and other.is_wheel
        ]
        step = SourceStep(
            prefix=ENV_PREFIX,
            interpreter=_interpreter(resolved, lock),
            archive=_input_file(pin),
            build_wheels=_sorted_files(tool for tool in lock.build_python if tool.layer == chosen.layer),
            patches=tuple(
                Patch(name=name, content=base64.b64encode(content).decode())
                for name, content in chosen.patches().items()
            ),
            environment=dict(source.environment),
            tools=_tools(lock, "installer", "mksquashfs"),
        )
        layers.append(_layer(chosen.layer, step, inputs))
    return layers


def _debian_layer(
    name: str,
    resolved: ResolvedSpec,
    lock: Lock,
    root_texts: Mapping[str, str],
    base: Layer,
    debs: Iterable[DebPin],
) -> Layer:
    step = SystemStep(
        suite=resolved.base.suite,
        architecture=lock.base.architecture,
        debs=_sorted_files(debs),
        texts=dict(root_texts),
        tools=_tools(lock, "mmdebstrap", "mksquashfs"),
    )
    return _layer(name, step, (base,))


def _interpreter(resolved: ResolvedSpec, lock: Lock) -> Interpreter:
    packages = resolved.base.python.packages
    return Interpreter(
        abi=lock.base.abi,
        architecture=lock.base.architecture,
        debs=tuple(map(_input_file, lock.base_root))
        or _sorted_files(pin for pin in lock.base_debs if pin.name in packages),
    )


def _layer(name: str, step: Step, inputs: Sequence[Layer], needs: tuple[str, ...] = ()) -> Layer:
    return Layer(
        name=name,
        key=layer_key(step, inputs),
        step=step,
        inputs=tuple(layer.name for layer in inputs),
        needs=needs,
    )


def _input_file(pin: DebPin | PythonPin | RootPin) -> InputFile:
    return InputFile(name=pin.file_name if isinstance(pin, DebPin) else pin.file, sha256=pin.sha256)


def _sorted_files(pins: Iterable[DebPin | PythonPin]) -> tuple[InputFile, ...]:
    return tuple(sorted(map(_input_file, pins), key=_BY_NAME))


def _tools(lock: Lock, *names: str) -> tuple[Tool, ...]:
    tools = (
        Tool(name=pin.name, version=pin.version, digest=pin.digest) for pin in lock.tools if pin.name in names
    )
    return tuple(sorted(tools, key=_BY_NAME))

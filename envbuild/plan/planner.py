"""From a lock to layers: what each holds, and which become parts of the image. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence

from envbuild.lock.model import DebPin, Lock, PythonPin
from envbuild.plan.flat import flat_plan, merge
from envbuild.plan.grouping import (
    ACCELERATOR,
    LARGE,
    SMALL_BYTES,
    accelerator_layers,
    input_bytes,
    overlay_groups,
)
from envbuild.plan.model import (
    PIECE,
    BaseStep,
    BuildPlan,
    FilesStep,
    InputFile,
    Interpreter,
    Layer,
    MergeStep,
    PrefixStep,
    RootStep,
    SourceStep,
    Step,
    SystemStep,
    TextEntry,
    Tool,
    UnpackStep,
    VenvStep,
    layer_key,
)
from envbuild.spec.asked import Asked

ENV_PREFIX = "/opt/env"
MPI_PREFIX = "/opt/mpi"

# Python 2.7 takes an empty variable, which is how an image unsets one, for a place to look in.
_LEGACY_START = """\
#!/bin/sh
[ -n "$PYTHONHOME" ] || unset PYTHONHOME
[ -n "$PYTHONPATH" ] || unset PYTHONPATH
exec /usr/bin/python{version} "$@"
"""


def make_plan(
    asked: Asked,
    lock: Lock,
    *,
    root_texts: Mapping[str, str],
    metadata: Sequence[TextEntry],
    flat: bool = False,
) -> BuildPlan:
    """Plan the layers of an image.

    Parameters
    ----------
    root_texts : mapping
        Path → content of the files that the image format wants in every root.
    metadata : sequence of TextEntry
        What the top layer carries: the image's own story.
    flat : bool
        Whether to merge everything into one root partition.
    """
    layers = [_base(asked, lock, root_texts)]
    upper = _upper_layers(asked, lock, root_texts, metadata, layers[0])
    built = _source_layers(asked, lock, root_texts, layers[0], upper)
    # A layer that is built follows what it is made from; among the overlays it has its recipe's place.
    layers += [*upper, *built]
    accelerator = [layer.name for layer in upper if layer.name.partition(":")[0] == ACCELERATOR]
    order = ["base", "system", *accelerator, *(chosen.layer for chosen in asked.recipes)]
    order += [f"links:{chosen.recipe.name}" for chosen in asked.recipes]
    order += [LARGE, "python", "venv", "files", "metadata"]
    there = {layer.name for layer in layers}
    overlays = tuple(name for name in order[1:] if name in there)
    tools = _tools(lock, "mksquashfs")
    if flat:
        return flat_plan(layers, tools)
    members: dict[str, tuple[str, ...]] = {"base": ("base",)}
    parts = []
    sizes = {pin.sha256: pin.size_bytes for pin in lock.system_debs}
    sizes |= {pin.sha256: pin.size_bytes for pin in lock.python}
    by_name = {layer.name: layer for layer in layers}

    def weight(name: str) -> int:
        layer = by_name[name]
        pieces = [by_name[piece] for piece in layer.inputs] if isinstance(layer.step, MergeStep) else [layer]
        return sum(input_bytes(piece.step, sizes) for piece in pieces)

    for group in overlay_groups({name: weight(name) for name in overlays}):
        if len(group) > 1:
            layers.append(merge(group, layers, tools))
        name = "+".join(group)
        parts.append(name)
        members[name] = tuple(group)
    return BuildPlan(layers=tuple(layers), root="base", overlays=tuple(parts), members=members)


def _base(asked: Asked, lock: Lock, root_texts: Mapping[str, str]) -> Layer:
    if lock.base_root:
        root = RootStep(
            format=lock.base_root[0].kind,
            archives=_roots(lock),
            python=lock.base.python,
            texts=dict(root_texts),
            tools=_tools(lock, "mksquashfs"),
        )
        return _layer("base", root, ())
    step = BaseStep(
        suite=asked.base.suite,
        architecture=lock.base.architecture,
        debs=_debs(lock.base_debs),
        texts=dict(root_texts),
        tools=_tools(lock, "mmdebstrap", "mksquashfs"),
    )
    return _layer("base", step, ())


def _upper_layers(
    asked: Asked, lock: Lock, root_texts: Mapping[str, str], metadata: Sequence[TextEntry], base: Layer
) -> list[Layer]:
    """Return the layers above the base, but for those that are built from source."""
    layers = []
    if lock.system_debs:
        layers.append(_debian_layer("system", asked, lock, root_texts, base, lock.system_debs))
    held = {
        owner: [pin for pin in lock.python if pin.layer == owner and pin.is_wheel]
        for owner in [*(chosen.layer for chosen in asked.recipes), "python"]
    }
    small: list[PythonPin] = []
    if not asked.base.python.is_legacy:
        packages = held.pop("python")
        small = [pin for pin in packages if pin.size_bytes < SMALL_BYTES]
        held[LARGE] = [pin for pin in packages if pin.size_bytes >= SMALL_BYTES]
    for owner, pins in {**held, **accelerator_layers(lock)}.items():
        if pins:
            step = _prefix_step(owner, _wheels(pins), asked, lock)
            layers.append(_layer(owner, step, (), needs=("base",)))
    layers += _small_layers(small, asked, lock)
    layers.append(_venv(asked, lock))
    squash = _tools(lock, "mksquashfs")
    for chosen in asked.recipes:
        if chosen.recipe.links:
            step_of_links = FilesStep(files=(), links=dict(chosen.recipe.links), tools=squash)
            layers.append(_layer(f"links:{chosen.recipe.name}", step_of_links, ()))
    if asked.spec.files:
        entries = tuple(
            TextEntry(
                path=entry.target,
                content=base64.b64encode(asked.files[entry.source]).decode(),
                executable=entry.executable,
            )
            for entry in sorted(asked.spec.files, key=lambda entry: entry.target)
        )
        layers.append(_layer("files", FilesStep(files=entries, tools=squash), ()))
    story = FilesStep(files=tuple(sorted(metadata, key=lambda entry: entry.path)), tools=squash)
    layers.append(_layer("metadata", story, ()))
    return layers


def _small_layers(pins: Sequence[PythonPin], asked: Asked, lock: Lock) -> list[Layer]:
    """Return a layer for each small wheel, and what holds them together."""
    pieces = [
        _layer(f"{PIECE}{pin.name}", _prefix_step("python", _wheels([pin]), asked, lock), (), needs=("base",))
        for pin in sorted(pins)
    ]
    together = MergeStep(tools=_tools(lock, "mksquashfs"))
    return [*pieces, _layer("python", together, pieces)] if pieces else []


def _prefix_step(
    owner: str, wheels: tuple[InputFile, ...], asked: Asked, lock: Lock
) -> PrefixStep | UnpackStep:
    prefix = MPI_PREFIX if owner == "mpi" else ENV_PREFIX
    interpreter = _interpreter(asked, lock)
    if asked.base.python.is_legacy:
        tools = _tools(lock, "installer", "mksquashfs")
        return UnpackStep(prefix=prefix, interpreter=interpreter, wheels=wheels, tools=tools)
    tools = _tools(lock, "uv", "mksquashfs")
    return PrefixStep(prefix=prefix, interpreter=interpreter, wheels=wheels, tools=tools)


def _venv(asked: Asked, lock: Lock) -> Layer:
    """Return the layer that makes the Python layers an environment."""
    version = asked.base.python.version
    if asked.base.python.is_legacy:
        # Python 2.7 has no virtual environments: its system's own follows a .pth to our prefix.
        site = f"{ENV_PREFIX}/lib/python{version}/site-packages\n"
        start = _LEGACY_START.format(version=version)
        files = (
            _text(f"/usr/lib/python{version}/dist-packages/envbuild.pth", site),
            _text(f"{ENV_PREFIX}/bin/python", start, executable=True),
        )
        links = {f"{ENV_PREFIX}/bin/{name}": "python" for name in ("python2", f"python{version}")}
        return _layer("venv", FilesStep(files=files, links=links, tools=_tools(lock, "mksquashfs")), ())
    venv = VenvStep(
        prefix=ENV_PREFIX,
        interpreter=_interpreter(asked, lock),
        tools=_tools(lock, "uv", "mksquashfs"),
        debian_python=any(chosen.recipe.debian_python for chosen in asked.recipes),
    )
    return _layer("venv", venv, (), needs=("base",))


def _text(path: str, text: str, *, executable: bool = False) -> TextEntry:
    return TextEntry(path=path, content=base64.b64encode(text.encode()).decode(), executable=executable)


def _source_layers(
    asked: Asked, lock: Lock, root_texts: Mapping[str, str], base: Layer, upper: Sequence[Layer]
) -> list[Layer]:
    """Return the layers that are built from source, each after its toolchain."""
    there = {layer.name: layer for layer in upper}
    found: list[Layer] = []
    for chosen in asked.recipes:
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
            found.append(_debian_layer(name, asked, lock, root_texts, base, debs))
            inputs.append(found[-1])
        inputs.append(there["venv"])
        inputs += [there["mpi" if name == "mpi" else f"framework:{name}"] for name in source.against]
        step = SourceStep(
            prefix=ENV_PREFIX,
            interpreter=_interpreter(asked, lock),
            archive=InputFile(name=pin.file, sha256=pin.sha256),
            build_wheels=_wheels(tool for tool in lock.build_python if tool.layer == chosen.layer),
            patches=tuple(
                TextEntry(path=name, content=base64.b64encode(content).decode())
                for name, content in chosen.patches().items()
            ),
            environment=dict(source.environment),
            tools=_tools(lock, "uv", "mksquashfs"),
        )
        found.append(_layer(chosen.layer, step, inputs))
    return found


def _debian_layer(
    name: str, asked: Asked, lock: Lock, root_texts: Mapping[str, str], base: Layer, debs: Iterable[DebPin]
) -> Layer:
    """Return a layer of Debian packages on the base."""
    step = SystemStep(
        suite=asked.base.suite,
        architecture=lock.base.architecture,
        base_debs=_debs(lock.base_debs),
        debs=_debs(debs),
        texts=dict(root_texts),
        tools=_tools(lock, "mmdebstrap", "mksquashfs"),
    )
    return _layer(name, step, (base,))


def _interpreter(asked: Asked, lock: Lock) -> Interpreter:
    return Interpreter(
        abi=lock.base.abi,
        architecture=lock.base.architecture,
        debs=_roots(lock) or _debs(pin for pin in lock.base_debs if pin.name in asked.base.python.packages),
    )


def _layer(name: str, step: Step, inputs: Sequence[Layer], needs: tuple[str, ...] = ()) -> Layer:
    return Layer(
        name=name,
        key=layer_key(step, inputs),
        step=step,
        inputs=tuple(layer.name for layer in inputs),
        needs=needs,
    )


def _roots(lock: Lock) -> tuple[InputFile, ...]:
    return tuple(InputFile(name=pin.file, sha256=pin.sha256) for pin in lock.base_root)


def _debs(pins: Iterable[DebPin]) -> tuple[InputFile, ...]:
    return tuple(sorted(InputFile(name=pin.file_name, sha256=pin.sha256) for pin in pins))


def _wheels(pins: Iterable[PythonPin]) -> tuple[InputFile, ...]:
    return tuple(sorted(InputFile(name=pin.file, sha256=pin.sha256) for pin in pins))


def _tools(lock: Lock, *names: str) -> tuple[Tool, ...]:
    return tuple(
        sorted(
            Tool(name=pin.name, version=pin.version, digest=pin.digest)
            for pin in lock.tools
            if pin.name in names
        )
    )

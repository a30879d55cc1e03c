"""From a lock to layers: what each holds, and which become parts of the image. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence

from envbuild.lock.model import DebPin, Lock, PythonPin
from envbuild.plan.model import (
    BaseStep,
    BuildPlan,
    FilesStep,
    InputFile,
    Interpreter,
    Layer,
    MergeStep,
    PrefixStep,
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

# Each overlay costs 25-30 ms at every start of the image (one FUSE mount).
MAX_OVERLAYS = 3

# A merge is a copy in the store: what is heavier than this stays alone, whatever the start costs.
HEAVY_BYTES = 100_000_000


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
    order = ["base", "system", "accelerator", *(chosen.layer for chosen in asked.recipes)]
    order += [f"links:{chosen.recipe.name}" for chosen in asked.recipes]
    order += ["python", "venv", "files", "metadata"]
    there = {layer.name for layer in layers}
    overlays = tuple(name for name in order[1:] if name in there)
    tools = _tools(lock, "mksquashfs")
    if flat:
        merged = _merge(["base", *overlays], layers, tools)
        return BuildPlan(
            layers=(*layers, merged), root=merged.name, overlays=(), members={merged.name: merged.inputs}
        )
    members: dict[str, tuple[str, ...]] = {"base": ("base",)}
    parts = []
    for group in overlay_groups({name: _locked_bytes(name, lock) for name in overlays}):
        if len(group) > 1:
            layers.append(_merge(group, layers, tools))
        name = "+".join(group)
        parts.append(name)
        members[name] = tuple(group)
    return BuildPlan(layers=tuple(layers), root="base", overlays=tuple(parts), members=members)


def overlay_groups(sizes: Mapping[str, int], limit: int = MAX_OVERLAYS) -> list[list[str]]:
    """Merge the lightest layers into one, so that `limit` groups are left; heavy ones stay alone.

    Layers commute, so any of them can be merged; only `system` is stacked on
    the base, and what it is merged with lies lowest. What is light is copied
    for every image; what is heavy is shared.

    Parameters
    ----------
    sizes : mapping
        Layer → length of the files that it is made from, in bytes; from bottom to top.

    Returns
    -------
    list of list of str
        Groups from bottom to top.
    """
    names = list(sizes)
    if len(names) <= limit:
        return [[name] for name in names]
    # Of equally light ones the topmost: it is small and changes most.
    lightest = sorted(names, key=lambda name: (sizes[name], -names.index(name)))
    merged = {name for name in lightest[: len(names) - limit + 1] if sizes[name] < HEAVY_BYTES}
    alone = [[name] for name in names if name not in merged]
    together = [name for name in names if name in merged]
    if not together:
        return alone
    return [together, *alone] if "system" in merged else [*alone, together]


def _locked_bytes(layer: str, lock: Lock) -> int:
    if layer == "system":
        return sum(pin.size_bytes for pin in lock.system_debs)
    return sum(pin.size_bytes for pin in lock.python if pin.layer == layer)


def _base(asked: Asked, lock: Lock, root_texts: Mapping[str, str]) -> Layer:
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
    for owner in [*(chosen.layer for chosen in asked.recipes), "accelerator", "python"]:
        wheels = _wheels(pin for pin in lock.python if pin.layer == owner and pin.is_wheel)
        if wheels:
            layers.append(_layer(owner, _prefix_step(owner, wheels, asked, lock), (), needs=("base",)))
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
        debs=_debs(pin for pin in lock.base_debs if pin.name in asked.base.python.packages),
    )


def _layer(name: str, step: Step, inputs: Sequence[Layer], needs: tuple[str, ...] = ()) -> Layer:
    return Layer(
        name=name,
        key=layer_key(step, inputs),
        step=step,
        inputs=tuple(layer.name for layer in inputs),
        needs=needs,
    )


def _merge(names: Sequence[str], layers: Sequence[Layer], tools: tuple[Tool, ...]) -> Layer:
    by_name = {layer.name: layer for layer in layers}
    return _layer("+".join(names), MergeStep(tools=tools), [by_name[name] for name in names])


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

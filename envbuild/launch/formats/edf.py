"""The Environment Definition File of CSCS: TOML that names an image, for srun. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from envbuild.errors import RequestError
from envbuild.launch.formats import TextFormat
from envbuild.launch.runtimes import OF_EDF, WRITTEN, Start, head_lines, mounts_of


def _render(start: Start) -> str:
    """Return the EDF of an image: TOML, in the dialect of the Container Engine or of Sarus Suite.

    RequestError: the runtime reads no EDF, or cannot start an image that is named so.
    """
    runtime = start.runtime
    if runtime.name not in OF_EDF:
        raise RequestError(
            f"`{runtime.name}` reads no EDF", hint=f"--runtime names one that does: {', '.join(OF_EDF)}"
        )
    if runtime.name == "sarus-suite" and (start.image[0] in "./$" or start.image.endswith((".sqsh", ".sif"))):
        raise RequestError(
            f"Sarus Suite starts no file: `{start.image}`",
            hint="`--format oci` writes what a registry takes; --image names it there",
        )
    lines = [
        *head_lines(start),
        f"image = {_toml(start.image)}",
        *_array("mounts", mounts_of(start.site.binds)),
        *_array("devices", runtime.devices),
        # Sarus Suite would run one by default.
        "entrypoint = false",
        *_table("env", start.variables()),
        *_table("annotations", dict(sorted(runtime.annotations.items()))),
    ]
    return "\n".join(lines) + "\n"


def _array(name: str, values: Iterator[str] | tuple[str, ...] | list[str]) -> list[str]:
    return [f"{name} = [{', '.join(map(_toml, values))}]"] if values else []


def _table(name: str, values: Mapping[str, str]) -> list[str]:
    return ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())] if values else []


def _toml(text: str) -> str:
    # A string of JSON is one of TOML: no value has control characters.
    return json.dumps(text, ensure_ascii=False)


FORMAT = TextFormat(title="an EDF", first_lines=WRITTEN, render=_render, runtimes=OF_EDF, scheduler="")

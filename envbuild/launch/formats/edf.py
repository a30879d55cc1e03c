"""The Environment Definition File of CSCS: TOML that names an image, for srun. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from envbuild.errors import RequestError
from envbuild.launch.formats import TextFormat
from envbuild.launch.runtimes import WRITTEN, SiteLaunch, head_lines, mounts_of
from envbuild.launch.runtimes.edf import IMAGE_FORMATS, OPTIONS


def _render(launch: SiteLaunch) -> str:
    """Return the EDF of an image: TOML, in the dialect of the Container Engine or of Sarus Suite.

    RequestError: the runtime reads no EDF, or cannot start an image that is named so.
    """
    runtime = launch.runtime
    if runtime.name not in OPTIONS:
        raise RequestError(
            f"`{runtime.name}` reads no EDF", hint=f"--runtime names one that does: {', '.join(OPTIONS)}"
        )
    if runtime.name == "sarus-suite" and (
        launch.image[0] in "./$" or launch.image.endswith((".sqsh", ".sif"))
    ):
        raise RequestError(
            f"Sarus Suite starts no file: `{launch.image}`",
            hint="`--format oci` writes what a registry takes; --image names it there",
        )
    lines = [
        *head_lines(launch),
        f"image = {_toml(launch.image)}",
        *_array("mounts", mounts_of(launch.site.binds)),
        *_array("devices", runtime.devices),
        # Sarus Suite would run one by default.
        "entrypoint = false",
        *_table("env", launch.variables),
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


FORMAT = TextFormat(
    title="an EDF",
    first_lines=WRITTEN,
    render=_render,
    runtimes=OPTIONS,
    image_format=lambda name: IMAGE_FORMATS.get(name, ""),
    scheduler="",
)

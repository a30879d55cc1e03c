"""Values that options and arguments accept; every command loads this module: it imports nothing slow."""

from __future__ import annotations

from typing import Literal, get_args

from envbuild.launch.formats import PodFormat, ScriptFormat
from envbuild.launch.launchers import launcher_names

# Of an image; a `ScriptFormat` or `PodFormat` is a text that starts one at a site.
ExportFormat = Literal["squashfs", "shifter", "oci"]
RuntimeName = Literal["charliecloud", "docker", "enroot", "podman", "pyxis"]
# The form that a runtime reads.
FORM_OF_RUNTIME: dict[RuntimeName, ExportFormat] = {
    "charliecloud": "squashfs",
    "docker": "oci",
    "enroot": "squashfs",
    "podman": "oci",
    "pyxis": "squashfs",
}
AnyFormat = Literal[ExportFormat, ScriptFormat, PodFormat, RuntimeName]
# Of an image in a registry; the last two are names of `oci`.
PushFormat = Literal["sif", "oci", "podman", "docker"]
SCRIPT_FORMATS: tuple[str, ...] = get_args(ScriptFormat)
POD_FORMATS: tuple[str, ...] = get_args(PodFormat)
LAUNCHERS = launcher_names()
SchemaKind = Literal["spec", "recipe", "job", "base", "site", "config", "lock", "knowledge", "bench"]

"""Values that options and arguments accept; without imports, since every command loads this module."""

from __future__ import annotations

from typing import Literal

# Of an image, and of a text that starts one at a site.
ExportFormat = Literal["squashfs", "shifter", "oci"]
StartFormat = Literal["edf", "sbatch"]
AnyFormat = Literal[ExportFormat, StartFormat]
SchemaKind = Literal["spec", "recipe", "controls", "base", "site", "lock"]

"""Values that options and arguments accept; without imports, since every command loads this module."""

from __future__ import annotations

from typing import Literal

ExportFormat = Literal["squashfs", "shifter", "oci"]
SchemaKind = Literal["spec", "recipe", "controls", "base", "site", "lock"]

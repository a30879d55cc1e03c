"""Small wheels, written by hand."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def make_wheel(directory: Path, name: str = "demo-1.0-py3-none-any.whl", **files: str | bytes) -> Path:
    """Write a wheel that holds a module and a program, and further files; return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    distribution, version, *_ = name.split("-")
    info = f"{distribution}-{version}.dist-info"
    contents: dict[str, str | bytes] = {
        f"{distribution}/a.py": "print('a')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{distribution} = {distribution}.a:main\n",
        f"{distribution}-{version}.data/scripts/old-{distribution}": "#!python\n",
        **files,
    }
    record = [f"{file},sha256={_digest(text)}," for file, text in contents.items()]
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in contents.items():
            member = zipfile.ZipInfo(file)
            member.external_attr = (0o100755 if "scripts" in file else 0o100600) << 16
            archive.writestr(member, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,\n"]))
    return path


def _digest(content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")

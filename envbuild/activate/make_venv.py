"""Make a virtual environment on top of an image; runs inside it, with its Python.

``python -m venv`` of an image would link to a Python that only the image has, and would not see the image's
packages if its Python is itself a virtual environment. Here the new environment's ``bin/python`` is a link to
the wrapper on the host, the image's packages follow those of the environment, and the image's digest is
recorded, so that a start with another image is rejected.

Called as ``make_venv.py WRAPPER DIGEST ARGUMENT...``, with the arguments of ``python -m venv``. Standard
library only.
"""

from __future__ import annotations

import sys
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace


def builder_for(wrapper: Path, digest: str) -> type[venv.EnvBuilder]:
    """Return an `EnvBuilder` whose environments start through a wrapper of ``python3``.

    Host and image see the wrapper at the same path; `digest` is the image's identity.
    """

    class Builder(venv.EnvBuilder):
        def ensure_directories(self, env_dir: str) -> SimpleNamespace:  # type: ignore[override]
            context: SimpleNamespace = super().ensure_directories(env_dir)
            context.executable = str(wrapper)
            context.python_dir = str(wrapper.parent)
            context.python_exe = "python3"
            context.env_exe = str(Path(context.bin_path, "python3"))
            context.env_exec_cmd = context.env_exe
            return context

        def create_configuration(self, context: SimpleNamespace) -> None:
            super().create_configuration(context)
            with Path(context.env_dir, "pyvenv.cfg").open("a", encoding="utf-8") as file:
                file.write(f"envbuild-image = {digest}\n")
            # If an image's Python is itself a virtual environment, it hides its packages from others.
            if self.system_site_packages and sys.prefix != sys.base_prefix:
                own = sysconfig.get_path("purelib", vars={"base": context.env_dir})
                image = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
                lines = "".join(f"{path}\n" for path in image)
                Path(own, "envbuild-image.pth").write_text(lines, encoding="utf-8")

    return Builder


def main(arguments: list[str]) -> None:
    """Make the environments that the arguments name."""
    wrapper, digest, *rest = arguments
    if "--without-pip" not in rest and find_spec("ensurepip") is None:
        if "--system-site-packages" in rest and find_spec("pip") is not None:
            how = "made without its own pip; the image's works: DIR/bin/python -m pip install NAME"
        else:
            how = (
                "made without pip, which this image lacks; from outside the image:"
                " uv pip install --python DIR/bin/python NAME (a uv lies beside the program envbuild)"
            )
        sys.stderr.write(f"envbuild: {how}\n")
        rest = ["--without-pip", *rest]
    venv.EnvBuilder = builder_for(Path(wrapper), digest)  # type: ignore[misc]
    venv.main(rest)


if __name__ == "__main__":
    main(sys.argv[1:])

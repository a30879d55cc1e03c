"""The files by which Apptainer starts an image, and its environment for Charliecloud and enroot.

Each file is its path in the image → text and mode. The base carries the files that do not depend on the
image; the top layer carries the others and `ENVIRONMENT`, the environment as a script.
"""

from __future__ import annotations

import json
import shlex

from envbuild.digests import canonical_json
from envbuild.image.environment import render_enroot, render_script, render_table
from envbuild.image.model import JUDGE, Manifest

DIRECTORY = "/.singularity.d"
ENVIRONMENT = f"{DIRECTORY}/env/90-environment.sh"
# Read by `ch-run --set-env`: Charliecloud sources no scripts.
CHARLIECLOUD = "/ch/environment"
# Read by enroot, and so by pyxis.
ENROOT = "/etc/environment"
EMPTY_DIRECTORIES = (f"{DIRECTORY}/libs",)

_SCRIPT = 0o755
_TEXT = 0o644

Files = dict[str, tuple[str, int]]

_BASE = f"""\
#!/bin/sh
# Libraries of the host (--nv, --rocm) come last: the image's own are what it was built with.
LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+${{LD_LIBRARY_PATH}}:}}{DIRECTORY}/libs"
PS1="${{PS1:-Apptainer> }}"
export LD_LIBRARY_PATH PS1
"""

_RUNTIME_VARIABLES = """\
#!/bin/sh
# APPTAINERENV_PREPEND_PATH, APPTAINERENV_APPEND_PATH and a PATH given by the user.
PATH="${SING_USER_DEFINED_PREPEND_PATH:+${SING_USER_DEFINED_PREPEND_PATH}:}${PATH}"
PATH="${PATH}${SING_USER_DEFINED_APPEND_PATH:+:${SING_USER_DEFINED_APPEND_PATH}}"
PATH="${SING_USER_DEFINED_PATH:-${PATH}}"
export PATH
unset SING_USER_DEFINED_PREPEND_PATH SING_USER_DEFINED_APPEND_PATH SING_USER_DEFINED_PATH
"""

_RUN = """\
#!/bin/sh
if [ "$#" -gt 0 ]; then
    exec "$@"
fi
if [ -x /bin/bash ]; then
    exec /bin/bash --norc
fi
exec /bin/sh
"""

_START = """\
#!/bin/sh
if [ "$#" -gt 0 ]; then
    exec "$@"
fi
"""

_TEST = f"""\
#!/bin/sh
exec /usr/bin/python3 -I {JUDGE} test "$@"
"""


def base_files() -> Files:
    """Return the files that every base carries, besides `EMPTY_DIRECTORIES`."""
    return {
        f"{DIRECTORY}/env/99-base.sh": (_BASE, _SCRIPT),
        f"{DIRECTORY}/env/99-runtimevars.sh": (_RUNTIME_VARIABLES, _SCRIPT),
    }


def top_files(manifest: Manifest) -> Files:
    """Return the files of the top layer, besides `ENVIRONMENT`."""
    return {
        f"{DIRECTORY}/Singularity": (definition_text(manifest), _TEXT),
        f"{DIRECTORY}/labels.json": (json.dumps(labels(manifest), indent=1) + "\n", _TEXT),
        f"{DIRECTORY}/runscript": (_RUN, _SCRIPT),
        f"{DIRECTORY}/runscript.help": (_help(manifest), _TEXT),
        f"{DIRECTORY}/startscript": (_START, _SCRIPT),
        f"{DIRECTORY}/test": (_TEST, _SCRIPT),
        CHARLIECLOUD: (render_table(manifest.environment), _TEXT),
        ENROOT: (render_enroot(manifest.environment), _TEXT),
    }


def labels(manifest: Manifest) -> dict[str, str]:
    """Return the labels of an image, sorted; the spec's own replace those made from the manifest."""
    facts = {
        "org.opencontainers.image.title": manifest.name,
        "org.opencontainers.image.version": manifest.version,
        "org.opencontainers.image.description": manifest.summary,
        "org.label-schema.build-arch": manifest.architecture,
        "envbuild.base": manifest.base,
        "envbuild.python": manifest.python,
        "envbuild.mpi": manifest.mpi,
        "envbuild.lock": manifest.lock_digest,
        **{f"envbuild.recipe.{name}": version for name, version in manifest.recipes.items()},
    }
    return dict(sorted({**{name: fact for name, fact in facts.items() if fact}, **manifest.labels}.items()))


def definition_text(manifest: Manifest) -> str:
    """Return the text that ``apptainer inspect --deffile`` shows."""
    recipes = " ".join(f"{name}@{version}" for name, version in sorted(manifest.recipes.items()))
    return "\n".join(
        [
            "Bootstrap: scratch",
            "",
            "# Made by envbuild from a lock, not from a definition file; this text says from what.",
            "# The lock travels in the image: `envbuild inspect IMAGE.sif` shows it.",
            f"# name: {manifest.name}",
            f"# version: {manifest.version}",
            f"# base: {manifest.base}",
            f"# python: {manifest.python}",
            f"# mpi: {manifest.mpi or 'none'}",
            f"# recipes: {recipes or 'none'}",
            f"# lock: {manifest.lock_digest}",
            "",
        ]
    )


def inspection(manifest: Manifest) -> str:
    """Return the canonical JSON that ``apptainer inspect`` reads instead of starting the image."""
    files = top_files(manifest)

    def text(name: str) -> str:
        return files[f"{DIRECTORY}/{name}"][0]

    attributes = {
        "environment": {ENVIRONMENT: render_script(manifest.environment)},
        "labels": labels(manifest),
        "runscript": text("runscript"),
        "startscript": text("startscript"),
        "test": text("test"),
        "helpfile": text("runscript.help"),
        "deffile": text("Singularity"),
    }
    document = {"data": {"attributes": attributes}, "type": "container"}
    return canonical_json(document) + "\n"


def _help(manifest: Manifest) -> str:
    summary = f": {manifest.summary}" if manifest.summary else ""
    commands = shlex.join(manifest.commands)
    return "\n".join(
        [
            f"{manifest.name} {manifest.version}{summary}",
            "",
            "apptainer run IMAGE COMMAND [ARGUMENT…] runs a command, and without one a shell;",
            "apptainer test IMAGE runs its mini jobs.",
            *([f"Commands: {commands}"] if commands else []),
            "",
        ]
    )

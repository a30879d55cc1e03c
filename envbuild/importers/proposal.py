"""Proposes a spec for the statements of a file; each piece of the file gets a note."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import ValidationError

from envbuild.importers.conda import conda_table
from envbuild.importers.shell import UNCLOSED_QUOTES, expand, is_unresolved, split_script
from envbuild.importers.statements import Statement
from envbuild.spec.accelerators import ACCELERATORS, CUDA
from envbuild.spec.base import BaseImage
from envbuild.spec.corrections import corrected_requirement
from envbuild.spec.model import MAX_NAME, MAX_TEXT, Choice, EnvSpec, Prepend, parse_choice
from envbuild.spec.recipe import Recipe
from envbuild.spec.requirements import requirement_lines, without_hashes
from envbuild.spec.reserved import reserved_at, search_path_problem
from envbuild.spec.secrets import may_hold_secret, shown, without_secrets
from envbuild.spec.select import variant_for
from envbuild.system.files import is_below, read_input

Outcome = Literal["taken", "skipped", "unsupported"]
FindWithoutWheels = Callable[[Sequence[str], str], Collection[str] | None]

MAX_BYTES = 1 << 20
_MAX_REQUIREMENT_FILES = 100
_INSTALL = re.compile(
    r"(?:\S*/)?(?:(apt(?:-get|itude)?)|(?:python[\d.]* -m )?pip[\d.]*|uv pip)(?: \S+)*? install(?: |$)"
)
_APT_OPTION_WITH_VALUE = re.compile(r"-[toc]|--(?:target-release|default-release|option)")
_PIP_OPTION_WITH_VALUE = re.compile(
    r"-[rcifetpCbP]|--(?:requirements?|constraints?|(?:extra-)?index-url|(?:default-)?index|find-links|editable"
    r"|trusted-host|allow-insecure-host|target|prefix|root(?:-user-action)?|timeout|(?:resume-)?retries"
    r"|progress-bar|no-binary|only-binary|python(?:-version|-platform)?|cache-dir|proxy|cert|client-cert|header"
    r"|password|token|auth|username|keyring-provider|src|log|abi|implementation|platform|report|exists-action"
    r"|upgrade-strategy|upgrade-package|reinstall-package|config-settings?|global-option|build-option"
    r"|install-option|build-constraints?|overrides?|use-feature|use-deprecated|group|extra|index-strategy"
    r"|torch-backend|exclude-newer|resolution|prerelease|link-mode|config-file|directory|project)"
)
_IGNORED_PIP_OPTION = re.compile(
    r"-[UIqvy]+|--(?:no-cache(?:-dir)?|upgrade|quiet|system|break-system-packages|root-user-action|timeout)"
)
_SKIPPED_COMMAND = re.compile(
    r"(?:\S*/)?(?:apt(?:-get|itude)?(?: -\S+)* (?:update|(?:dist-|full-)?upgrade|(?:auto)?clean|autoremove)"
    r"|rm(?: -\S+)*(?: /(?:var/(?:lib/apt|cache|tmp|log)|tmp|root/\.cache)\S*)+$"
    r"|(?:conda|mamba|micromamba) clean|pip[\d.]* cache|python[\d.]* -m venv"
    r"|(?:set|true|:|echo|ldconfig|exit|cd|pwd|ls|umask|hash|virtualenv)(?: |$)).*"
)
_CONDA = re.compile(r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(?P<version>.*)")
_CONDA_BUILD = re.compile(r"={1,2}[^=,]+=(\S+)")
_PREINSTALLED = re.compile(r"python3(?:-minimal|-pip|-venv|-setuptools|-wheel)?|ca-certificates|tzdata")
_MPI_PACKAGE = re.compile(r"(?:lib)?(openmpi|mpich)(?:[\d-].*)?")
_MPI_SOURCE = re.compile(r"(?:wget|curl|git) .*?(?:\b(openmpi|mpich)-(\d+(?:\.\d+)+)|/(ompi|mpich)\b)")
_ACCELERATOR = re.compile(
    rf"(?<![a-z0-9])(?:{CUDA.label.pattern}|({'|'.join(ACCELERATORS)}):?(\d+(?:\.\d+)?)?|gpu|nvcr)(?![a-z0-9])"
)
_REASONS = {
    "earlier stage": "only the last stage makes the image",
    "LABEL": "set it under `labels`",
    "%labels": "set it under `labels`",
    "%help": "set it under `summary`",
    "CMD": "an image runs the command that it is given",
    "%runscript": "an image runs the command that it is given",
    "%test": "the jobs of the recipes test an image",
    "conda": "name its packages under `packages.python`",
    "channels:": "wheels come from the index of Python packages, all else from Debian",
    "prefix:": "an image has its environment in /opt/env",
    "yum": "base images are Debian: name its packages under `packages.system`",
    "dnf": "base images are Debian: name its packages under `packages.system`",
    "make": "a program that is built needs a recipe with `source`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportNote:
    """A piece of the file, and its place in the spec or the reason why it has none.

    `outcome` is ``skipped`` if an image of envbuild does not need the piece.
    """

    line: int
    outcome: Outcome
    text: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The data of a spec, and notes in the order of the file."""

    spec: dict[str, Any]
    notes: list[ImportNote]


def propose(
    statements: Iterable[Statement],
    name: str,
    directory: Path,
    recipes: Sequence[Recipe],
    bases: Sequence[BaseImage],
    without_wheels: FindWithoutWheels = lambda _texts, _python: frozenset(),
) -> Proposal:
    """Return the spec that a file describes; the file may name others in its directory.

    `without_wheels` returns which of several requirements have no wheel for a Python (``3.11``, empty for
    any), or None if that is not known.
    """
    importer = _Importer(directory, recipes, bases)
    for statement in statements:
        importer.read(statement)
    importer.check_wheels(without_wheels)
    importer.check_accelerator()
    return importer.proposal(name)


def _spec_rejects(**entries: object) -> str:
    """Return why a spec rejects entries; empty if it accepts them."""
    try:
        EnvSpec.model_validate({"name": "x", "version": "1", **entries})
    except ValidationError as error:
        message: str = error.errors(include_url=False, include_input=False)[0]["msg"]
        return shown(message.removeprefix("Value error, "), most=300)
    return ""


class _Importer:
    """The spec so far, and the variables and files that the file has defined."""

    def __init__(self, directory: Path, recipes: Sequence[Recipe], bases: Sequence[BaseImage]) -> None:
        self.directory = directory
        self.bases = bases
        # By their names and by the distributions that they bring.
        self.recipes = {name: recipe for recipe in reversed(recipes) for name in (recipe.name, *recipe.owns)}
        self.notes: list[ImportNote] = []
        self.line = 0
        self.variables: dict[str, str] = {}
        self.copied: dict[str, str] = {}  # path in the image → path beside the file
        self.requirement_files: set[str] = set()
        self.in_quotes = False
        self.name = ""
        self.passed_over: set[str] = set()  # kinds of what conda's packages have and wheels do not
        self.from_conda: dict[tuple[str, str], tuple[int, str]] = {}  # requirement → line and text

        self.base = self.python = self.accelerator = ""
        self.mpi: dict[str, str] = {}  # recipe → with its constraint; at most one
        self.frameworks: dict[str, str] = {}
        self.requirements: dict[tuple[str, str], str] = {}  # by name and marker
        self.needs_mpi = False
        self.debian: list[str] = []
        self.environment: dict[str, str | dict[str, str]] = {}
        self.files: dict[str, dict[str, str | bool]] = {}  # by target

    def proposal(self, name: str) -> Proposal:
        if self.needs_mpi and not self.mpi:
            self.mpi = {"mpich": "mpich"}
        packages = {"python": list(self.requirements.values()), "system": self.debian}
        spec = {
            "name": re.sub(r"[^a-z0-9._-]+", "-", (self.name or name).lower())[:MAX_NAME].strip("-._")
            or "imported",
            "version": "1",
            "base": self.base,
            "python": self.python,
            "mpi": "".join(self.mpi.values()),
            "frameworks": list(self.frameworks.values()),
            "accelerator": self.accelerator,
            "packages": {key: value for key, value in packages.items() if value},
            "environment": self.environment,
            "files": list(self.files.values()),
        }
        spec = {key: value for key, value in spec.items() if value}
        if spec.keys() == {"name", "version"}:
            self.line = 1
            self.note("unsupported", "the whole file", "nothing in it fits into a spec")
        return Proposal(spec=spec, notes=self.notes)

    def note(self, outcome: Outcome, text: str, what: str) -> None:
        self.notes.append(ImportNote(line=self.line, outcome=outcome, text=shown(text), what=what))

    def read(self, statement: Statement) -> None:
        self.line = statement.line
        name, text = statement.name, statement.text
        self.in_quotes = self.in_quotes and name == "%post"
        if name in ("FROM", "From"):
            self.read_base(statement)
        elif name in ("RUN", "%post"):
            self.read_script(text)
        elif name in ("ENV", "%environment"):
            self.read_environment(statement)
        elif name in ("COPY", "ADD", "%files"):
            self.read_files(statement)
        elif name in ("ARG", "%arguments"):
            self.read_script(f"export {text}")
        elif name == "requirement":
            self.read_requirement_line(text)
        elif name == "conda":
            self.read_conda(text)
        elif name == "name:":
            self.name = text
            self.note("taken", f"name: {text}", "name")
        elif name == "Bootstrap":
            self.note("skipped", f"{name}: {text}", "envbuild makes base images from packages")
        else:
            written = text if name.startswith(("%", "earlier")) else f"{name} {text}"
            self.note("unsupported", written, _REASONS.get(name, "a spec has no such setting"))

    def read_base(self, statement: Statement) -> None:
        text = f"{statement.name} {statement.text}"
        image = expand("".join(statement.values), self.variables).strip().partition("@")[0]
        image = re.sub(r"^(?:--\S+\s+)*(?:docker://)?(?:docker\.io/)?(?:library/)?", "", image)
        name, _, tag = image.partition(":")
        recipe = self.recipes.get(posixpath.basename(name))
        if name in ("debian", "python"):
            self.take_base(text, name, tag)
        elif recipe and recipe.kind == "framework":
            release = re.match(r"\d+(?:\.\d+)+", tag)
            self.take_recipe(text, recipe.name, f"=={release[0]}" if release else "", image)
        elif not self.take_accelerator(text, image):
            self.note("unsupported", text, "no base image matches; without `base`, envbuild chooses one")

    def take_base(self, text: str, image: str, tag: str) -> None:
        parts = re.split(r"[-.]", tag)
        python = re.match(r"3\.\d+", tag) if image == "python" else None
        bases = [
            base for base in self.bases if base.suite in parts or (not python and base.version == parts[0])
        ]
        if python:
            bases = [base for base in bases or self.bases if base.python.version == python[0]]
        if bases:
            self.base = min(base.name for base in bases)
            self.python = python[0] if python else ""
            self.note("taken", text, f"base: {self.base}")
        else:
            available = ", ".join(f"{base.name} (Python {base.python.version})" for base in self.bases)
            self.note("unsupported", text, f"no base image matches; there are {available}")

    def read_script(self, script: str) -> None:
        for line, words, problem in split_script(script, self.line):
            self.line = line
            if self.in_quotes or problem:
                self.note("unsupported", " ".join(words), problem or "it is quoted text")
            else:
                self.read_command(words)
            self.in_quotes ^= problem == UNCLOSED_QUOTES

    def read_command(self, written: Sequence[str]) -> None:
        words: list[str] = []
        # Options of RUN, and variables of one command.
        while len(written) > 1 and re.match(r"--|sudo$|\w+=", written[0]):
            written = written[1:]
        for word in written:
            value = expand(word, self.variables)
            # A variable may hold several words.
            words += (value.split() or [""]) if re.fullmatch(r"\$\{?\w+\}?", word) else [value]
        text = " ".join(words)
        if words[0] == "export" or re.match(r"\w+=", words[0]):
            for name, equals, value in (word.partition("=") for word in words):
                if equals and not is_unresolved(value) and not may_hold_secret(f"{name}={value}"):
                    self.variables[name] = value
            self.note("skipped", text.removeprefix("export "), "a variable of the build")
        elif install := _INSTALL.match(text):
            arguments = words[len(install[0].split()) :]
            if install[1]:
                self.install_debian(arguments)
            else:
                self.install_python(arguments)
        elif mpi := _MPI_SOURCE.match(text):
            recipe = (mpi[1] or mpi[3]).replace("ompi", "openmpi")
            self.take_recipe(text, recipe, f"=={mpi[2]}" if mpi[2] else "")
        elif _SKIPPED_COMMAND.fullmatch(text):
            self.note("skipped", text, "an image does not need it")
        else:
            reason = "a spec has packages, variables and files, but no commands"
            self.note("unsupported", text, _REASONS.get(posixpath.basename(words[0]), reason))

    def install_debian(self, arguments: Sequence[str]) -> None:
        packages = []
        words = iter(arguments)
        for word in words:
            if word.startswith("-"):
                if _APT_OPTION_WITH_VALUE.fullmatch(word):
                    self.note("unsupported", f"{word} {next(words, '')}", "a spec has no such option")
                continue
            name = re.split("[=/:]", word)[0]
            if word.endswith("-") or _spec_rejects(packages={"system": (name,)}):
                self.note("unsupported", word, "it does not name a Debian package")
                continue
            if mpi := _MPI_PACKAGE.fullmatch(name):
                self.take_recipe(word, mpi[1])
            elif _PREINSTALLED.fullmatch(name):
                self.note("skipped", word, "the base image or envbuild brings it")
            else:
                packages.append(name)
            if name != word.partition(":")[0]:
                self.note("unsupported", word, "the lock decides the versions of Debian packages")
        if packages:
            self.debian = list(dict.fromkeys((*self.debian, *packages)))
            self.note("taken", "apt-get install", f"packages.system: {', '.join(packages)}")

    def install_python(self, arguments: Sequence[str], place: str = "", beside: str = "") -> None:
        """Read arguments of ``pip install``, or a line of a requirements file at a place in a directory."""
        words = iter(arguments)
        for word in words:
            option, equals, value = word.partition("=")
            if not equals and _PIP_OPTION_WITH_VALUE.fullmatch(option):
                value = next(words, "")
            text = f"{place}{option} {value}"
            if not word.startswith("-"):
                self.read_requirement(word, place)
            elif option in ("-r", "--requirement"):
                self.read_requirement_file(posixpath.join(beside, value), text)
            elif option.endswith("-url") or option in ("-i", "-f", "--find-links", "--trusted-host"):
                self.take_accelerator(text, value)
                self.note("unsupported", text, "addresses are settings of the site, not of a spec")
            elif not _IGNORED_PIP_OPTION.fullmatch(option):
                self.note("unsupported", text, "a spec has no such option")

    def read_requirement_file(self, name: str, text: str) -> None:
        path = posixpath.normpath(name)
        path = self.copied.get(path, path)
        file = self.beside(path)
        if path in self.requirement_files:
            self.note("skipped", text, "the file is read once")
        elif file is None or len(self.requirement_files) == _MAX_REQUIREMENT_FILES:
            self.note("unsupported", text, "the file is not beside this one")
        else:
            self.requirement_files.add(path)
            content = read_input(file, limit_bytes=MAX_BYTES).decode("utf-8-sig", errors="replace")
            for number, line in requirement_lines(content):
                self.read_requirement_line(line, f"{path}:{number}: ", posixpath.dirname(path))

    def read_requirement_line(self, line: str, place: str = "", beside: str = "") -> None:
        """Read a line of a requirements file at a place in a directory."""
        requirement = without_hashes(line)
        if "--hash" in line and "hashes" not in self.passed_over:
            self.passed_over.add("hashes")
            why = "hashes are not taken over, here and below; `envbuild init -r FILE` keeps them"
            self.note("unsupported", f"{place}{requirement} --hash", why)
        if not line.startswith("-"):
            self.install_python([requirement], place, beside)
        elif may_hold_secret(line) or without_secrets(line) != line:
            self.note(
                "unsupported", place + line, "a spec has no options, and a secret does not belong in one"
            )
        else:
            # One option: what follows its value is neither another nor a package.
            self.install_python(line.split(maxsplit=1), place, beside)

    def read_requirement(self, text: str, place: str) -> None:
        if why := _spec_rejects(packages={"python": (text,)}):
            self.note("unsupported", place + text, why)
            return
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        recipe = self.recipes.get(name) or self.recipes.get(name.removesuffix("-gpu"))
        is_part = recipe is not None and name in {*recipe.owns} - recipe.main_distributions
        if name in ("pip", "setuptools", "wheel"):
            self.note("skipped", place + text, "envbuild installs Python packages itself")
        elif name == "mpi4py":
            self.needs_mpi = True
            self.note("taken", place + text, "mpi: its recipe brings mpi4py")
        elif recipe and is_part and recipe.name in self.frameworks:
            self.note("skipped", place + text, f"the recipe `{recipe.name}` decides on it")
            self.take_accelerator(place + text, text)
        elif recipe and not is_part and recipe.kind in ("framework", "mpi"):
            self.take_recipe(place + text, recipe.name, str(requirement.specifier), text)
        else:
            key = (name, str(requirement.marker))
            if self.requirements.get(key, text) != text:
                earlier = Requirement(self.requirements[key])
                requirement.specifier &= earlier.specifier
                requirement.extras |= earlier.extras
                self.requirements[key] = str(requirement)
            self.requirements.setdefault(key, text)
            self.note("taken", place + text, "packages.python")

    def read_conda(self, text: str) -> None:
        """Read a package of conda: ``channel::name=version=build``."""
        table = conda_table()
        channel, _, written = text.rpartition("::")
        match = _CONDA.fullmatch(written.strip())
        if match is None:
            self.note("unsupported", text, "it is not a package with a version")
            return
        name, version = match["name"].lower(), match["version"]
        build = _CONDA_BUILD.fullmatch(version)
        for what, used in (("channels", channel), ("builds", build)):
            if used and what not in self.passed_over:
                self.passed_over.add(what)
                self.note("unsupported", text, f"{what} of conda are not used, here and below")
        recipe = self.recipes.get(name)
        if name == "python":
            self.take_python(text, version)
        elif name in table.cuda:
            release = re.search(r"\d+(?:\.\d+)?", version)
            if self.accelerator:
                self.note("skipped", text, "the accelerator is chosen already")
            else:
                self.take_accelerator(text, f"cuda:{release[0]}" if release else "cuda")
        elif name in table.debian:
            self.debian = list(dict.fromkeys((*self.debian, table.debian[name])))
            self.note("taken", text, f"packages.system: {table.debian[name]}")
        elif recipe is None and any(re.fullmatch(pattern, name) for pattern in table.skipped):
            self.note("skipped", text, "an image has it, or does not need it")
        else:
            wheel = table.wheels.get(name, name)
            if "gpu" in name and "cpu" in wheel:
                self.note("unsupported", text, f"`{wheel}` takes its place, which does not use GPUs")
            self.read_conda_wheel(text, wheel, version)

    def read_conda_wheel(self, text: str, name: str, version: str) -> None:
        wanted = corrected_requirement(f"{name}{version}")
        if wanted is None:
            self.note("unsupported", text, f"`{version}` is not a version of a Python package")
            return
        before = set(self.requirements)
        self.read_requirement(wanted, "")
        self.from_conda |= dict.fromkeys(self.requirements.keys() - before, (self.line, text))

    def check_wheels(self, without_wheels: FindWithoutWheels) -> None:
        """Take back what comes from conda and has no wheel."""
        texts = [self.requirements[key] for key in self.from_conda]
        without = without_wheels(texts, self.python) if texts else frozenset()
        if without is None:
            self.line = 1
            self.note("unsupported", "dependencies", "no index could be asked which of them have wheels")
            return
        for key, (line, text) in self.from_conda.items():
            if self.requirements[key] in without:
                del self.requirements[key]
                self.notes = [note for note in self.notes if note.line != line or note.outcome != "taken"]
                self.line = line
                self.note("unsupported", text, "neither a wheel nor a Debian package of it is known")
        self.notes.sort(key=lambda note: note.line)

    def take_python(self, text: str, version: str) -> None:
        release = re.search(r"3\.\d+", version)
        if not version or (release and any(base.python.version == release[0] for base in self.bases)):
            self.python = release[0] if release else ""
            self.note("taken", text, f"python: {self.python}" if release else "every base image has Python 3")
        else:
            available = ", ".join(sorted({base.python.version for base in self.bases}))
            self.note("unsupported", text, f"no base image has that Python; there are {available}")

    def take_recipe(self, text: str, name: str, specifier: str = "", build: str = "") -> None:
        """Take a framework or MPI, with the version if the recipe has it, and the accelerator of a build."""
        recipe = self.recipes.get(name)
        if recipe is None or (recipe.kind == "mpi" and self.mpi and name not in self.mpi):
            why = (
                f"an image has one MPI, here {''.join(self.mpi)}"
                if recipe
                else f"there is no recipe `{name}`"
            )
            self.note("unsupported", text, why)
            return
        key, chosen = ("mpi", self.mpi) if recipe.kind == "mpi" else ("frameworks", self.frameworks)
        constraint = re.sub(r"\+[\w.]+|^==(?=[\d.]+(?:\+|$))", "", specifier)
        constraint = re.sub(r"^==([\d.]+)\.\*$", r"\1", constraint)
        if constraint and _has_version(recipe, constraint):
            chosen[name] = f"{name}@{constraint}"
        taken = f"{key}: {chosen.setdefault(name, name)}"
        if constraint and not _has_version(recipe, constraint):
            why = f"the recipe has no such version: see `envbuild recipes show {name}`; taken as {taken}"
            # Tags of images may be releases of a vendor.
            if recipe.source is None and re.fullmatch(r"[0-9.]+", constraint) and "/" not in build:
                why += f"; with `proven: false`, `{name}@{constraint}` needs no test result"
            self.note("unsupported", text, why)
        else:
            self.note("taken", text, taken)
        self.take_accelerator(text, build)

    def take_accelerator(self, text: str, build: str) -> bool:
        """Take the first accelerator; return whether the name of a build contains one."""
        match = _ACCELERATOR.search(build)
        if match and not self.accelerator:
            version = f"{match[1]}.{match[2]}" if match[1] else match[4]
            self.accelerator = (match[3] or "cuda") + (f"@{version}" if version else "")
            self.note("taken", text, f"accelerator: {self.accelerator}")
        return match is not None

    def check_accelerator(self) -> None:
        """Take the accelerator without its release if a framework has variants for other releases only."""
        family, _, release = self.accelerator.partition("@")
        wanted = Choice(name=family, constraint=f"=={release}.*" if release else "")
        any_release = Choice(name=family)
        for recipe in (self.recipes[name] for name in self.frameworks):
            if variant_for(wanted, recipe) or not variant_for(any_release, recipe):
                continue
            others = [name.replace("-", "@", 1) for name in recipe.variants if name.startswith(family)]
            what = f"the recipe `{recipe.name}` has {', '.join(others)}; taken as accelerator: {family}"
            for index, note in enumerate(self.notes):
                if note.what == f"accelerator: {self.accelerator}":
                    self.notes[index] = replace(note, outcome="unsupported", what=what)
            self.accelerator = family
            return

    def read_environment(self, statement: Statement) -> None:
        before = dict(self.variables)  # a line does not see the variables that it sets
        if not statement.values:
            self.note("unsupported", statement.text, "it is not a plain NAME=VALUE")
        for text in statement.values:
            name, _, written = text.partition("=")
            if name == "DEBIAN_FRONTEND" or name.startswith("PIP_"):
                self.note("skipped", text, "it is a setting of the build")
            else:
                why = self.set_variable(name, written, before)
                self.note("unsupported" if why else "taken", text, why or "environment")

    def set_variable(self, name: str, written: str, known: Mapping[str, str]) -> str:
        """Take a variable whose value is written with quotes; return why it cannot be taken."""
        try:
            words = shlex.split(written[: MAX_TEXT + 1])
        except ValueError:
            words = ["", ""]
        # The quotes and backslashes that shlex removes may keep a `$`.
        unclear = re.search(r";|\$.*['\\]|['\\].*\$", written[:MAX_TEXT])
        if not name.isidentifier() or len(words) > 1 or unclear:
            return "it is not a plain NAME=VALUE"
        value = "".join(words)
        front = re.fullmatch(rf"(.+):\$\{{?{name}\}}?", value)
        value = expand(front[1] if front else value, known)
        # Images have no PYTHONPATH, so that in front of nothing is the same.
        in_front = front or name == "PYTHONPATH"
        setting: str | dict[str, str] = {"prepend": value} if in_front else value
        if is_unresolved(value):
            return "it depends on an unknown variable"
        if may_hold_secret(f"{name}={value}"):
            return "a secret does not belong in an image: set it where a process starts"
        why = _spec_rejects(environment={name: setting})
        why = why or search_path_problem(name, Prepend(prepend=value) if in_front else value)
        if not why:
            self.environment[name] = setting
            self.variables |= {} if front else {name: value}
        return why

    def read_files(self, statement: Statement) -> None:
        if permissions := re.findall(r"--ch(?:own|mod)=\S+", statement.text):
            self.note("unsupported", " ".join(permissions), "files belong to root, with mode 0644 or 0755")
        for pair in statement.values or (statement.text,):
            words = [expand(word, self.variables) for word in pair.split()]
            if len(words) != 2 or not statement.values:
                why = "a file needs a source beside this one and a target"
            elif statement.name == "ADD" and re.search(r"://|^git@|\.(tar(\.\w+)?|tgz|tbz2?|txz)$", words[0]):
                why = "`ADD` downloads or unpacks it; keep files beside the spec"
            else:
                why = self.take_file(*words)
            self.note("unsupported" if why else "taken", " ".join(words), why or "files")

    def take_file(self, source: str, target: str) -> str:
        """Take a file; return why it cannot be taken."""
        name = posixpath.basename(source)
        self.copied |= {posixpath.normpath(target): source, posixpath.normpath(f"{target}/{name}"): source}
        path = self.beside(source)
        if path is None:
            return "there is no such file beside it; name the files of a directory one by one"
        target += name if target.endswith("/") else ""
        entry: dict[str, str | bool] = {"source": posixpath.normpath(source), "target": target}
        if os.access(path, os.X_OK):
            entry["executable"] = True
        reserved = reserved_at(target)
        why = f"{reserved.tree} is reserved: {reserved.why}" if reserved else _spec_rejects(files=(entry,))
        if not why:
            self.files[target] = entry
        return why

    def beside(self, name: str) -> Path | None:
        """Return the path of a regular file in or below the directory of the file."""
        path = self.directory / name
        # pathlib raises for some names.
        return path if os.path.isfile(path) and is_below(path, self.directory) else None  # noqa: PTH113


def _has_version(recipe: Recipe, constraint: str) -> bool:
    try:
        choice = parse_choice(f"{recipe.name}@{constraint}")
    except ValueError:
        return False
    return isinstance(choice, Choice) and any(choice.admits(version) for version in recipe.versions)

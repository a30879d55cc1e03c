"""Reads the statements of a file into the spec that is proposed for it."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EnvbuildError
from envbuild.importers.commands import (
    ADDRESSES,
    APT_OPTION_WITH_VALUE,
    BUILD_STEP,
    CONDA_INSTALL,
    CONDA_OPTION_WITH_VALUE,
    DOWNLOAD,
    FILTER,
    HASHES,
    IGNORED_PIP_OPTION,
    INSTALL,
    ONLY_ACTIVATES,
    OTHER_INSTALL,
    PIP_OPTION_WITH_VALUE,
    PREFIX_OF_OTHERS,
    PROJECT_INSTALL,
    REASONS,
    REMOVAL,
    SETUP_OF_PYTHON,
    TRIVIAL,
    mpi_source,
)
from envbuild.importers.conda import conda_table
from envbuild.importers.proposal import (
    Draft,
    FindWithoutWheels,
    ImportNote,
    Outcome,
    Proposal,
    spec_rejects,
)
from envbuild.importers.shell import Command, expand, is_unresolved, split_script
from envbuild.importers.statements import MAX_BYTES, Statement, environment_statements, read_statements
from envbuild.spec import locales
from envbuild.spec.base import BaseImage
from envbuild.spec.corrections import corrected_requirement
from envbuild.spec.model import MAX_TEXT, Prepend
from envbuild.spec.recipe import Recipe
from envbuild.spec.requirements import git_entry, requirement_lines, without_hashes
from envbuild.spec.reserved import reserved_at, search_path_problem
from envbuild.spec.secrets import may_hold_secret, shown, without_secrets
from envbuild.system.files import is_below, read_input

_MAX_FILES = 100
_MAX_COMMANDS = 5000
_CONDA = re.compile(r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(?P<version>.*)")
# `=1.2=py39_0`, and bounds with the build behind them: `>=2.7=cuda12*`.
_CONDA_BUILD = re.compile(r"(?P<bounds>[=<>!~]{1,2}[^=]+)=(?P<build>[^=,<>]+)")
_PREINSTALLED = re.compile(
    r"python[23]?(?:-(?:minimal|pip|venv|virtualenv|setuptools|wheel|distutils))?|python-is-python3"
    r"|ca-certificates|tzdata|cuda-keyring"
)
_INSTALLERS = frozenset(("pip", "setuptools", "wheel"))
_INSTALLERS_OF_SCRIPTS = frozenset(("pipenv", "poetry", "pdm", "uv", "virtualenv"))
# Directories that every image has, so that a file that is copied there keeps its name.
_COMMON_DIRECTORY = re.compile(
    r"/(?:usr/(?:local/)?)?(?:s?bin|lib(?:64)?|share|include|etc|src)/?"
    r"|/(?:usr|usr/local|opt|home|root|srv|tmp|var|mnt|media)/?"
)
_OTHER_PYTHON = re.compile(r"(?:lib)?python3\.(\d+)(?:-.*)?")
_MPI_PACKAGE = re.compile(r"(?:lib)?(openmpi|mpich)(?:[\d-].*)?")
_CUDA_PACKAGE = re.compile(
    r"(?:nvidia-)?cuda(?:-[a-z-]+?)?(?:-(\d+)[-.](\d+))?|lib(?:cudnn|nccl|cublas|cufft|curand|cusolver|cusparse|npp|"
    r"nvjpeg|cutensor)[\d-].*"
)
_INSTALLER_IMAGE = re.compile(
    r"(?:\S*/)?(?:continuumio|condaforge|mambaorg|astral-sh)/(?:\w*conda|mini\w*|mambaforge|micromamba|uv)\d*(?::|$)"
)
_CONDA_R = re.compile(r"r-(?!base$)[a-z0-9_.]+|bioconductor-[a-z0-9_.]+")
_OF_OTHER_BASE = re.compile(
    r"python3?\d*(?:-(?:pip|devel|dev|setuptools))?|epel-release|yum-utils|dnf-plugins-core|centos-release-\S+"
    r"|ca-certificates|coreutils|tar|gzip|(?:glibc|libgcc|libstdc\+\+)(?:-(?:devel|static))?"
)
_UNKNOWN_VERSION = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,_-]*\])?)\s*"
    r"(?:(?P<exact>==[0-9][0-9A-Za-z.]*)\+\$\S*|[=<>!~]{1,3}[^$`/@]*\$[^/@]*)"
)
_ONE_BY_ONE = "; name the files of a directory one by one"
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_WITH_HOST = re.compile(r"[a-z0-9-]*[.:][a-z0-9.:-]*/|localhost/")
_REGISTRY = re.compile(r"[a-z0-9.-]+[.:][a-z0-9.-]+/|[^/]+/")


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
    draft = Draft(recipes, bases)
    importer = _Importer(directory, draft)
    for statement in statements:
        importer.read(statement)
    draft.check_wheels(without_wheels)
    draft.check_companions()
    draft.check_accelerator()
    draft.check_paths()
    return draft.proposal(name)


class _Importer:
    """Reads statements into a draft; the variables and files that they have defined."""

    def __init__(self, directory: Path, draft: Draft) -> None:
        self.draft = draft
        self.directory = directory
        self.commands = 0
        self.variables = {"CONDA_PREFIX": "/opt/conda"}
        self.copied: dict[str, str] = {}  # path in the image → path beside the file
        self.directory_in_image = ""  # of WORKDIR and `cd`
        self.read_files_of: set[str] = set()  # requirements and environments that were read
        self.passed_over: set[str] = set()  # kinds of what conda's packages have and wheels do not
        self.bootstrap = ""  # of a definition file
        self.in_script = False
        self.building = ""  # why the steps of a build are passed over
        self.builds_mpi = False  # whether they are those of an MPI

    def read(self, statement: Statement) -> None:  # noqa: PLR0912
        self.draft.line = statement.line
        name, text = statement.name, statement.text
        if name in ("FROM", "From"):
            self.read_base(statement)
        elif name in ("RUN", "%post"):
            self.read_mounts(text)
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
        elif name == "python":
            self.draft.take_python(f"Python {text}", text)
        elif name == "error":
            self.draft.note("unsupported", text, "".join(statement.values))
        elif name == "name:":
            self.draft.name = text
            self.draft.note("taken", f"name: {text}", "name")
        elif name in ("Bootstrap", "Stage", "Mirrorurl", "Include", "Includecmd"):
            self.bootstrap = text.strip().lower() if name == "Bootstrap" else self.bootstrap
            self.draft.note("skipped", f"{name}: {text}", "envbuild makes base images from packages")
        elif name == "continued stage":
            self.draft.note("skipped", text, "the stage that it continues belongs to the image")
        elif name in (
            "MAINTAINER",
            "EXPOSE",
            "SHELL",
            "STOPSIGNAL",
            "HEALTHCHECK",
            "WORKDIR",
            "USER",
            "VOLUME",
        ):
            if name == "WORKDIR":
                self.change_directory(text)
            self.draft.note(
                "skipped", f"{name} {text}", "processes of an image run as its user, where they start"
            )
        else:
            written = text if name.startswith(("%", "earlier", "left")) else f"{name} {text}"
            reason = REASONS.get(name) or REASONS.get(name.split()[0], "a spec has no such setting")
            self.draft.note("unsupported", written.strip().removesuffix(":"), reason)

    def change_directory(self, text: str) -> None:
        path = expand(text.strip(), self.variables)
        self.directory_in_image = posixpath.normpath(posixpath.join(self.directory_in_image or "/", path))

    def read_base(self, statement: Statement) -> None:
        text = f"{statement.name} {statement.text}"
        image = expand("".join(statement.values), self.variables).strip().partition("@")[0]
        image = re.sub(r"^(?:--\S+\s+)*(?:docker://)?(?:docker\.io/)?(?:library/)?", "", image)
        name, _, tag = image.rpartition(":") if "/" not in image.rpartition(":")[2] else (image, "", "")
        name = name or image
        recipe = self.draft.recipes.get(posixpath.basename(name))
        if name in ("debian", "python"):
            self.draft.take_base(text, name, tag)
        elif _INSTALLER_IMAGE.match(image):
            self.draft.note("skipped", text, "envbuild installs Python packages itself")
        elif recipe and recipe.kind == "framework":
            release = re.match(r"\d+(?:\.\d+)+", tag)
            self.draft.take_recipe(text, recipe.name, f"=={release[0]}" if release else "", image)
            self.offer_image(text, image)
        elif self.draft.take_accelerator(text, image):
            self.offer_image(text, image)
        elif is_unresolved(image):
            self.draft.note(
                "unsupported", text, "it depends on an unknown variable: write its value into the file"
            )
        elif self.bootstrap == "localimage":
            file = shlex.quote(without_secrets(statement.text.strip()))
            self.draft.note("unsupported", text, f"to keep it: `envbuild extend {file} -r requirements.txt`")
        else:
            reason = "no base image matches; without `base`, envbuild chooses one"
            self.draft.note("unsupported", text, reason)
            if _REGISTRY.match(image):
                self.offer_image(text, image)

    def offer_image(self, text: str, image: str) -> None:
        if image.startswith("nvidia/cuda:"):
            return  # it has CUDA alone
        scheme = self.bootstrap if self.bootstrap in ("library", "oras", "shub") else "docker"
        pull = f"apptainer pull image.sif {scheme}://{without_secrets(image)}"
        as_base = ""
        if scheme == "docker" and ":" in image.rpartition("/")[2]:
            host = "" if _WITH_HOST.match(image) else "docker.io/" if "/" in image else "docker.io/library/"
            as_base = f"`base: {host}{without_secrets(image)}` if its Python is /usr/bin/python3; or "
        explanation = (
            f"the spec does not contain what else that image brings; to keep it: {as_base}`{pull}`, then"
            " `envbuild extend image.sif -r requirements.txt`"
        )
        self.draft.note("changed", text, explanation)

    def read_mounts(self, text: str) -> None:
        """Read which files beside this one a command of a Dockerfile sees, and where."""
        options = re.match(r"(?:--\S+[\s\\]+)*", text)
        for option in re.findall(r"--mount=(\S+)", options[0] if options else ""):
            values = dict(part.partition("=")[::2] for part in option.split(","))
            target = next((values[key] for key in ("target", "dst", "destination") if key in values), "")
            if target and values.get("type", "bind") == "bind" and "from" not in values:
                in_image = posixpath.join(self.directory_in_image or "/", target)
                self.copied[posixpath.normpath(in_image)] = values.get("source") or values.get("src") or "."

    def read_script(self, script: str) -> None:
        self.in_script = True
        self.read_commands(script)
        self.in_script = False

    def read_commands(self, script: str) -> None:
        try:
            words = json.loads(script) if script.lstrip().startswith("[") else None
        except (ValueError, RecursionError):
            words = None
        if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
            script = " ".join(map(shlex.quote, words))
        start = self.draft.line
        for command in split_script(script, start):
            self.commands += 1
            self.draft.line = command.line
            if self.commands > _MAX_COMMANDS:
                self.draft.note("unsupported", command.written, f"only {_MAX_COMMANDS} commands are read")
                return
            self.read_command(command)

    def read_command(self, command: Command) -> None:  # noqa: PLR0912, PLR0915
        words, assigned = self.plain_words(command.words)
        text = " ".join(words)
        parts = [words, *(self.plain_words(part)[0] for part in command.piped)]
        installs = [part for part in parts if _installs(" ".join(part))]
        if command.has_open_quotes:
            self.draft.note("unsupported", command.written, "its quotes do not end")
        elif not words or not text:
            self.draft.note("skipped", command.written, "a condition or loop")
        elif installs and command.is_alternative:
            reason = "it is installed only if another command is not; the first of them is taken"
            self.draft.note("unsupported", command.written, reason)
        elif installs:
            for part in installs:
                self.read_install(part, " ".join(part))
            names = [word.partition("=")[0] for word in assigned]
            names = [name for name in names if not _is_setting_of_build(name)]
            if names:
                verb = "has" if len(names) == 1 else "have"
                reason = f"wheels are not built: {', '.join(names)} {verb} no effect"
                self.draft.note("changed", " ".join((*assigned, text)), reason)
        elif removal := REMOVAL.match(text):
            self.remove(words[len(removal[0].split()) :], text, is_debian=removal["apt"] is not None)
        elif PROJECT_INSTALL.fullmatch(text) and self.beside(self.path_beside("pyproject.toml")) is not None:
            self.read_directory(".", text)
        elif words[0] in ("export", "declare", "readonly") or re.match(r"\w+=", words[0]):
            for name, equals, value in (word.partition("=") for word in (*assigned, *words)):
                if equals and not is_unresolved(value) and not may_hold_secret(f"{name}={value}"):
                    self.variables[name] = value
            self.draft.note("skipped", text.removeprefix("export "), "a variable of the build")
        elif (mpi := mpi_source(text))[0]:
            recipe, release = mpi
            self.draft.take_recipe(text, recipe, f"=={release}" if release else "")
            self.building, self.builds_mpi = (
                f"a step of the build of {recipe}, which the image gets as `mpi`",
                True,
            )
        elif SETUP_OF_PYTHON.fullmatch(command.written):
            self.draft.note("skipped", command.written, "envbuild installs Python packages itself")
        elif command.piped and not command.writes and all(map(_only_shows, parts)):
            self.draft.note("skipped", command.written, "an image does not need it")
        elif command.piped or (command.writes and not DOWNLOAD.fullmatch(text)):
            self.read_other(command)
        elif self.building and BUILD_STEP.fullmatch(text):
            for option in (word for word in words if "prefix=" in word.lower()):
                if self.builds_mpi:
                    directory = posixpath.normpath(option.partition("=")[2])
                    self.draft.prefixes[directory] = "the image has its MPI in /opt/mpi"
            self.draft.note("skipped", text, self.building)
        elif TRIVIAL.fullmatch(text):
            if words[0] in ("cd", "pushd") and len(words) > 1:
                self.change_directory(words[1])
            if "venv" in text or words[0] == "virtualenv":
                self.draft.prefixes[posixpath.normpath(words[-1])] = (
                    "the image has its environment in /opt/env"
                )
            self.draft.note("skipped", text, "an image does not need it")
        else:
            self.read_other(command)
            if DOWNLOAD.fullmatch(text):
                self.building, self.builds_mpi = "a step of what is downloaded above", False

    def take_mpi_source(self, text: str, name: str, release: str) -> None:
        """Take the MPI whose source is downloaded; the steps that build it are passed over."""
        self.draft.take_recipe(text, name, f"=={release}" if release else "")
        self.building = f"a step of the build of {name}, which the image gets as `mpi`"
        self.builds_mpi = True

    def plain_words(self, written: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the words of a command with the values of variables, and the variables that it sets."""
        front = list(takewhile(re.compile(r"-\S|(?:sudo|env)$|\w+=").match, written[:-1]))
        assigned = [word for word in front if re.match(r"\w+=", word)]
        words: list[str] = []
        for word in written[len(front) :]:
            value = expand(word, self.variables)
            # A variable may hold several words.
            words += (value.split() or [""]) if re.fullmatch(r"\$\{?\w+\}?", word) else [value]
        prefix = PREFIX_OF_OTHERS.match(" ".join(words))
        if prefix and len(prefix[0].split()) < len(words):
            words = words[len(prefix[0].split()) :]
        return words, assigned

    def read_other(self, command: Command) -> None:
        """Note a command that a spec cannot hold."""
        if command.writes and not command.piped:
            reason = "it reads or writes a file: keep the file beside the spec and name it under `files`"
        else:
            reason = "a spec has packages, variables and files, but no commands"
        words, _ = self.plain_words(command.words)
        name = posixpath.basename(words[0]) if words else ""
        self.draft.note("unsupported", command.written, REASONS.get(name, reason))

    def remove(self, arguments: Sequence[str], text: str, *, is_debian: bool) -> None:
        """Leave out the packages that a later command removes."""
        names = [word for word in arguments if not word.startswith("-")]
        if is_debian:
            removed = [name for name in names if name in self.draft.debian]
            self.draft.debian = [name for name in self.draft.debian if name not in removed]
        else:
            keys = {key for key in self.draft.requirements if key[0] in {*map(canonicalize_name, names)}}
            removed = sorted(key[0] for key in keys)
            self.draft.requirements = {
                key: value for key, value in self.draft.requirements.items() if key not in keys
            }
            self.draft.from_conda = {
                key: value for key, value in self.draft.from_conda.items() if key not in keys
            }
        if removed:
            key = "packages.system" if is_debian else "packages.python"
            self.draft.note("changed", text, f"{key}, without {', '.join(removed)}")
        else:
            self.draft.note("skipped", text, "the image does not have it")

    def read_install(self, words: Sequence[str], text: str) -> None:
        """Read the words of a command that installs packages."""
        if other := OTHER_INSTALL.match(text):
            self.install_other(words[len(other[0].split()) :], other["family"])
        elif conda := CONDA_INSTALL.match(text):
            self.install_conda(words[len(conda[0].split()) :])
        elif (install := INSTALL.match(text)) and install["apt"]:
            self.install_debian(words[len(install[0].split()) :])
        elif install:
            self.install_python(words[len(install[0].split()) :])

    def install_other(self, arguments: Sequence[str], family: str) -> None:
        """Read packages of another distribution: Debian has those of the table under the same names."""
        table = conda_table()
        names = [word for word in arguments if not word.startswith("-")]
        debian = {name: name for name in table.debian.values()} | table.debian | table.others
        mpis = [name for name in names if _MPI_PACKAGE.fullmatch(name)]
        for name in mpis:
            if match := _MPI_PACKAGE.fullmatch(name):
                self.draft.take_recipe(name, match[1])
        # Groups of packages have names with spaces and capitals.
        groups = {name: name.lower().replace(" ", "-") for name in names if name not in debian}
        debian |= {name: debian[group] for name, group in groups.items() if group in debian}
        known = [debian[name] for name in names if name in debian and name not in mpis]
        skipped = [name for name in names if _OF_OTHER_BASE.fullmatch(name)]
        if known:
            self.draft.debian = list(dict.fromkeys((*self.draft.debian, *known)))
            self.draft.note("taken", f"{family} {' '.join(names)}", f"packages.system: {', '.join(known)}")
        if rest := [name for name in names if name not in debian and name not in (*mpis, *skipped)]:
            self.draft.note("unsupported", " ".join(rest), REASONS[family])
        elif not known and not mpis:
            self.draft.note("skipped", f"{family} {' '.join(names)}", "the base image or envbuild brings it")

    def install_conda(self, arguments: Sequence[str]) -> None:
        """Read the arguments of ``conda install``, ``create`` or ``env update``."""
        words = iter(arguments)
        names: list[str] = []
        files: list[str] = []
        for word in words:
            option, equals, value = word.partition("=")
            if not word.startswith("-"):
                (files if word.endswith((".yml", ".yaml")) else names).append(word)
            elif CONDA_OPTION_WITH_VALUE.fullmatch(option):
                value = value if equals else next(words, "")
                files += [value] if option in ("-f", "--file") else []
        for name in names:
            self.read_conda(name)
        for file in files:
            self.read_conda_file(file)
        if not names and not files:
            self.draft.note("skipped", "conda", "envbuild makes the environment")

    def read_conda_file(self, name: str) -> None:
        path, content = self.content_beside(name, f"--file {name}")
        if content is None:
            return
        line = self.draft.line
        if path.endswith((".yml", ".yaml")):
            try:
                statements = environment_statements(content, self.directory / path)
            except EnvbuildError as error:
                problem = next(iter(error.each())).problem
                self.draft.note(
                    "unsupported", f"--file {name}", shown(f"`{path}` is not read: {problem}", most=300)
                )
                return
        else:
            lines = (text.partition("#")[0].strip() for text in content.split("\n"))
            statements = [Statement(line=line, name="conda", text=text) for text in lines if text]
        for statement in statements[:_MAX_COMMANDS]:
            if statement.name != "name:":
                self.read(replace(statement, line=line))

    def content_beside(self, name: str, text: str) -> tuple[str, str | None]:
        """Return the path beside this file, and the content, of a file that a command names in the image."""
        path = self.path_beside(name)
        file = self.beside(path)
        if path in self.read_files_of:
            self.draft.note("skipped", text, "the file is read once")
        elif file is None or len(self.read_files_of) == _MAX_FILES:
            self.draft.note("unsupported", text, f"the file is not beside this one{self.where_else(path)}")
        else:
            self.read_files_of.add(path)
            return path, read_input(file, limit_bytes=MAX_BYTES).decode("utf-8-sig", errors="replace")
        return path, None

    def path_beside(self, name: str) -> str:
        """Return the path beside this file of a file in the image."""
        path = posixpath.normpath(name)
        candidates = [path, posixpath.normpath(posixpath.join(self.directory_in_image or "/", path))]
        for candidate in candidates:
            for target, source in self.copied.items():
                if candidate == target:
                    return posixpath.normpath(source)
                if target != "/" and candidate.startswith(f"{target}/"):
                    below = posixpath.normpath(posixpath.join(source, candidate[len(target) + 1 :]))
                    if self.beside(below) is not None:
                        return below
        return path

    def install_debian(self, arguments: Sequence[str]) -> None:  # noqa: PLR0912
        packages = []
        words = iter(arguments)
        for word in words:
            if word.startswith("-"):
                if APT_OPTION_WITH_VALUE.fullmatch(word):
                    self.draft.note("unsupported", f"{word} {next(words, '')}", "a spec has no such option")
                continue
            name = re.split("[=/:]", word)[0]
            if word.endswith("-") or spec_rejects(packages={"system": (name,)}):
                self.draft.note("unsupported", word, "it does not name a Debian package")
                continue
            if mpi := _MPI_PACKAGE.fullmatch(name):
                self.draft.take_recipe(word, mpi[1])
            elif _PREINSTALLED.fullmatch(name):
                self.draft.note("skipped", word, "the base image or envbuild brings it")
            elif other := _OTHER_PYTHON.fullmatch(name):
                self.draft.take_python(word, f"3.{other[1]}")
            elif cuda := _CUDA_PACKAGE.fullmatch(name):
                if not self.draft.accelerator:
                    self.draft.take_accelerator(word, f"cuda:{cuda[1]}.{cuda[2]}" if cuda[1] else "cuda")
                else:
                    self.draft.note("skipped", word, "CUDA's libraries come with the wheels")
                continue
            else:
                packages.append(name)
            if name != word.partition(":")[0]:
                self.draft.note("unsupported", word, "the lock decides the versions of Debian packages")
        if packages:
            self.draft.debian = list(dict.fromkeys((*self.draft.debian, *packages)))
            self.draft.note("taken", "apt-get install", f"packages.system: {', '.join(packages)}")

    def install_python(self, arguments: Sequence[str], source: str = "", beside: str = "") -> None:
        """Read arguments of ``pip install``, or a line of a requirements file at a place in a directory."""
        words = iter(arguments)
        for word in words:
            option, equals, value = word.partition("=")
            if not equals and PIP_OPTION_WITH_VALUE.fullmatch(option):
                value = next(words, "")
            text = f"{source}{option} {value}"
            if option in ("-e", "--editable") or re.fullmatch(r"\.{1,2}(?:/\S*)?(?:\[.*\])?|/\S*", word):
                self.read_directory(value or word, text if value else word)
            elif not word.startswith("-"):
                self.read_requirement(word, source)
            elif option in ("-r", "--requirement"):
                self.read_requirement_file(posixpath.join(beside, value), text)
            elif option.endswith("-url") or option in ("-i", "-f", "--find-links", "--trusted-host"):
                self.draft.take_accelerator(text, re.sub(r"^\w+://[^/]*", "", value))
                self.draft.note("unsupported", text, ADDRESSES)
            elif option == "--torch-backend":
                self.draft.take_accelerator(text, value)
            elif not IGNORED_PIP_OPTION.fullmatch(option):
                self.draft.note("unsupported", text, "a spec has no such option")

    def read_directory(self, name: str, text: str) -> None:
        """Read what the project in a directory asks for; the project itself stays outside of the image."""
        path = self.path_beside(posixpath.join(re.sub(r"\[.*", "", name), "pyproject.toml"))
        file = self.beside(path)
        if file is not None and path not in self.read_files_of:
            self.read_files_of.add(path)
            self.draft.note("unsupported", text, "the project itself is not in the image: name a wheel of it")
            line = self.draft.line
            for statement in read_statements("", file)[:_MAX_COMMANDS]:
                self.read(replace(statement, line=line))
            return
        reason = "a project in a directory: name a wheel of it under `packages.python`"
        self.draft.note("unsupported", text, reason)

    def read_requirement_file(self, name: str, text: str) -> None:
        if posixpath.basename(name) == "pyproject.toml":
            self.read_directory(posixpath.dirname(name) or ".", text)
            return
        path, content = self.content_beside(name, text)
        if content is not None:
            for number, line in requirement_lines(content):
                self.read_requirement_line(line, f"{path}:{number}: ", posixpath.dirname(path))

    def read_requirement_line(self, line: str, source: str = "", beside: str = "") -> None:
        """Read a line of a requirements file at a place in a directory."""
        requirement = without_hashes(line)
        if "--hash" in line and "hashes" not in self.passed_over:
            self.passed_over.add("hashes")
            self.draft.note("unsupported", f"{source}{requirement} --hash", HASHES)
        if not line.startswith("-"):
            self.install_python([requirement], source, beside)
        elif may_hold_secret(line) or without_secrets(line) != line:
            self.draft.note(
                "unsupported", source + line, "a spec has no options, and a secret does not belong in one"
            )
        else:
            # One option: what follows its value is neither another nor a package.
            self.install_python(line.split(maxsplit=1), source, beside)

    def read_requirement(self, text: str, source: str) -> ImportNote | None:
        """Take a Python package; return the note if it goes to `packages.python`."""
        text = self.without_unknown(text, source)
        if self.read_commit(text, source):
            return None
        if reason := spec_rejects(packages={"python": (text,)}):
            corrected = corrected_requirement(text) if not is_unresolved(text) else None
            if corrected is None or re.search(r"[@/]", text):
                self.draft.note("unsupported", source + text, reason)
                return None
            self.draft.note("changed", source + text, f"written as `{corrected}`")
            text = corrected
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        recipe = self.draft.recipes.get(name) or self.draft.recipes.get(name.removesuffix("-gpu"))
        is_part = recipe is not None and name in {*recipe.owns} - recipe.main_distributions
        if name in _INSTALLERS or (self.in_script and not source and name in _INSTALLERS_OF_SCRIPTS):
            self.draft.note("skipped", source + text, "envbuild installs Python packages itself")
        elif name == "mpi4py":
            self.draft.needs_mpi = True
            explanation = "mpi: its recipe brings mpi4py"
            bounds = str(requirement.specifier)
            outcome: Outcome = "changed" if bounds else "taken"
            explanation += f"; `{bounds}` is not used" if bounds else ""
            self.draft.note(outcome, source + text, explanation)
        elif recipe and not is_part and recipe.kind in ("framework", "mpi"):
            build = text + (" gpu" if name != recipe.name and name.endswith("-gpu") else "")
            self.draft.take_recipe(source + text, recipe.name, str(requirement.specifier), build)
            if requirement.marker is not None:
                self.draft.note("changed", source + text, "taken for every machine: a recipe has no marker")
        else:
            if is_part:
                self.draft.take_accelerator(source + text, text)
            key = (name, str(requirement.marker))
            if self.draft.requirements.get(key, text) != text:
                earlier = Requirement(self.draft.requirements[key])
                requirement.extras |= earlier.extras
                both = requirement.specifier & earlier.specifier
                if self.in_script and not source and both.is_unsatisfiable():
                    explanation = f"packages.python, in place of `{earlier}`, which stands above"
                    self.draft.note("changed", text, explanation)
                    self.draft.requirements[key] = str(requirement)
                    return None
                requirement.specifier = both
                self.draft.requirements[key] = str(requirement)
            self.draft.requirements.setdefault(key, text)
            note = self.draft.note("taken", source + text, "packages.python")
            self.draft.notes_of.setdefault(key, []).append(note)
            return note
        return None

    def without_unknown(self, text: str, source: str) -> str:
        """Return a requirement without a version that depends on an unknown variable."""
        match = _UNKNOWN_VERSION.fullmatch(text[: MAX_TEXT + 1])
        if match is None:
            return text
        # The local part of a version names a build.
        known = f"{match['name']}{match['exact'] or ''}"
        lost = text.removeprefix(known)
        self.draft.note("changed", source + text, f"`{known}`, as `{lost}` depends on an unknown variable")
        return known

    def read_commit(self, text: str, source: str) -> bool:
        """Take a requirement that names a commit of git; return whether it names a repository."""
        try:
            entry = git_entry(text)
        except ValueError:
            return False
        if entry is None:
            return False
        if "commit" in entry and not spec_rejects(packages={"python": (entry,)}):
            self.draft.commits[canonicalize_name(entry["name"])] = entry
            self.draft.note("taken", source + text, "packages.python, built from that commit")
        else:
            name, address = entry.get("name", "NAME"), entry["git"]
            reference = shlex.quote(entry.get("reference") or "HEAD")
            explanation = (
                f"write `{{name: {name}, git: {address}, commit: …}}` under `packages.python`;"
                f" `git ls-remote {shlex.quote(address)} {reference}` prints the commit"
            )
            self.draft.note("unsupported", source + text, shown(explanation, most=400))
        return True

    def read_conda(self, text: str) -> None:
        """Read a package of conda: ``channel::name=version=build``."""
        table = conda_table()
        channel, _, written = text.rpartition("::")
        match = _CONDA.fullmatch(written.strip())
        if match is None:
            self.draft.note("unsupported", text, "it is not a package with a version")
            return
        name, version = match["name"].lower(), match["version"].replace(" ", "")
        if is_unresolved(version):
            self.draft.note("changed", text, f"without `{version}`, which depends on an unknown variable")
            version = ""
        build = _CONDA_BUILD.fullmatch(version)
        if build and not version.startswith("="):
            version = build["bounds"]
        for part, used in (("channels", channel), ("builds", build)):
            if used and part not in self.passed_over:
                self.passed_over.add(part)
                self.draft.note("unsupported", text, f"{part} of conda are not used, here and below")
        recipe = self.draft.recipes.get(name)
        if name == "python":
            self.draft.take_python(text, version)
        elif name in table.cuda:
            self.take_conda_of_cuda(text, version)
        elif name in table.debian or _CONDA_R.fullmatch(name):
            self.take_conda_of_debian(text, table.debian.get(name) or _debian_name_of_r(name), version)
        elif recipe is None and any(re.fullmatch(pattern, name) for pattern in table.skipped):
            self.draft.note("skipped", text, "an image has it, or does not need it")
        else:
            wheel = table.wheels.get(name, name)
            if "gpu" in name and "cpu" in wheel:
                self.draft.note("changed", text, f"`{wheel}` takes its place, which does not use GPUs")
            self.read_conda_wheel(text, wheel, version)

    def take_conda_of_cuda(self, text: str, version: str) -> None:
        release = re.fullmatch(r"={0,2}(\d+(?:\.\d+)?)\S*", version)
        if self.draft.accelerator:
            self.draft.note("skipped", text, "the accelerator is chosen already")
            return
        self.draft.take_accelerator(text, f"cuda:{release[1]}" if release else "cuda")
        if version and not release:
            self.draft.note("changed", text, f"`{version}` is not used: `accelerator` takes one release")

    def take_conda_of_debian(self, text: str, package: str, version: str) -> None:
        self.draft.debian = list(dict.fromkeys((*self.draft.debian, package)))
        explanation = f"packages.system: {package}"
        if version:
            self.draft.note("changed", text, f"{explanation}, in Debian's version")
        else:
            self.draft.note("taken", text, explanation)

    def read_conda_wheel(self, text: str, name: str, version: str) -> None:
        if "cuda" in text.rpartition("=")[2] and not self.draft.accelerator:
            self.draft.take_accelerator(text, "cuda")
        requirement = corrected_requirement(f"{name}{version}")
        if requirement is None:
            self.draft.note("unsupported", text, f"`{version}` is not a version of a Python package")
            return
        before = set(self.draft.requirements)
        note = self.read_requirement(requirement, "")
        if note is not None:
            self.draft.from_conda |= dict.fromkeys(self.draft.requirements.keys() - before, (note, text))

    def read_environment(self, statement: Statement) -> None:
        before = dict(self.variables)  # a line does not see the variables that it sets
        if re.fullmatch(r"export(?:\s+[A-Za-z_]\w*)+", statement.text.strip()):
            self.draft.note("skipped", statement.text, "it sets no variable")
        elif ONLY_ACTIVATES.fullmatch(statement.text.strip()):
            self.draft.note("skipped", statement.text, "the image has its environment in /opt/env")
            return
        elif not statement.values:
            self.draft.note("unsupported", statement.text, "it is not a plain NAME=VALUE")
        for text in statement.values:
            name, _, written = text.partition("=")
            if _is_setting_of_build(name):
                self.draft.note("skipped", text, "it is a setting of the build")
                self.variables[name] = written.strip("'\"") if not may_hold_secret(text) else ""
                continue
            reason = self.set_variable(name, written, before)
            setting = self.draft.environment.get(name)
            is_appended = re.match(rf"[\"']?\$(?:{re.escape(name)}|\{{{re.escape(name)}\}}):", written)
            rest = expand(_without_itself(name, written.strip("'\""))[0], before)
            if not reason and is_unresolved(rest):
                lost = "environment, without the parts that depend on an unknown variable"
                note = self.draft.note("changed", text, lost)
            elif not reason and isinstance(setting, str) and locales.missing_locale(name, setting):
                self.draft.environment[name] = locales.DEFAULT
                note = self.draft.note(
                    "changed", text, f"environment: {locales.DEFAULT}, which every image has"
                )
            elif not reason and is_appended:
                note = self.draft.note(
                    "changed", text, "environment, in front of the image's own directories"
                )
            else:
                note = self.draft.note("unsupported" if reason else "taken", text, reason or "environment")
            if not reason and setting is not None:
                self.draft.notes_of_variable.setdefault(name, []).append((note, rest.strip("'\"")))

    def set_variable(self, name: str, written: str, known: Mapping[str, str]) -> str:
        """Take a variable whose value is written with quotes; return why it cannot be taken."""
        try:
            words = shlex.split(written[: MAX_TEXT + 1])
        except ValueError:
            words = ["", ""]
        # The quotes and backslashes that shlex removes may keep a `$`.
        unclear = re.search(r"\$.*['\\]|['\\].*\$", written[:MAX_TEXT]) or ";" in _QUOTED.sub(
            "", written[:MAX_TEXT]
        )
        if not name.isidentifier() or len(words) > 1 or unclear:
            return "it is not a plain NAME=VALUE"
        value = "".join(words)
        value, front = _without_itself(name, value)
        value = expand(value, known)
        if front:  # what is known of a search path is taken
            parts = [part for part in value.split(":") if part and not is_unresolved(part)]
            value = ":".join(parts) or value
        # Images have no PYTHONPATH, so that in front of nothing is the same.
        in_front = front or name == "PYTHONPATH"
        setting: str | dict[str, str] = {"prepend": value} if in_front else value
        if is_unresolved(value):
            return "it depends on an unknown variable"
        if may_hold_secret(f"{name}={value}"):
            return "a secret does not belong in an image: set it where a process starts"
        reason = spec_rejects(environment={name: setting})
        reason = reason or search_path_problem(name, Prepend(prepend=value) if in_front else value)
        if not reason:
            earlier = self.draft.environment.get(name)
            if front and isinstance(earlier, dict):
                setting = {"prepend": ":".join(dict.fromkeys(f"{value}:{earlier['prepend']}".split(":")))}
            self.draft.environment[name] = setting
            self.variables |= {} if front else {name: value}
        return reason

    def read_files(self, statement: Statement) -> None:
        if permissions := re.findall(r"--ch(?:own|mod)=\S+", statement.text):
            self.draft.note(
                "unsupported", " ".join(permissions), "files belong to root, with mode 0644 or 0755"
            )
        for pair in statement.values or (statement.text,):
            words = [expand(word, self.variables) for word in pair.split()]
            mpi = mpi_source(pair) if statement.name == "ADD" else ("", "")
            if mpi[0]:
                self.take_mpi_source(pair, *mpi)
                continue
            if re.search(r"--from[= ]", pair):
                reason = REASONS["%files"]
            elif len(words) != 2 or not statement.values:
                reason = "a file needs a source beside this one and a target"
            elif statement.name == "ADD" and re.search(r"://|^git@|\.(tar(\.\w+)?|tgz|tbz2?|txz)$", words[0]):
                reason = "`ADD` downloads or unpacks it; keep files beside the spec"
            elif re.search(r"[*?\[]", words[0]):
                reason = self.take_files(*words)
            else:
                reason = self.take_file(*words)
            self.draft.note("unsupported" if reason else "taken", " ".join(words), reason or "files")

    def take_files(self, pattern: str, target: str) -> str:
        """Take the files that a pattern names; return why one of them cannot be taken."""
        parts = pattern.strip("/").split("/")
        if ".." in parts or "**" in parts:
            return _ONE_BY_ONE.removeprefix("; ")
        try:
            paths = sorted(islice(self.directory.glob("/".join(parts)), _MAX_FILES + 1))
        except (OSError, ValueError):
            paths = []
        names = [path.relative_to(self.directory).as_posix() for path in paths]
        if not names or len(names) > _MAX_FILES:
            return self.take_file(pattern, target)
        reasons = (self.take_file(name, f"{target.rstrip('/')}/") for name in names)
        return next(filter(None, list(reasons)), "")

    def take_file(self, source: str, target: str) -> str:
        """Take a file; return why it cannot be taken."""
        name = posixpath.basename(source)
        in_image = posixpath.normpath(posixpath.join(self.directory_in_image or "/", target))
        self.copied |= {
            posixpath.normpath(path): source
            for path in (target, f"{target}/{name}", in_image, f"{in_image}/{name}")
        }
        path = self.beside(source)
        # pathlib raises for some names.
        if path is None and os.path.isdir(self.directory / source.lstrip("/")):  # noqa: PTH112
            return f"`{posixpath.normpath(source)}` is a directory: name its files one by one"
        if path is None:
            return f"there is no such file beside it{self.where_else(source) or _ONE_BY_ONE}"
        if not target.startswith("/"):
            target = in_image.rstrip("/") + ("/" if target.endswith("/") or target == "." else "")
        if _COMMON_DIRECTORY.fullmatch(target):
            target = f"{target.rstrip('/')}/"
        target += name if target.endswith("/") else ""
        entry: dict[str, str | bool] = {"source": posixpath.normpath(source), "target": target}
        if os.access(path, os.X_OK):
            entry["executable"] = True
        reserved = reserved_at(target)
        reason = f"{reserved.tree} is reserved: {reserved.why}" if reserved else spec_rejects(files=(entry,))
        if not reason:
            self.draft.files[target] = entry
        return reason

    def beside(self, name: str) -> Path | None:
        """Return the path of a regular file in or below the directory of the file."""
        path = self.directory / name
        # pathlib raises for some names.
        return path if os.path.isfile(path) and is_below(path, self.directory) else None  # noqa: PTH113

    def where_else(self, name: str) -> str:
        """Return what to do if a file lies below a directory above; empty if it lies nowhere."""
        path = posixpath.normpath(name.lstrip("/"))
        if path == "." or path.startswith(".."):
            return ""
        for above in ("..", "../.."):
            # pathlib raises for some names.
            if os.path.exists(self.directory / above / path):  # noqa: PTH110
                return f", but below `{above}`: copy this file to there, and import the copy"
        return ""


def _installs(text: str) -> bool:
    return any(pattern.match(text) for pattern in (INSTALL, CONDA_INSTALL, OTHER_INSTALL))


def _only_shows(words: Sequence[str]) -> bool:
    text = " ".join(words)
    return bool(words) and bool(TRIVIAL.fullmatch(text) or FILTER.fullmatch(words[0]))


def _is_setting_of_build(name: str) -> bool:
    return name == "DEBIAN_FRONTEND" or name.startswith(("PIP_", "CONDA_", "MAMBA_", "UV_"))


def _debian_name_of_r(name: str) -> str:
    """Return Debian's name for a package of R that conda has."""
    prefix, _, rest = name.partition("-")
    return f"r-{'cran' if prefix == 'r' else 'bioc'}-{rest.replace('_', '.')}"


def _without_itself(name: str, value: str) -> tuple[str, bool]:
    """Return a value without a reference to the variable's own value, and whether it has one."""
    name = re.escape(name)
    # `${NAME:+:$NAME}` is the value with a colon in front, if there is one.
    default = rf"(?::?[-+][^{{}}]*(?:\$\{{?{name}\}}?)?[^{{}}]*)?"
    itself = rf"\$(?:{name}(?!\w)|\{{{name}{default}\}})"
    rest = re.sub(rf"(?:^|:){itself}(?=:|$)|{itself}", "", value)
    return (rest.strip(":"), True) if rest != value and rest.strip(":") else (value, False)

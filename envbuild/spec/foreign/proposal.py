"""From the statements of others' files to a spec: what was understood, and what was not. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from posixpath import normpath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.spec.foreign import images
from envbuild.spec.foreign.commands import Command, assignment, fill_in, split, substitute
from envbuild.spec.foreign.entries import (
    file_refusal,
    labels,
    more_than_copied,
    refusal,
    setting_of,
    variable_refusal,
    words,
)
from envbuild.spec.foreign.hidden import is_hidden, masked
from envbuild.spec.foreign.model import Known, Note, Outcome, Proposal
from envbuild.spec.foreign.packages import (
    DebianNames,
    Installed,
    Piece,
    debian_names,
    needless,
    python_requirements,
)
from envbuild.spec.foreign.statements import Statement
from envbuild.spec.model import MAX_NAME

_TITLES = ("org.opencontainers.image.version", "version")
_ABOUT_FILES = ("--chown=", "--chmod=", "--link")
_ABOUT_RUNNING = "an image runs what it is told; commands that need a wrapper are named under `module`"
_WHY: dict[str, str] = {
    **dict.fromkeys(("CMD", "ENTRYPOINT", "%runscript", "%startscript"), _ABOUT_RUNNING),
    **dict.fromkeys(("USER", "SHELL", "ONBUILD", "STOPSIGNAL"), "images have no such setting"),
    **dict.fromkeys(("EXPOSE", "VOLUME"), "ports and binds belong to the one who starts the image"),
    **dict.fromkeys(("HEALTHCHECK", "%test"), "what proves an image are its recipes' jobs"),
    "%setup": "it changes the host, which no spec may",
    "WORKDIR": "a process starts where its user is",
    "MAINTAINER": "name it under `labels`",
}


def propose(statements: Iterable[Statement], known: Known, *, name: str) -> Proposal:
    """Return what a spec can say of a file.

    Parameters
    ----------
    name : str
        Of the file, without its ending; the spec's name is made of it.
    """
    stem = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")
    reading = _Reading(known=known, proposal=Proposal(name=stem[:MAX_NAME].rstrip("-._") or "imported"))
    for statement in statements:
        if statement.earlier:
            reading.note(statement, "left", "an earlier stage: what needs building is a recipe with `source`")
            continue
        filled = tuple(fill_in(value, reading.variables) for value in statement.values)
        reading.read(replace(statement, values=filled))
    reading.settle()
    return reading.proposal


@dataclass(slots=True)
class _Reading:
    """Where a file is being read.

    Attributes
    ----------
    copied : dict of str to str
        Path in the image → that of the file beside the one that is read.
    mpi_is_guess : bool
        Whether the file asked for an MPI and said of none that it be that.
    """

    known: Known
    proposal: Proposal
    variables: dict[str, str] = field(default_factory=dict)
    copied: dict[str, str] = field(default_factory=dict)
    mpi_is_guess: bool = False

    def read(self, statement: Statement) -> None:
        readers: dict[str, Callable[[Statement], None]] = {
            "base": self._base,
            "run": self._run,
            "environment": self._environment,
            "file": self._file,
            "label": self._label,
            "argument": self._argument,
            "summary": self._summary,
        }
        reader = readers.get(statement.kind)
        if reader is not None and (statement.values or statement.kind == "summary"):
            reader(statement)
        elif statement.name == "Bootstrap":
            self._bootstrap(statement)
        elif statement.kind == "environment" and re.fullmatch(r"export(\s+\w+)+", statement.text):
            self.note(statement, "needless", "every variable of an image is exported")
        else:
            self.note(statement, "left", _WHY.get(statement.name, "nothing in a spec says this"))

    def note(self, statement: Statement, outcome: Outcome, what: str) -> None:
        self.tell(statement.line, outcome, statement.text, what)

    def tell(self, line: int, outcome: Outcome, text: str, what: str) -> None:
        # Told on terminals, and in remarks of the spec.
        shown = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))
        self.proposal.notes.append(Note(line=line, outcome=outcome, text=masked(shown), what=what))

    def settle(self) -> None:
        """Say so where nothing was understood: an empty spec is no answer."""
        if not any(note.outcome == "taken" for note in self.proposal.notes):
            self.tell(1, "left", "the whole file", "nothing in it was understood")

    def _bootstrap(self, statement: Statement) -> None:
        agent = statement.values[0].lower()
        if agent in ("docker", "debootstrap", "mmdebstrap"):
            self.note(statement, "needless", "a base image is made from Debian's packages")
        else:
            self.note(statement, "left", f"`{agent}` names a file or service, which no spec does")

    def _base(self, statement: Statement) -> None:
        reference = substitute(statement.values[0], self.variables).strip()
        found = images.read(reference, self.known.bases)
        proposal = self.proposal
        for framework, version in found.frameworks:
            self._framework(statement.line, statement.text, framework, f"=={version}" if version else "")
        proposal.base = found.base or proposal.base
        proposal.python = found.python or proposal.python
        proposal.accelerator = found.accelerator or proposal.accelerator
        said = [
            text
            for text in (
                found.base and f"base: {found.base}",
                found.python and f"python: {found.python}",
                found.accelerator and f"accelerator: {found.accelerator}",
            )
            if text
        ]
        if said:
            self.note(statement, "taken", ", ".join(said))
        if found.why:
            self.note(statement, "left", found.why)

    def _run(self, statement: Statement) -> None:
        if "<<" in statement.text:
            self.note(statement, "left", "it is a script: nothing is carried out to make a spec of it")
            return
        text, first = statement.values[0], statement.line
        for command in split(text, first, self.variables):
            self._command(command)

    def _command(self, command: Command) -> None:
        if not command.words:
            self.tell(command.line, "left", command.text, command.why)
            return
        words = command.words
        if words[0] == "sudo":
            words = words[1:]
        given = assignment(words[1]) if words[0] == "export" and len(words) == 2 else assignment(words[0])
        if given:
            self._remember(*given)
            self.tell(command.line, "needless", command.text, "known while the file is read")
            return
        why = needless(words)
        names = debian_names(words)
        requirements = python_requirements(words, self.known.read, self.copied)
        if why:
            self.tell(command.line, "needless", command.text, why)
        elif names is not None:
            self._debian(command, names)
        elif requirements is not None:
            self._python(command, requirements)
        else:
            self.tell(command.line, "left", command.text, images.other_command(words))

    def _debian(self, command: Command, names: DebianNames) -> None:
        fit = [name for name in names.packages if not refusal(packages={"system": (name,)})]
        for name in fit:
            self._once(self.proposal.system_packages, name)
        if fit:
            self.tell(command.line, "taken", command.text, f"packages.system: {', '.join(fit)}")
        for mpi, packages in names.mpis.items():
            self._mpi(command.line, command.text if not self.proposal.mpi else ", ".join(packages), mpi)
        for text in names.pinned:
            self.tell(command.line, "left", text, "which version of a Debian package there is, the lock says")
        if names.release:
            why = "packages come from the base's own suites, all of a lock together"
            self.tell(command.line, "left", f"-t {names.release}", why)
        for name in names.removed:
            self.tell(command.line, "left", name, "apt takes it away, and a spec only adds packages")
        if names.ours:
            self.tell(command.line, "needless", ", ".join(names.ours), "the base or envbuild brings it")
        for name in (*names.odd, *(name for name in names.packages if name not in fit)):
            self.tell(command.line, "left", name, "no name of a Debian package")

    def _python(self, command: Command, installed: Installed) -> None:
        for piece in installed.requirements:
            self._requirement(command, piece)
        for piece in installed.indexes:
            self._accelerator(command.line, str(piece), images.accelerator_of_index(piece.text))
        for piece in installed.odd:
            self.tell(command.line, "left", str(piece), piece.why)

    def _requirement(self, command: Command, piece: Piece) -> None:
        line, text = command.line, str(piece)
        why = refusal(packages={"python": (piece.text,)})
        if why:
            self.tell(line, "left", text, why)
            return
        requirement = Requirement(piece.text)
        name, accelerator = images.BUILDS.get(
            canonicalize_name(requirement.name), (canonicalize_name(requirement.name), "")
        )
        if name in ("pip", "setuptools", "wheel"):
            self.tell(line, "needless", text, "envbuild installs Python packages itself")
        elif name == "mpi4py":
            self.mpi_is_guess = self.mpi_is_guess or not self.proposal.mpi
            self.proposal.mpi = self.proposal.mpi or "mpich"
            self.tell(line, "taken", text, f"mpi: {self.proposal.mpi}, whose recipe brings it")
        elif name in self.known.owners:
            self._framework(line, text, self.known.owners[name], str(requirement.specifier))
            self._accelerator(line, text, accelerator)
            for mark in sorted(requirement.extras):
                meant = images.accelerator(mark)
                self._accelerator(line, text, meant)
                if not meant and mark != "cpu":
                    self.tell(line, "left", f"{text}: [{mark}]", "what comes along, its recipe says")
        elif merged := self.proposal.add_python(piece.text):
            what = "packages.python" if merged == piece.text else f"packages.python: {merged}"
            self.tell(line, "taken", text, what)
        else:
            self.tell(line, "left", text, "no version can meet this and what was asked for before")

    def _accelerator(self, line: int, text: str, accelerator: str) -> None:
        if accelerator and self.proposal.add_accelerator(accelerator):
            self.tell(line, "taken", text, f"accelerator: {self.proposal.accelerator}")
        elif accelerator:
            why = f"an image is for one accelerator, and `{self.proposal.accelerator}` is taken"
            self.tell(line, "left", text, f"{why}: {accelerator}")

    def _framework(self, line: int, text: str, recipe: str, constraint: str) -> None:
        kind, versions = self.known.recipes.get(recipe, ("", ()))
        if kind not in ("framework", "mpi"):
            self.tell(line, "left", text, f"there is no recipe `{recipe}`")
            return
        wanted = re.sub(r"\+[a-z0-9.]+", "", constraint).replace("===", "==")
        choice, remark = images.choice(recipe, wanted, versions)
        if refusal(frameworks=(choice,)):
            choice, remark = recipe, "its version is no constraint: any is proposed"
        if kind == "mpi":
            self._mpi(line, text, choice)
        elif held := self.proposal.add_framework(choice):
            self.tell(line, "taken", text, f"frameworks: {held}")
        else:
            self.tell(line, "left", text, f"`{recipe}` is taken already, with another constraint")
        for mark in re.findall(r"\+([a-z0-9.]+)", constraint):
            self._accelerator(line, text, images.accelerator(mark))
        if remark:
            self.tell(line, "left", f"{recipe} {wanted}", remark)

    def _mpi(self, line: int, text: str, choice: str) -> None:
        """Take an MPI, in the place of one that was only guessed."""
        has, guess = self.proposal.mpi, self.mpi_is_guess
        name, _, constraint = choice.partition("@")
        held, _, bound = has.partition("@")
        if has and not guess and (name != held or (constraint and bound and choice != has)):
            self.tell(line, "left", text, f"an image has one MPI, and `{has}` is taken: {choice}")
            return
        self.mpi_is_guess = False
        self.proposal.mpi = choice if constraint or name != held else has
        self.tell(line, "taken", text, f"mpi: {self.proposal.mpi}")

    def _environment(self, statement: Statement) -> None:
        # What a line sets, the same line does not see yet.
        before = dict(self.variables)
        for value in statement.values:
            given = assignment(value.strip())
            if given is None:
                self.note(statement, "left", "it is no NAME=VALUE")
                continue
            name = given[0]
            setting = setting_of(name, given[1], before)
            if setting is None:
                why = "it depends on another variable in a way that a spec cannot say"
                self.tell(statement.line, "left", value, why)
            elif name.startswith("PIP_") or name == "DEBIAN_FRONTEND":
                self.tell(statement.line, "needless", value, "it is for the one who builds")
            else:
                self._try(statement.line, value, "environment", name, setting)
            if isinstance(setting, str):
                self._remember(name, setting)

    def _remember(self, name: str, value: str) -> None:
        """Keep a variable's value for where the file uses it; a secret's would come out there."""
        if not is_hidden(name, value):
            self.variables[name] = value

    def _try(self, line: int, text: str, key: str, name: str, value: str | dict[str, str]) -> None:
        """Take an entry that a spec may hold; tell why of another."""
        why = variable_refusal(name, value) if key == "environment" else refusal(**{key: {name: value}})
        if not why and is_hidden(name, value if isinstance(value, str) else " ".join(value.values())):
            why = "a secret has no place in an image: set it where a process starts"
        if why:
            self.tell(line, "left", text, why)
            return
        table: dict[str, str | dict[str, str]] = getattr(self.proposal, key)
        table[name] = value
        self.tell(line, "taken", text, key)

    def _file(self, statement: Statement) -> None:
        for value in statement.values:
            parts = [substitute(word, self.variables) for word in words(value)]
            for word in [word for word in parts if word.startswith(_ABOUT_FILES)]:
                parts.remove(word)
                self.tell(
                    statement.line, "left", word, "files of an image are root's, with mode 0644 or 0755"
                )
            if any(word.startswith("--") for word in parts):
                self.tell(statement.line, "left", value, "files come from beside the spec, one by one")
                continue
            if len(parts) < 2:
                self.tell(statement.line, "left", value, "a spec's file has a target: none is named here")
                continue
            *sources, target = parts
            for source in sources:
                if statement.name == "ADD" and (why := more_than_copied(source)):
                    self.tell(statement.line, "left", f"{source} {target}", why)
                else:
                    self._one_file(statement.line, source, target, many=len(sources) > 1)

    def _one_file(self, line: int, source: str, target: str, *, many: bool) -> None:
        text = f"{source} {target}"
        kind = self.known.look(source)
        name = PurePosixPath(source).name
        self.copied |= {normpath(target): source, normpath(f"{target}/{name}"): source}
        if kind == "directory" or any(mark in source for mark in "*?["):
            self.tell(line, "left", text, "name the files of a directory one by one")
            return
        if kind == "absent":
            self.tell(line, "left", text, "there is no such file beside it")
            return
        whole = f"{target.rstrip('/')}/{name}" if many or target.endswith("/") else target
        entry: dict[str, str | bool] = {"source": str(PurePosixPath(source)), "target": whole}
        if kind == "executable":
            entry["executable"] = True
        beside = [one for one in self.proposal.files if one["target"] != whole]
        why = refusal(files=(entry,)) or file_refusal(whole, [str(one["target"]) for one in beside])
        if why:
            self.tell(line, "left", text, why)
            return
        for one in self.proposal.files:
            if one["target"] == whole and one["source"] != entry["source"]:
                self.tell(line, "left", f"{one['source']} {whole}", "this line puts another file there")
        self.proposal.files = [*beside, entry]
        self.tell(line, "taken", text, "files")

    def _label(self, statement: Statement) -> None:
        for value in statement.values:
            for name, text in labels(value):
                written = substitute(text, self.variables)
                if re.search(r"\$\{?\w", written):
                    self.tell(
                        statement.line, "left", f"{name} {text}", "it depends on what is not in the file"
                    )
                elif name.lower() in _TITLES and not refusal(version=written):
                    self.proposal.version = written
                    self.tell(statement.line, "taken", f"{name} {text}", "version")
                else:
                    self._try(statement.line, f"{name} {text}", "labels", name, written)

    def _argument(self, statement: Statement) -> None:
        given = assignment(statement.values[0].strip())
        value = setting_of("", given[1], self.variables) if given else None
        if given is None or not isinstance(value, str):
            self.note(statement, "left", "its value is not in the file")
        else:
            self._remember(given[0], value)
            self.note(statement, "needless", "known while the file is read")

    def _summary(self, statement: Statement) -> None:
        if self.proposal.summary or refusal(summary=statement.text) or is_hidden("", statement.text):
            self.note(statement, "left", "a summary is one line")
        else:
            self.proposal.summary = statement.text
            self.note(statement, "taken", "summary")

    def _once(self, table: list[str], text: str) -> None:
        if text not in table:
            table.append(text)

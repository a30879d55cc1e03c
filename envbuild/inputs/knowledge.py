"""Finds and reads the rows of a centre and of a user, which add to those of envbuild."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from envbuild.errors import RequestError, did_you_mean, raise_all
from envbuild.inputs.catalog import ErrorCollector, load_file
from envbuild.rules.knowledge import Knowledge, KnowledgeFile, shipped
from envbuild.rules.rulebook import rule_ids
from envbuild.system.files import list_directory, settings_homes
from envbuild.system.privacy import check_settings

_DIRECTORY = "knowledge"
MAX_FILES = 200  # of a directory


def read_knowledge(given: Path | None = None) -> Knowledge:
    """Return the rows of envbuild, of the machine, of the user and of a given file.

    Only the machine's files and the given one silence shipped rules. RequestError: a file cannot be used; all
    errors of all files are raised at once.
    """
    user, machine = settings_homes()
    knowledge, reading = shipped(), ErrorCollector()
    for home in (machine, user):
        for path in reading.collect(partial(_files, home / _DIRECTORY)) or ():
            read = partial(_read_settings, path, may_silence=home == machine)
            knowledge = _with(knowledge, reading.collect(read), path)
    if given is not None:
        knowledge = _with(knowledge, reading.collect(partial(_read, given, may_silence=True)), given)
    raise_all(reading.errors)
    return knowledge


def _with(knowledge: Knowledge, file: KnowledgeFile | None, path: Path) -> Knowledge:
    return knowledge if file is None else knowledge.with_file(file, str(path))


def _files(directory: Path) -> list[Path]:
    names = [name for name in sorted(list_directory(directory)) if name.endswith((".yaml", ".yml"))]
    if len(names) > MAX_FILES:
        raise RequestError(
            f"`{directory}` has {len(names)} files, and at most {MAX_FILES} are read",
            hint="put the rows into fewer files",
        )
    return [directory / name for name in names]


def _read_settings(path: Path, *, may_silence: bool) -> KnowledgeFile:
    check_settings(path)
    return _read(path, may_silence=may_silence)


def _read(path: Path, *, may_silence: bool) -> KnowledgeFile:
    loaded = load_file(KnowledgeFile, path)
    file = loaded.value
    if file.silences and not may_silence:
        machine = settings_homes()[1] / _DIRECTORY
        raise RequestError(
            "only the machine's own files can silence a rule",
            at=loaded.at_key("silences"),
            hint=f"move it to a file in {machine}, or leave it out",
        )
    known = rule_ids()
    raise_all(
        [
            RequestError(
                f"there is no rule `{entry.rule}`",
                at=loaded.at("silences", index, "rule"),
                hint=did_you_mean(entry.rule, known) or "docs/reference/rules.md lists all",
            )
            for index, entry in enumerate(file.silences)
            if entry.rule not in known
        ]
    )
    return file

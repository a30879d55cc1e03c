"""Shell text as the simple commands in it; whatever is more than that is not understood. Pure.

Nothing is carried out or expanded but variables whose values the file itself gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_TOKEN = re.compile(
    # A shell takes `scipy>=1.11` for a redirection to `=1.11`; whoever wrote it did not.
    r"""(?P<word>(?:[^\s;&|()<>'"\\#]|(?<=[^\s;&|()<>])\#|\\.|'[^']*'|"(?:\\.|[^"\\])*"
            |(?<=[A-Za-z\d\]])[<>]=?(?=\d))+)
      | (?P<comment>\#[^\n]*)
      | (?P<end>&&|\|\||;|\n)
      | (?P<more>[&|()<>]+[^\s;&|()<>]*)""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset(
    (
        *("if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac"),
        *("function", "{", "}", "!", "[", "[[", "eval", "source", "."),
    )
)
_MORE = "it is more than a simple command"
_TO_A_FILE = "it writes a file: keep that file beside the spec and name it under `files`"
_NOWHERE = ("/dev/null", "&1", "&2")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
# Variables made of variables grow tenfold with each line; no honest value comes near this.
_ROOM = 32 << 10
_TEMPLATE = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
# What a shell reads in one way: between quotes of one kind, behind a backslash, or bare.
_PIECE = re.compile(
    r"""'(?P<plain>[^']*)'|"(?P<quoted>(?:\\.|[^"\\])*)"|\\(?P<escaped>.)|[^'"\\]+|.""", re.DOTALL
)
_INNER = re.compile(r"""\\([$`"\\])|(?:[^\\]|\\(?![$`"\\]))+""")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One simple command.

    Attributes
    ----------
    line : int
        Where it begins, counted from that of the whole text.
    text : str
        As it is written, on one line.
    words : tuple of str
        Unquoted, known variables put in; empty where it is more than a simple command.
    why : str
        Of one without words, why it was not understood.
    """

    line: int
    text: str
    words: tuple[str, ...] = ()
    why: str = ""


def split(text: str, line: int, variables: Mapping[str, str]) -> Iterator[Command]:
    """Yield the commands of a shell text, in order.

    Parameters
    ----------
    line : int
        The text's own line.
    variables : mapping
        Values that the file gives; other variables make a command not understood.
    """
    # A continued line goes on; its length stays, so that places keep their lines.
    joined = re.sub(r"\\[ \t]*\n", lambda found: " " * (len(found[0]) - 1) + "\v", text)
    reading = _Reading()
    at = 0
    while at < len(joined):
        found = _TOKEN.match(joined, at)
        if found is None:
            if joined[at] not in " \t\v\r\f":
                reading.begin(at)
                reading.why = "its quotes do not end"
                break
            at += 1
            continue
        if found["end"]:
            yield from reading.finished(joined, at, line, variables)
            reading = _Reading()
        elif found["word"]:
            reading.begin(at)
            reading.word(found["word"], found.end())
        elif found["more"]:
            reading.begin(at)
            reading.redirection(found["more"], at)
        at = found.end()
    yield from reading.finished(joined, len(joined), line, variables)


@dataclass(slots=True)
class _Reading:
    """The command that is being read.

    Attributes
    ----------
    start, end : int
        Where it begins, -1 before it does; where its last word ended.
    target : bool
        Whether the next word is what output goes to.
    """

    start: int = -1
    end: int = -1
    words: list[str] = field(default_factory=list)
    target: bool = False
    why: str = ""

    def begin(self, at: int) -> None:
        if self.start < 0:
            self.start = at

    def word(self, text: str, end: int) -> None:
        if self.target:
            self.why = self.why or ("" if text in _NOWHERE else _TO_A_FILE)
            self.target = False
        else:
            self.words.append(text)
            self.end = end

    def redirection(self, text: str, at: int) -> None:
        found = re.fullmatch(r"&?>>?(.*)", text)
        if found is None:
            self.why = self.why or _MORE
            return
        if self.end == at and self.words and self.words[-1] in ("1", "2"):
            self.words.pop()
        self.target = not found[1]
        if found[1] and found[1] not in _NOWHERE:
            self.why = self.why or _TO_A_FILE

    def finished(self, text: str, end: int, line: int, variables: Mapping[str, str]) -> Iterator[Command]:
        if self.start >= 0:
            place = _line(text, self.start, line)
            yield _command(text[self.start : end], place, self.words, self.why, variables)


def _line(text: str, at: int, first: int) -> int:
    return first + text.count("\n", 0, at) + text.count("\v", 0, at)


def _command(text: str, line: int, words: list[str], why: str, variables: Mapping[str, str]) -> Command:
    shown = " ".join(text.split())
    if why:
        return Command(line=line, text=shown, why=why)
    if not words or words[0] in _KEYWORDS:
        return Command(line=line, text=shown, why=_MORE)
    try:
        plain = [part for word in words for part in _expanded(word, variables)]
    except ValueError as error:
        return Command(line=line, text=shown, why=str(error))
    while plain and _ASSIGNMENT.fullmatch(plain[0]) and len(plain) > 1:
        plain = plain[1:]
    return Command(line=line, text=shown, words=tuple(plain), why="" if plain else _MORE)


def _expanded(word: str, variables: Mapping[str, str]) -> list[str]:
    """Return the words that a shell makes of one: what a bare variable holds may be several."""
    whole = _ASSIGNMENT.fullmatch(word) is not None
    found: list[str] = []
    open_word = False
    for value, bare in _pieces(word, variables):
        first, *more = re.split(r"\s+", value) if bare and not whole else [value]
        if open_word:
            found[-1] += first
        elif first or not bare:
            found.append(first)
        found += [part for part in more if part]
        open_word = bool(more[-1]) if more else open_word or bool(first) or not bare
    return found


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return a value without its quotes, known variables put in.

    Raises
    ------
    ValueError
        It depends on what the file does not say; the text says on what.
    """
    return "".join(value for value, _ in _pieces(text, variables))


def _pieces(text: str, variables: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a text between its quotes, and whether each stands bare."""
    for found in _PIECE.finditer(text):
        if found["plain"] is not None:
            yield found["plain"], False
        elif found["quoted"] is not None:
            for inner in _INNER.finditer(found["quoted"]):
                yield inner[1] or _known(inner[0], variables), False
            if not found["quoted"]:
                yield "", False
        elif found["escaped"]:
            yield found["escaped"], False
        else:
            yield _known(found[0], variables), True


def _known(text: str, variables: Mapping[str, str]) -> str:
    if "`" in text or "$(" in text:
        raise ValueError("it depends on what another command says")
    value = substitute(text, variables)
    if "$" in value:
        raise ValueError("it depends on a variable whose value is not in the file")
    return value


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with the variables put in that are known, as far as there is room for them."""
    room = _ROOM

    def value(found: re.Match[str]) -> str:
        nonlocal room
        put = variables.get(found[1] or found[2])
        if put is None or len(put) > room:
            return found[0]
        room -= len(put)
        return put

    return _VARIABLE.sub(value, text)


def fill_in(text: str, variables: Mapping[str, str]) -> str:
    """Return a definition's text with ``{{ NAME }}`` put in, as Apptainer does before anything reads it."""
    return _TEMPLATE.sub(lambda found: variables.get(found[1], found[0]), text)


def assignment(word: str) -> tuple[str, str] | None:
    """Return name and value of ``NAME=VALUE``; None for anything else."""
    found = _ASSIGNMENT.fullmatch(word)
    return (found[1], found[2]) if found else None

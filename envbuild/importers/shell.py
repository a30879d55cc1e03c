"""Splits shell text into simple commands. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from envbuild.spec.model import MAX_TEXT

_MAX_DIGITS = 3  # of the number of a descriptor
_MAX_NESTING = 5  # of scripts in scripts: `bash -c`, here-documents
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^${}]*))?\}|(\w+))")
_HEREDOC = re.compile(r"<<-?[ \t]*([\"']?)(\w+)\1")
_CONTINUATION = re.compile(r"\\[ \t\r]*\n")
_OPERATOR = re.compile(r";;|&&|\|\||\|&|[;&|()\n]")
# A version constraint, `scipy>=1.11`, is not a redirection.
_BOUND = re.compile(r"[<>]=?\s*[\"']?\d")
_REDIRECTION = re.compile(r"&?[<>]{1,3}[&|]?[ \t]*")
_TARGET = re.compile(r"[^\s;&|()]*")
_OPENING = frozenset(("if", "case", "for", "while", "until", "select"))
_BRANCH = frozenset(("else", "elif"))
_CLOSING = frozenset(("fi", "esac", "done"))
_INNER = frozenset(("then", "do", "{", "}", "!", "time", "exec", "function"))
_KEYWORDS = _OPENING | _BRANCH | _CLOSING | _INNER
_SHELLS = re.compile(r"(?:\S*/)?(?:ba|da|z|k)?sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A simple command of a script."""

    line: int
    words: tuple[str, ...]
    """Its words without quotes, with their variables, without redirections."""
    written: str
    """The command for notes, with keywords of the shell and redirections."""
    writes: bool = False
    """Whether it reads or writes a file, apart from `/dev/null`."""
    piped: tuple[tuple[str, ...], ...] = ()
    """The words of the other commands of its pipeline, which `written` contains, too."""
    is_alternative: bool = False
    """Whether it runs only if another command of the script does not: behind `else` or `||`."""
    has_open_quotes: bool = False


@dataclass(slots=True)
class _Pending:
    """The command that is being read."""

    line: int = 0
    words: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    writes: bool = False
    bodies: list[tuple[int, str]] = field(default_factory=list)
    piped: list[tuple[str, ...]] = field(default_factory=list)


def split_script(script: str, line: int, nesting: int = 0) -> Iterator[Command]:
    """Yield the commands of a script that begins at a line, also those of scripts in it."""
    branches: list[bool] = []  # of each open `if`: whether this is its `else`
    pending = _Pending()
    operator = ""
    in_test = False  # between `[[` and `]]`, where `<` and `&&` compare
    for kind, text, at in _tokens(script, line):
        if kind == "word":
            in_test = text != "]]" and (in_test or (text == "[[" and _KEYWORDS.issuperset(pending.words)))
            pending.line = pending.line or at
            pending.words.append(text)
            pending.shown.append(text)
        elif in_test and text not in ("\n", ";", "quotes") and kind != "body":
            pending.shown.append(text)
        elif kind in ("redirection", "file"):
            pending.line = pending.line or at
            pending.shown.append(text)
            pending.writes |= kind == "file"
        elif kind == "body":
            pending.bodies.append((at, text))
            pending.line = pending.line or at
        elif text in ("|", "|&"):
            pending.line = pending.line or at
            pending.piped.append(tuple(pending.words))
            pending.shown.append(text)
            pending.words = []
        elif text == "\n" and not pending.words and (pending.piped or operator in ("&&", "||")):
            continue  # the command goes on in the next line
        else:
            yield from _commands(pending, branches, operator, text == "quotes", nesting)
            operator = text
            pending = _Pending()
            in_test = False


def _commands(
    pending: _Pending, branches: list[bool], operator: str, open_quotes: bool, nesting: int
) -> Iterator[Command]:
    first, *rest = [*pending.piped, tuple(pending.words)]
    skipped = 0  # keywords in front of the command
    for word in first:
        if word in _OPENING:
            branches.append(False)
        elif word in _BRANCH and branches:
            branches[-1] = True
        elif word in _CLOSING and branches:
            branches.pop()
        if word not in _KEYWORDS:
            break
        skipped += 1
        if word in ("for", "case", "select"):
            break
    keyword = first[skipped - 1] if skipped else ""
    words = list(first[skipped:])
    if keyword == "for" and words[1:2] == ["in"]:
        words = [f"{words[0]}={' '.join(words[2:])}"]  # the values of its variable
    elif keyword in ("for", "case", "select"):
        words = []
    inner = _script_of(words, pending) if not rest else []
    if inner and nesting < _MAX_NESTING:
        for at, script in inner:
            yield from split_script(script, at, nesting + 1)
    elif pending.shown:
        yield Command(
            line=pending.line,
            words=tuple(words),
            written=" ".join(pending.shown),
            writes=pending.writes or bool(pending.bodies),
            piped=tuple(rest),
            is_alternative=operator == "||" or any(branches),
            has_open_quotes=open_quotes,
        )


def _script_of(words: list[str], pending: _Pending) -> list[tuple[int, str]]:
    """Return the scripts that a command hands to a shell, with their first lines."""
    if pending.bodies and (not words or (_SHELLS.fullmatch(words[0]) and len(words) == 1)):
        return pending.bodies
    if len(words) > 1 and _SHELLS.fullmatch(words[0]):
        for index, word in enumerate(words[1:-1], 1):
            if re.fullmatch(r"-[a-z]*c", word):
                return [(pending.line, words[index + 1])]
    return []


def _tokens(script: str, line: int) -> Iterator[tuple[str, str, int]]:  # noqa: PLR0912, PLR0915
    """Yield words, operators, redirections and here-documents with their lines."""
    position, length = 0, len(script)
    word: list[str] = []
    in_word = False
    word_line = line
    heredocs: list[str] = []
    while position <= length:
        char = script[position] if position < length else ""
        if match := _CONTINUATION.match(script, position):
            position, line = match.end(), line + 1
            if in_word and not script[position : position + 1].strip():
                yield "word", "".join(word), word_line
                word, in_word = [], False
            continue
        if not char or char.isspace() or (char in "&;|()" and not script.startswith("&>", position)):
            if in_word:
                yield "word", "".join(word), word_line
                word, in_word = [], False
            if not char:
                break
            if match := _OPERATOR.match(script, position):
                if match[0] == "\n" and heredocs:
                    for mark in heredocs:
                        body, position = _body(script, position + 1, mark)
                        yield "body", body, line + 1
                        line += body.count("\n") + 1 + (body != "")
                        position -= 1
                    heredocs = []
                    position = min(position, length)
                yield "operator", match[0], line
                line += match[0] == "\n"
                position += len(match[0])
            else:
                position += 1
            continue
        if not in_word:
            word_line = line
        if char == "#" and not in_word:
            end = script.find("\n", position)
            position = length if end < 0 else end
        elif char in "'\"":
            end = _end_of_quotes(script, position)
            if end < 0:
                end = script.find("\n", position)
                end = length if end < 0 else end
                yield "word", "".join(word) + script[position:end], word_line
                yield "operator", "quotes", line
                word, in_word, position = [], False, end
                continue
            quoted = script[position + 1 : end]
            line += quoted.count("\n")
            if char == '"':
                quoted = re.sub(r"\\([\"\\$`])", r"\1", _CONTINUATION.sub("", quoted))
            word.append(quoted)
            in_word, position = True, end + 1
        elif char == "\\":
            word.append(script[position + 1 : position + 2])
            in_word, position = True, position + 2
        elif char == "`" or script.startswith(("$(", "<(", ">(", "${"), position):
            end = _end_of_substitution(script, position)
            word.append(script[position:end])
            line += word[-1].count("\n")
            in_word, position = True, end
        elif match := _HEREDOC.match(script, position):
            heredocs.append(match[2])
            yield from [("word", "".join(word), word_line)] if in_word else []
            yield "file", match[0], line
            word, in_word, position = [], False, match.end()
        elif (char in "<>" or script.startswith("&>", position)) and not (
            in_word and not _number(word) and _BOUND.match(script, position)
        ):
            number = _number(word)
            if in_word and not number:
                yield "word", "".join(word), word_line
            word, in_word = [], False
            match = _REDIRECTION.match(script, position)
            target = _TARGET.match(script, match.end() if match else position + 1)
            if match is None or target is None:
                raise AssertionError("a redirection begins with its sign, and its target may be empty")
            is_discarded = match[0].endswith("&") or target[0] == "/dev/null"
            yield "redirection" if is_discarded else "file", number + match[0] + target[0], line
            position = target.end()
        else:
            word.append(char)
            in_word, position = True, position + 1
    yield "operator", ";", line


def _number(word: Sequence[str]) -> str:
    """Return the pieces of a word if they are the number of a descriptor; empty if not."""
    # A long word would be joined again at each of its signs.
    text = "".join(word) if len(word) <= _MAX_DIGITS else ""
    return text if text.isdigit() else ""


def _body(script: str, start: int, mark: str) -> tuple[str, int]:
    """Return the here-document that starts at a position, and where it ends."""
    match = re.compile(rf"^[ \t]*{re.escape(mark)}[ \t\r]*$", re.MULTILINE).search(script, start)
    if match is None:
        return script[start:], len(script)
    return script[start : match.start()].removesuffix("\n"), match.end()


def _end_of_quotes(script: str, start: int) -> int:
    """Return the position of the closing quote; -1 if there is none."""
    quote = script[start]
    if quote == "'":
        return script.find(quote, start + 1)
    match = re.compile(r"(?:[^\"\\]|\\.)*+\"", re.DOTALL).match(script, start + 1)
    return match.end() - 1 if match else -1


def _end_of_substitution(script: str, start: int) -> int:
    """Return the end of ``$(…)``, ``${…}`` or text between backquotes; the script's if it is open."""
    if script[start] == "`":
        return (script.find("`", start + 1) + 1) or len(script)
    opening, depth = script[start + 1], 0
    closing = ")" if opening == "(" else "}"
    for position in range(start + 1, len(script)):
        depth += (script[position] == opening) - (script[position] == closing)
        if depth == 0:
            return position + 1
    return len(script)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with the values of known variables, which could grow without limit in a long text."""
    if len(text) > MAX_TEXT:
        return text
    return _VARIABLE.sub(
        lambda match: variables.get(match[1] or match[3], match[0] if match[2] is None else match[2]), text
    )


def is_unresolved(text: str) -> bool:
    """Return whether a text depends on an unknown variable or on another command."""
    return "$" in text or "`" in text

"""What of another's file nobody should find in a spec, on a terminal or in a log."""

from __future__ import annotations

import re

_WORDS = (
    r"(?:\w*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?)|(?:\w*_)?(?:TOKEN|PASS|PWD|AUTHORIZATION)"
    r"|\w+[_-]KEY|API_?KEY)(?:[_-]\w+)?"
)
# `PWD` itself is where a shell is.
_NAME = re.compile(rf"(?!PWD$){_WORDS}", re.IGNORECASE)
# Longer texts are cut where they are shown, and longer values no spec holds: looking at them takes its time.
_SHOWN = 1000
_HELD = 4096
_VALUE = r"""(?:"(?:\\.|[^"])*"|'[^']*'|[^\s"']+)"""
# A name, and what it is set to: NAME=X, --name X, "Name: scheme X", name X.
_SET = re.compile(
    rf"""(?<!\w)({_WORDS}["']?(?:\s*[=:]\s*|\s+)(?:(?:bearer|basic|token)\s+)?){_VALUE}""", re.IGNORECASE
)
# The same inside of a value, where a space separates other words.
_INSIDE = re.compile(rf"(?<!\w){_WORDS}\s*[=:]\s*\S", re.IGNORECASE)
# With a password up to the last `@` of a word: it may hold `/`, `:` and `@` as it likes.
_PLACE = re.compile(r"://(?:[^\s/@]*@|[^\s/]*:\S*@)")
_USER = re.compile(r"""((?<!\S)(?:-u|--user|--proxy-user)(?:\s*|=)["']?[^\s:"']+:)[^\s"']+""")
_LOGIN = re.compile(r"(\b(?:mysql\w*|mariadb\w*|sshpass|login)\b[^|;&]*?\s-p\s*)\S+")
# Services mark what they hand out, so that it is found.
_MARKED = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|pypi-|AKIA|ASIA|eyJ)[\w.+/=-]{3,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
)


def is_hidden(name: str, value: str) -> bool:
    """Whether a variable is a secret, by its name or by what its value looks like.

    A value that is too long to tell is taken for one.
    """
    return (
        is_hidden_name(name)
        or len(value) > _HELD
        or bool(_PLACE.search(value) or _INSIDE.search(value) or _MARKED.search(value))
    )


def is_hidden_name(name: str) -> bool:
    """Whether a name is one that secrets have."""
    return _NAME.fullmatch(name[:_SHOWN]) is not None


def masked(text: str) -> str:
    """Return a text for people, with an ellipsis in place of what may be a secret.

    What only looks like one is hidden, too: a remark is the place to lose a word. A long text is cut.
    """
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN].rpartition(' ')[0]} …"
    text = _SET.sub(r"\1…", text)
    text = _LOGIN.sub(r"\1…", _USER.sub(r"\1…", text))
    return _MARKED.sub("…", _PLACE.sub("://…@", text))

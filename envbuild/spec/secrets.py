"""Removes passwords, tokens and keys from lines that a person wrote, before they are shown."""

from __future__ import annotations

import re

_LONGEST = 4096  # characters of a text that is searched

_SECRET = re.compile(
    r"""(?<!tik)token(?![a-z])                              # tiktoken is a package
      | (?<![a-z])(?:key|pass|pwd|authorization)s?["']?\s*[=:](?!=)
      # Without a value it is part of a name: `…/RPM-GPG-KEY-vendor`, `apt-key adv --recv-keys`.
      | (?<![a-z])(?<!gpg-)(?<!apt-)(?<!fetch-)(?<!recv-)(?<!public-)
        (?:key|pass|pwd|authorization)s?(?=["']?[\s_]|$)
      | (?:api|access|account|private|shared|signing|encryption|master|license)[-_]?key
      | (?<![a-z])bearer\ | (?<!\S)(?:--(?:auth|header)\b|-H\b)
      | passw(?:or)?d | passphrase | credential
      | (?<!vault-)secret(?!storage|s?\.[a-z])               # azure-keyvault-secrets, secretstorage
      | ://(?=[^\s/@]*@|[^\s/]*:\S*@)                        # a password may hold `/`, `:` and `@`
      | (?<!\S)(?:-u|--user|--proxy(?:-user)?)[\s=]*[^\s:/]+:(?!//)
      # Options may hold a password; `mysql-client` is a package.
      | (?<!\S)(?:\S*/)?(?:mysql|mariadb)\w*\s(?=(?:.*\s)?-) | (?<!\S)(?:\S*/)?sshpass\b
      | (?<![-\w])login[\s=:]
      # A token has digits or capitals; `hf_transfer` is a package.
      | \b(?-i:(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|pypi-)(?=[\w-]*[A-Z0-9]))
      | \b(?-i:AKIA|ASIA|eyJ)(?=\w) | (?<![-\w])key-(?=[a-z]*[0-9])
      | BEGIN\ [A-Z ]*PRIVATE\ KEY""",
    re.IGNORECASE | re.VERBOSE,
)
# In front of the last `@` of an address: the name of a distribution, a scheme or a user, which may be shown.
_START = re.compile(r"(?:[^\s:@]+@)?[^\s:@]*:")
_SCHEME = re.compile(r"(?:https?|git\+\w+|ssh|file):", re.IGNORECASE)
_QUERY = re.compile(r"[?#][^\s`]+")
# A version behind the path of a repository is not a host: `git+https://example.org/tool.git@v1`.
_PATH = re.compile(r"[^\s:@]+://[^\s:@]+/[^\s:@]*")
# Options whose value is for programs that build, with everything behind them.
_VALUE = re.compile(
    r"(?P<option>--(?:config-settings?|global-option|install-option|build-option)\b)[\s=]+\S.*"
)


def without_secrets(text: str) -> str:
    """Return a text without possible passwords and tokens in its addresses; messages may hold some."""
    return _QUERY.sub("…", re.sub(r"[^\s`]+", lambda match: _without_user(match[0]), text))


def _without_user(word: str) -> str:
    """Return a word without what stands before its last `@`, whatever the form of the address."""
    before, _, behind = word.rpartition("@")
    # `foo@https://…` names a distribution.
    if not before or (not behind[:1].isalnum() and behind[:1] != "[") or _SCHEME.match(behind):
        return word
    # `jane@example.org`, `mpich@4` and a version behind a path are not addresses with a user.
    has_user = ":" in before or before.startswith("//") or re.search("[:/]", behind)
    if not has_user or _PATH.fullmatch(before):
        return word
    start = _START.match(before)
    return f"{start[0] if start else ''}…@{behind}"


def may_hold_secret(text: str) -> bool:
    """Return whether a text names or looks like a password, token or key; a long text may."""
    return len(text) > _LONGEST or _SECRET.search(text) is not None


def shown(text: str, most: int = 100) -> str:
    """Return a text for messages: one short line, only its first word if it may hold a secret."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text[:1000].split()))
    if secret := _SECRET.search(line):
        return re.split(r"[\s=:]", line[: secret.end()])[0] + "…"
    line = without_secrets(_VALUE.sub(r"\g<option>…", line))
    return line if len(line) <= most else line[: most - 1] + "…"


def shown_quotes(text: str) -> str:
    """Return a message with what it quotes between backquotes as `shown` returns it."""
    return without_secrets(re.sub(r"`([^`]*)`?", lambda match: f"`{shown(match[1], most=300)}`", text))

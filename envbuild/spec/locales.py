"""The variables that name a locale, and the locales that an image has.

Sources: locale(7); "Environment variables" of POSIX.1-2024; Debian's packages libc-bin (it has C.UTF-8) and
locales-all; `locales` alone compiles no locale unless somebody answers its question.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LANG = "LANG"
"""The locale of all categories that no other variable names."""
LC_ALL = "LC_ALL"
"""Wins over all others."""
VARIABLES = frozenset(
    {
        *(LANG, LC_ALL, "LC_ADDRESS", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION", "LC_MEASUREMENT"),
        *("LC_MESSAGES", "LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER", "LC_TELEPHONE", "LC_TIME"),
    }
)
DEFAULT = "C.UTF-8"
_PACKAGE = "locales-all"
_EVERYWHERE = re.compile(r"|C|POSIX|C\.(?i:utf-?8)")


def has_locales(system_packages: Iterable[str]) -> bool:
    """Return whether an image with these Debian packages has more locales than C and C.UTF-8."""
    return _PACKAGE in system_packages


def missing_locale(name: str, value: str) -> str:
    """Return the locale that a variable names and that only some images have; empty if it names no such."""
    return "" if name not in VARIABLES or _EVERYWHERE.fullmatch(value) else value


def locale_directories(locale: str) -> tuple[str, ...]:
    """Return the names below /usr/lib/locale that glibc looks for: ``de_DE.UTF-8``, ``de_DE.utf8``."""
    name, dot, rest = locale.partition(".")
    codeset, at, modifier = rest.partition("@")
    normalized = re.sub(r"[^a-z0-9]", "", codeset.lower())
    return tuple(dict.fromkeys((locale, f"{name}{dot}{normalized}{at}{modifier}")))


LOCALE_HINT = (
    f"write `{DEFAULT}`, which each image has; the Debian package `{_PACKAGE}` under `packages.system` brings"
    " all others, in about 230 MB"
)

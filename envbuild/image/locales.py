"""The locales whose files an image has, as glibc finds them. Source: locale(7), localedef(1)."""

from __future__ import annotations

from envbuild.image.files import ImageFiles
from envbuild.spec import locales

_DIRECTORY = "/usr/lib/locale"
# Debian 12 and others have C.UTF-8 there; glibc 2.35 and later need no files for it.
_ALWAYS = {"C", "POSIX", *locales.locale_directories(locales.DEFAULT)}


def has_locale(files: ImageFiles, locale: str) -> bool:
    """Return whether an image has a locale, or may have it: an archive is not read, and musl takes any."""
    directories = _compiled(files)
    return directories is None or not directories.isdisjoint(locales.locale_directories(locale))


def locale_of_starts(files: ImageFiles) -> str:
    """Return the locale that starters of an image set; empty if it may have that of its user.

    An image without any locale but C.UTF-8 gets that.
    """
    directories = _compiled(files)
    return locales.DEFAULT if directories and directories <= _ALWAYS else ""


def _compiled(files: ImageFiles) -> set[str] | None:
    """Return the names of an image's compiled locales; None if they cannot be known."""
    if files.at(_DIRECTORY) is None or files.at(f"{_DIRECTORY}/locale-archive") is not None:
        return None
    prefix = f"{files.real(_DIRECTORY)}/"
    return {path.removeprefix(prefix).partition("/")[0] for path in files.entries if path.startswith(prefix)}

"""The certificates that this machine trusts."""

from __future__ import annotations

from pathlib import Path


def trusted() -> str | bool:
    """Return where they are (SSL_CERT_FILE, SSL_CERT_DIR, OpenSSL's own places).

    As uv is told to: a centre's own authority is in the machine's store, and not among those
    that the Python package brings. True, which means the package's, where the machine has none.
    """
    import ssl  # noqa: PLC0415  # late: many runs open no connection

    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return paths.cafile
    # Hashed names are what OpenSSL looks for; a directory without any trusts nobody.
    if paths.capath and next(Path(paths.capath).glob("*.0"), None) is not None:
        return paths.capath
    return True

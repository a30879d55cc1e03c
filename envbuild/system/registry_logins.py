"""Logins of container registries, where podman, Docker and Apptainer keep them."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.system import process
from envbuild.system.files import read_small

_LIMIT_BYTES = 1 << 20
_HELPER_S = 30.0
_HELPER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Login:
    """A user's login at a registry."""

    user: str
    password: str = field(repr=False)
    """Empty if `token` holds."""
    source: str
    """Where it was found, for messages: a path, or the name of a credential helper."""
    token: str = field(default="", repr=False)
    """A refresh token, which the registry's token server exchanges."""


def login_files() -> list[Path]:
    """Return the files that may hold logins, in the order in which they are asked."""
    home = os.environ.get("HOME", "")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    docker = os.environ.get("DOCKER_CONFIG")
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        return [Path(named)]
    paths = [Path(runtime) / "containers/auth.json"] if runtime else []
    paths += [Path(home) / ".config/containers/auth.json"] if home else []
    paths += [Path(home) / ".apptainer/docker-config.json"] if home else []
    paths += (
        [Path(docker) / "config.json"] if docker else [Path(home) / ".docker/config.json"] if home else []
    )
    return paths


def find_login(host: str, repository: str) -> Login | None:
    """Return the login for a repository, of the first file that has one; None if no file does.

    An entry may name the host, or the host and a part of the repository's path; the longest that fits counts.
    RequestError: a file with logins cannot be read, or its credential helper fails.
    """
    for path in login_files():
        try:
            text = read_small(path, limit_bytes=_LIMIT_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = f"the logins in `{path}` cannot be read: {error.strerror}"
            raise RequestError(problem, hint="see that it is a file that you may read") from error
        if (login := _login_of(path, text, host, repository)) is not None:
            return login
    return None


def _login_of(path: Path, text: bytes, host: str, repository: str) -> Login | None:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise RequestError(
            "this file with logins is not JSON",
            at=Location(path=path),
            hint=f"`podman login {host}` writes one",
        )
    logins, helpers = _mapping(config.get("auths")), _mapping(config.get("credHelpers"))
    for name in _names(host, repository):
        if isinstance(helper := helpers.get(name), str):
            return _ask_helper(helper, name, path)
        entry = logins.get(name, logins.get(f"https://{name}", logins.get(f"https://{name}/v2/")))
        if isinstance(entry, dict):
            if isinstance(auth := entry.get("auth"), str) and auth:
                return _decoded(auth, entry.get("identitytoken"), path)
            if isinstance(store := config.get("credsStore"), str):
                return _ask_helper(store, name, path)
    return None


def _names(host: str, repository: str) -> list[str]:
    parts = repository.split("/")
    # `docker login` names its own registry so.
    of_docker = ["index.docker.io/v1/"] if host == "docker.io" else []
    return [*("/".join([host, *parts[:count]]) for count in range(len(parts), 0, -1)), host, *of_docker]


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _decoded(auth: str, token: object, path: Path) -> Login:
    try:
        user, colon, password = base64.b64decode(auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise RequestError(
            "a login in this file is not `user:password` in base64",
            at=Location(path=path),
            hint="log in again",
        )
    return Login(user, password, str(path), token if isinstance(token, str) else "")


def _ask_helper(name: str, server: str, path: Path) -> Login | None:
    if not _HELPER_NAME.fullmatch(name):
        raise RequestError(
            f"`{name[:64]}` is not a name of a credential helper",
            at=Location(path=path),
            hint="correct that file",
        )
    program = f"docker-credential-{name}"
    try:
        # A helper asks the user's own keyring.
        done = process.run([program, "get"], env=os.environ, stdin=server.encode(), timeout_s=_HELPER_S)
    except EnvbuildError as error:
        raise RequestError(
            f"`{program}`, which keeps the login of {server}, does not run: {error.problem}",
            at=Location(path=path),
            hint="install it, or log in again without it",
        ) from error
    if not done.ok:
        return None  # it keeps no login of this server
    try:
        answer = json.loads(done.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError, RecursionError):
        problem = f"`{program}` gave no login in the form of a credential helper"
        raise RequestError(problem, at=Location(path=path), hint="log in again without it") from None
    # By the protocol of credential helpers, this user stands for an identity token.
    if user == "<token>":
        return Login("", "", program, secret)
    return Login(user, secret, program)

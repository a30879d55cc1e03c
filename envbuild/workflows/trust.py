"""Whose signatures count, as ``config.yaml`` of the user and the centre say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import Location, RequestError
from envbuild.events import Emit, task
from envbuild.image.file import ImageFile
from envbuild.image.statements import judge_image
from envbuild.inputs.config import read_configs
from envbuild.system.envelopes import Verifier
from envbuild.system.privacy import check_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """The signatures that one configuration file requires of what others made."""

    keys: tuple[Verifier, ...]
    """Those of `require_signature` that are not revoked."""
    require_pass: bool


def requirements() -> tuple[Requirement, ...]:
    """Return what the configuration files require, each for itself.

    RequestError: a key cannot be read. MachineError: one is named, and `cryptography` is not installed.
    """
    return tuple(
        Requirement(
            keys=valid_keys(
                (file, config.at("require_signature", number))
                for number, file in enumerate(config.value.require_signature)
            ),
            require_pass=config.value.require_pass,
        )
        for config in read_configs()
        if config.value.require_signature
    )


def valid_keys(files: Iterable[tuple[str, Location | None]]) -> tuple[Verifier, ...]:
    """Return the public keys in files, without those that are revoked; raises as `requirements`.

    Each comes with its place in a configuration file.
    """
    # Only signatures need the package `cryptography`.
    from envbuild.system.keys import PublicKey  # noqa: PLC0415

    def read(file: str, at: Location | None) -> Verifier:
        check_settings(Path(file))
        return PublicKey.read(Path(file), at=at)

    revoked = {
        entry if entry.startswith("SHA256:") else read(entry, at).fingerprint
        for config in read_configs()
        for number, entry in enumerate(config.value.revoked)
        for at in [config.at("revoked", number)]
    }
    keys = [read(file, at) for file, at in files]
    return tuple(key for key in keys if key.fingerprint not in revoked)


def check_signatures(image: ImageFile, name: str, emit: Emit) -> bool:
    """Check that an image is signed as the configuration requires, and return whether it still needs a test.

    It does if it must have passed one, and no signed verdict says so. RequestError: it is not signed, or was
    changed. Otherwise raises as `requirements`.
    """
    required = requirements()
    if not required:
        return False
    keys = tuple({key.fingerprint: key for entry in required for key in entry.keys}.values())
    with task(emit, "verify", f"read {image.path.name}", total_bytes=image.root.size_bytes) as reading:
        judged = judge_image(image, keys, advanced=reading.advance)
    needs_test = False
    for entry in required:
        names = {key.fingerprint for key in entry.keys}
        signed = [statement for statement in judged.signed if statement.key in names]
        if not judged.is_sound or not any(statement.kind == "provenance" for statement in signed):
            problems = [statement.problem for statement in judged.statements if statement.problem]
            why = "; ".join([*judged.changed, *problems]) or "no key of it signed its provenance"
            raise RequestError(
                f"`{name}` is not signed as `require_signature` in config.yaml asks: {why}",
                hint="its builder runs `envbuild sign` with one of these keys:"
                f" {', '.join(sorted(names)) or 'none is left, since all are revoked'}",
            )
        passed = any(
            statement.kind == "verdict" and statement.result.startswith("PASSED") for statement in signed
        )
        needs_test = needs_test or (entry.require_pass and not passed)
    return needs_test

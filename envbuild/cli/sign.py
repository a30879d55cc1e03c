"""`envbuild sign` and `envbuild verify`: signed statements on images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_json, print_message, print_messages, print_next
from envbuild.cli.progress import session
from envbuild.errors import RequestError

if TYPE_CHECKING:
    from envbuild.workflows.sign import Verified, VerifiedStatement

_NAMES = {"provenance": "provenance", "bill": "bill of materials", "verdict": "verdict"}


def _read_kind(text: str) -> str:
    if text not in _NAMES:
        raise RequestError(f"`{text}` is not a kind of statement", hint=f"known are {', '.join(_NAMES)}")
    return text


def sign(
    image: Annotated[Path | None, typer.Argument(metavar="IMAGE.sif", help="The image to sign.")] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="PEM", help="The private key to sign with.")
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option("--new-key", metavar="FILE", help="Make a private key, and the public key FILE.pub."),
    ] = None,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    json: options.Json = False,
) -> None:
    """Sign an image: how it was built, its bill of materials, and the verdict of its last test.

    The passphrase of a key is in ENVBUILD_KEY_PASSPHRASE, or typed.
    """
    if new_key is not None:
        if image is not None or key is not None:
            raise RequestError(
                "`--new-key` only makes a key", hint="sign in a second command, with --key FILE"
            )
        made = workflows.sign.make_key(new_key)
        if json:
            print_json(made)
        print_message(f"{made.private}: written, for you alone; {made.public}: written, to give away")
        print_message(f"the key is {made.fingerprint}")
        print_next(f"sign IMAGE.sif --key {made.private}")
        return
    if image is None or key is None:
        raise RequestError(
            "an image and a key are needed",
            hint="`envbuild sign IMAGE.sif --key PEM`, or `envbuild sign --new-key FILE` for a key",
        )
    with session(json=json, store=store, apptainer=apptainer) as settings:
        signed = workflows.sign.sign_image(image, key, settings)
    if json:
        print_json(signed)
    names = ", ".join(_NAMES[kind] for kind in signed.statements)
    print_message(f"{signed.image}: signed by key {signed.key[7:19]}: {names}")


def verify(
    image: options.Image,
    key: Annotated[
        list[Path],
        typer.Option(
            "--key", metavar="PUB", help="A public key that you trust (repeatable).", show_default=False
        ),
    ],
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="KIND",
            parser=_read_kind,
            help=f"A statement that must be signed: {', '.join(_NAMES)} (repeatable) [provenance, bill].",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        options.output("DIR", "Write the signed statements here, as bundles that cosign verifies."),
    ] = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Verify who signed an image, and say what the signatures cover."""
    with session(json=json, store=store) as settings:
        verified = workflows.sign.verify_image(
            workflows.images.image_file(image, settings),
            key,
            require=workflows.sign.kinds(require or workflows.sign.ALWAYS),
            output=output,
            emit=settings.emit,
        )
    if json:
        print_json(verified)
    print_messages(format_verified(verified), problem=not verified.passed)
    if not verified.passed:
        raise typer.Exit(4)


def format_verified(verified: Verified) -> str:
    """Return a line for each statement, what they cover, and a summary."""
    lines = [_line(statement) for statement in verified.statements]
    lines += [f"missing   {_NAMES[kind]}: no given key signed one" for kind in verified.missing]
    lines += [f"changed   {part}" for part in verified.changed]
    if any(statement.state == "signed" for statement in verified.statements):
        root, *others = verified.covered
        lines.append(f"covered: the file system of {root} (sha256 {verified.sha256}), {', '.join(others)}")
        lines.append(f"not covered: {'; '.join(verified.not_covered)}")
    outcome = "verified" if verified.passed else "not verified"
    return "\n".join([*lines, f"{verified.image}: {outcome}"])


def _line(statement: VerifiedStatement) -> str:
    if statement.state == "refused":
        return f"refused   a statement: {statement.problem}"
    if statement.state == "other-key":
        return f"ignored   a statement by a key that was not given (it says: {statement.key or 'nothing'})"
    result = f" ({statement.result})" if statement.result else ""
    return f"signed    {_NAMES[statement.kind]}{result} by key {statement.key[7:19]}"

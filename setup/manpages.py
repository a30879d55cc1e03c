"""Write the man pages from what `--help` says, docs/man/envbuild*.1, and the shells' completion scripts.

Source: man(7), man-pages(7) for the sections and their order.
"""

import re
from pathlib import Path
from typing import Any

import typer

from envbuild import __version__
from envbuild.cli.completion import completion_script
from envbuild.cli.groups import shown_commands
from envbuild.cli.main import app

DOCS = Path(__file__).resolve().parent.parent / "docs"
MAN = DOCS / "man"
SCRIPTS = DOCS / "completions"
COMPLETIONS = {
    "bash": "bash-completion/completions/envbuild",
    "zsh": "zsh/site-functions/_envbuild",
    "fish": "fish/vendor_completions.d/envbuild.fish",
}
"""Shell → its script, below `SCRIPTS` and below ``share`` of an installation."""

# As the command's own settings have it.
_HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
_EXIT_CODES = (
    ("0", "done"),
    ("2", "what was asked is wrong"),
    ("3", "a build failed"),
    ("4", "a check failed"),
    ("5", "this machine lacks something"),
    ("130", "interrupted"),
)


def pages() -> dict[str, str]:
    """Return all man pages: file name → text."""
    found: dict[str, str] = {}
    _add(typer.main.get_command(app), ("envbuild",), found)
    names = sorted(name.removesuffix(".1") for name in found)
    return {name: text + _see_also(name.removesuffix(".1"), names) for name, text in sorted(found.items())}


def scripts() -> dict[str, str]:
    """Return the completion scripts: path below `SCRIPTS` → text."""
    return {path: completion_script(shell).strip() + "\n" for shell, path in COMPLETIONS.items()}


def main() -> None:
    """Write pages and scripts, and remove the pages of verbs that are gone."""
    MAN.mkdir(exist_ok=True)
    written = pages()
    for path in MAN.glob("*.1"):
        if path.name not in written:
            path.unlink()
    for name, text in written.items():
        (MAN / name).write_text(text, encoding="utf-8")
    for name, text in scripts().items():
        (SCRIPTS / name).parent.mkdir(parents=True, exist_ok=True)
        (SCRIPTS / name).write_text(text, encoding="utf-8")


def _add(command: Any, words: tuple[str, ...], found: dict[str, str]) -> None:  # noqa: ANN401  # typer's own
    context = typer.Context(command, info_name=words[-1], **_HELP)
    found[f"{'-'.join(words)}.1"] = _page(command, context, words)
    for name, child in shown_commands(command).items():
        _add(child, (*words, name), found)


def _page(command: Any, context: typer.Context, words: tuple[str, ...]) -> str:  # noqa: ANN401  # typer's own
    name = "-".join(words)
    paragraphs = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    title, *more = paragraphs
    lines = [
        f'.\\" Written from `{" ".join(words)} --help` by `make man`.',
        f'.TH {_escape(name.upper())} 1 "" "envbuild {__version__}" "envbuild"',
        *(".SH NAME", f"{_escape(name)} \\- {_text(_one_line(title))}"),
        *(".SH SYNOPSIS", f".B {_escape(' '.join(words))}"),
        _text(" ".join(command.collect_usage_pieces(context))),
        *(".SH DESCRIPTION", _text(title)),
    ]
    for paragraph in more:
        lines += [".PP", _text(paragraph)]
    arguments: list[tuple[str, str]] = []
    options: list[tuple[str, str]] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            (arguments if parameter.param_type_name == "argument" else options).append(record)
    children = [(each, child.get_short_help_str(200)) for each, child in shown_commands(command).items()]
    for heading, records in (("COMMANDS", children), ("ARGUMENTS", arguments), ("OPTIONS", options)):
        lines += [f".SH {heading}"] if records else []
        for term, said in records:
            lines += [".TP", f"\\fB{_escape(term)}\\fR", _text(said) or "\\&"]
    lines.append(".SH EXIT STATUS")
    for code, said in _EXIT_CODES:
        lines += [".TP", f".B {code}", said]
    return "\n".join(lines) + "\n"


def _see_also(name: str, names: list[str]) -> str:
    near = [other for other in names if name.rpartition("-")[0] == other or other.rpartition("-")[0] == name]
    listed = ", ".join(f"\\fB{_escape(other)}\\fR(1)" for other in near)
    return f".SH SEE ALSO\n{listed}\n"


def _one_line(title: str) -> str:
    """Return a title as man's NAME section has it: a phrase, not a sentence."""
    phrase = title.split(": ", maxsplit=1)[0] if len(title) > 70 else title
    return (phrase[:1].lower() + phrase[1:] if not phrase[:2].isupper() else phrase).rstrip(".")


def _text(text: str) -> str:
    """Return text for a paragraph; what stands in backticks becomes bold."""
    one = " ".join(text.split())
    marked = re.sub(r"`([^`]*)`", lambda found: f"\\fB{found[1]}\\fR", _escape(one))
    return f"\\&{marked}" if marked.startswith((".", "'")) else marked


def _escape(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")


if __name__ == "__main__":
    main()

"""The command: parse, call one workflow, render; and the one boundary where errors end.

Verbs are imported when they are called, so that `--help` and a build with
nothing to do start fast.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from envbuild.cli import (
    build,
    cache,
    check,
    completion,
    doctor,
    export,
    fetch,
    import_def,
    init,
    inspect,
    launch,
    layer,
    lock,
    module,
    plan,
    recipes,
    reproduce,
    sbom,
    schema,
    site,
    streams,
    test,
)
from envbuild.cli.sinks import neutral
from envbuild.errors import EnvbuildError, MachineError, RequestError, of_system, render

app = typer.Typer(
    name="envbuild",
    help="ML framework images for supercomputers: built from ten lines of YAML, proven across ranks.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    # `envbuild completion` prints what typer's own options would write into people's files.
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init")(init.command)
app.command("build")(build.command)
app.command("lock")(lock.command)
app.command("fetch")(fetch.command)
app.command("plan")(plan.command)
app.command("check")(check.command)
app.command("test")(test.command)
app.command("launch")(launch.command)
app.add_typer(module.app, name="module")
app.command("export")(export.command)
app.add_typer(layer.app, name="layer")
app.command("import-def")(import_def.command)
app.command("inspect")(inspect.command)
app.command("reproduce")(reproduce.command)
app.command("sbom")(sbom.command)
app.add_typer(cache.app, name="cache")
app.command("doctor")(doctor.command)
app.add_typer(recipes.app, name="recipes")
app.add_typer(site.app, name="site")
app.command("schema")(schema.command)
app.command("completion")(completion.command)


def _version(wanted: bool) -> None:
    if wanted:
        from envbuild import __version__  # noqa: PLC0415  # start-up time

        typer.echo(f"envbuild {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(  # its callback does the work
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


def expand_upgrade(arguments: Sequence[str]) -> list[str]:
    """Rewrite ``--upgrade [NAME…]`` into one ``--upgrade=NAME`` for each name, ``=*`` for none.

    The words behind it are names up to the next option or the spec, which is
    told by its ending or by being a file.
    """
    words = list(arguments)
    if "lock" not in words or "--upgrade" not in words:
        return words
    at = words.index("--upgrade")
    end = at + 1
    while end < len(words) and not words[end].startswith("-") and not _is_spec(words[end]):
        end += 1
    names = words[at + 1 : end] or ["*"]
    return [*words[:at], *(f"--upgrade={name}" for name in names), *words[end:]]


def _is_spec(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) or Path(word).is_file()


# Objects (count) between two looks for garbage.
_YOUNG = 100_000
# No more: programs from before Linux 5.9 close each possible number when they start others.
_OPEN_FILES = 8192
# What these finish is kept, and found by the next run.
_RESUMED = ("build", "lock", "fetch")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code: 0, 2, 3, 4, 5 or 130; 141 when nobody reads its output."""
    streams.prepare()
    completion.prepare()
    # A command reads a lot and soon ends: looking for garbage so often would be a tenth of what it computes.
    gc.set_threshold(_YOUNG)
    _allow_open_files()
    try:
        code = _run(expand_upgrade(sys.argv[1:] if arguments is None else arguments))
    except (BrokenPipeError, SystemExit) as ended:
        if isinstance(ended, SystemExit) and not isinstance(ended.__context__, BrokenPipeError):
            raise
        # Nobody is left to be told. Never 0: a test may have failed.
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        code = 141  # as a shell tells SIGPIPE
    sys.exit(code)


def _allow_open_files() -> None:
    """Raise the limit on open files, of which each layer of an image takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _refuse_nowhere(words: Sequence[str]) -> None:
    """Refuse to work in a directory that has been removed: a relative path means nothing there."""
    own = set(itertools.takewhile(lambda word: word != "--", words))
    if completion.VARIABLE in os.environ or {"-h", "--help"} & own or words[:1] in ([], ["--version"]):
        return
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise MachineError(
            "the working directory is gone: somebody removed it",
            hint="go to one that is there (`cd`), and run it again",
        ) from error


def _run(words: Sequence[str]) -> int:
    try:
        _refuse_nowhere(words)
        code = app(args=words, standalone_mode=False, prog_name="envbuild")
        if code == 130:
            raise KeyboardInterrupt  # what typer has made of it
    except EnvbuildError as error:
        return _tell(error)
    except (KeyboardInterrupt, typer.Abort):
        resumed = next((word for word in words if not word.startswith("-")), "") in _RESUMED
        kept = "what is finished is kept, the next run goes on from there"
        sys.stderr.write(f"interrupted: {kept if resumed else 'what was not finished was not written'}\n")
        return 130
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
        if isinstance(error, BrokenPipeError) or (error.filename is None and not full):
            raise
        return _tell(of_system(error))
    except Exception as error:
        if error.__class__.__module__.startswith(("click", "typer")) and hasattr(error, "show"):
            return _tell_usage(error)
        raise
    return code if isinstance(code, int) else 0


def _tell_usage(error: Any) -> int:  # noqa: ANN401  # typer's own, of a private module
    if error.__class__.__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    # One form for all mistakes; typer's own shows what it is made of ("Value error, …").
    said = error.format_message().replace(": Value error, ", ": ").rstrip(".")
    asked = error.ctx.command_path if getattr(error, "ctx", None) else "envbuild"
    if said.endswith("is not readable"):
        return _tell(RequestError(said, hint="see that it may be read by you: `ls -l` shows who may"))
    return _tell(RequestError(said, hint=f"`{asked} --help` shows what there is"))


def _tell(error: EnvbuildError) -> int:
    # What is wrong is quoted, and what is quoted may not steer a terminal.
    sys.stderr.write("\n".join(neutral(line) for line in render(error).split("\n")))
    return error.exit_code


if __name__ == "__main__":
    main()

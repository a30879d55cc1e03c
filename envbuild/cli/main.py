"""The command: all verbs, and the one place where errors are reported."""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from envbuild import __version__
from envbuild.cli import (
    bench,
    build,
    cache,
    check,
    completion,
    doctor,
    edit,
    enter,
    explain,
    export,
    extend,
    fetch,
    forecast,
    import_file,
    init,
    inspect,
    kernel,
    launch,
    layer,
    lock,
    module,
    observe,
    plan,
    push,
    recipes,
    reproduce,
    sbom,
    schema,
    sign,
    site,
    status,
    test,
    vet,
    worker,
)
from envbuild.cli.groups import QUIET, VERBOSE, CommandInImage, Commands
from envbuild.cli.output import ask_for_json, prepare_streams, print_error, set_level
from envbuild.errors import EnvbuildError, MachineError, RequestError, from_os_error, is_user_error

# By purpose: name, its function or its own verbs, and the line in the list.
_COMMANDS: dict[str, list[tuple[str, Any, str]]] = {
    "Write": [
        ("init", init.command, "Begin a spec"),
        ("add", edit.add, "Add packages to a spec, and lock it"),
        ("remove", edit.remove, "Remove packages from a spec, and lock it"),
        ("import", import_file.command, "Propose a spec for a Dockerfile or conda environment"),
        ("recipes", recipes.app, "List, check and write recipes"),
        ("schema", schema.command, "Print the JSON Schema of a kind of file, for editors"),
    ],
    "Build": [
        ("plan", plan.command, "Show what a build would fetch and do, and why"),
        ("lock", lock.command, "Choose the exact version of each package"),
        ("fetch", fetch.command, "Keep the locked files, for machines without a network"),
        ("build", build.command, "Build the image of a spec"),
        ("extend", extend.command, "Add packages, files and variables to a finished image"),
        ("layer", layer.app, "Carry finished layers to a machine that cannot build"),
    ],
    "Test": [
        ("explain", explain.command, "Show which rules hold for a stack, and why"),
        ("check", check.command, "Find what an image lacks, without running it"),
        ("test", test.command, "Run an image's jobs across ranks and judge them"),
        ("bench", bench.command, "Measure how fast an image's ranks are"),
        ("vet", vet.command, "Find slow and broken nodes"),
        ("status", status.command, "Show which images passed their test on this host"),
        ("reproduce", reproduce.command, "Build an image again and compare the bytes"),
    ],
    "Use": [
        ("module", module.app, "Put images behind `module load`"),
        ("kernel", kernel.app, "Run Jupyter kernels in images"),
        ("shell", enter.shell_command, "Open a shell in an image"),
        ("exec", enter.exec_command, "Run a program in an image"),
        ("launch", launch.command, "Start a program on the ranks of an image"),
        ("observe", observe.command, "Show what recorded ranks used, and what slows them"),
        ("export", export.command, "Write an image for other container runtimes"),
        ("push", push.push, "Push an image to a registry, by its layers"),
        ("pull", push.pull, "Pull an image from a registry, bit for bit"),
        ("sign", sign.sign, "Sign an image and its verdict"),
        ("verify", sign.verify, "Verify who signed an image, and what that covers"),
        ("inspect", inspect.command, "Show what an image is made of"),
        ("sbom", sbom.command, "Show the bill of materials of an image"),
    ],
    "Maintain": [
        ("doctor", doctor.command, "Find what this machine lacks, and the fixes"),
        ("forecast", forecast.command, "Show which images a change of the machine breaks"),
        ("site", site.app, "Describe a machine, so that images fit it"),
        ("cache", cache.app, "List, check and prune the store"),
        ("completion", completion.command, "Make the shell complete the words of envbuild"),
    ],
}


def _version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"envbuild {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(  # its callback does the work
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
    quiet: bool = QUIET,
    verbose: bool = VERBOSE,
) -> None:
    pass


# The jobs of a submission run it, and no one types it.
_HIDDEN = {"worker": worker.command}


def application(verb: str = "") -> typer.Typer:
    """Return the command with all its verbs, or with one: typer reads the options of each at every start."""
    program = typer.Typer(
        name="envbuild",
        cls=Commands,
        help="ML framework images for supercomputers: built from ten lines of YAML, proven across ranks.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        # `envbuild completion` prints the script that typer's options would write into users' files.
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for panel, rows in _COMMANDS.items():
        for name, command, line in rows:
            if verb not in ("", name):
                continue
            if isinstance(command, typer.Typer):
                program.add_typer(command, name=name, short_help=line, rich_help_panel=panel)
            else:
                # typer's own, or one whose last words are a program and its arguments.
                command_class = CommandInImage if name in ("exec", "launch") else None
                add = program.command(name, cls=command_class, short_help=line, rich_help_panel=panel)
                add(command)
    for name, command in _HIDDEN.items():
        if verb in ("", name):
            program.command(name, hidden=True)(command)
    program.callback()(_options)
    return program


app = application()


# Options of `lock` and `plan` with a value of their own.
_VALUES = (
    "--export",
    "--to",
    "--from",
    "--store",
    "--recipes",
    "--site",
    "--compression",
    "--upstream",
    "--architecture",
)


def expand_upgrade(arguments: Sequence[str]) -> list[str]:
    """Rewrite ``--upgrade [NAME…]`` of `lock` and `plan` as ``--upgrade=NAME`` for each name; ``=*`` for all.

    Names end at the next option or at the first spec: a word with a YAML suffix, a file, or a directory that
    is written with a slash. If no spec is named elsewhere, the last one may be a directory without a slash.
    """
    words = list(arguments)
    own = list(itertools.takewhile(lambda word: word != "--", words))
    # Options of the command itself stand before its verb: `-q`, `-v`.
    verb = next((word for word in own if not word.startswith("-")), "")
    if verb not in ("lock", "plan") or "--upgrade" not in own:
        return words
    at = words.index("--upgrade")
    names = list(itertools.takewhile(_is_name, own[at + 1 :]))
    others = [*words[words.index(verb) : at], *words[at + 1 + len(names) :]]
    pairs = itertools.pairwise(others)
    has_spec = any(not word.startswith("-") and before not in _VALUES for before, word in pairs)
    # A directory of a package's name, as of its sources, must not stand for specs if there are others.
    if names and not has_spec and Path(names[-1]).is_dir():
        names.pop()
    return [*words[:at], *(f"--upgrade={name}" for name in names or ["*"]), *words[at + 1 + len(names) :]]


def _is_name(word: str) -> bool:
    return not word.startswith("-") and not _is_spec(word)


def _is_spec(word: str) -> bool:
    """Return whether a word names a spec, or a directory that no package is called."""
    path = Path(word)
    is_path = word in (".", "..") or "/" in word
    return word.endswith((".yaml", ".yml")) or path.is_file() or (is_path and path.is_dir())


# Number of new objects between two runs of the garbage collector.
_YOUNG = 100_000
# Not higher: programs older than Linux 5.9 close every possible descriptor when they start others.
_OPEN_FILES = 8192
# Verbs whose next run continues with the finished parts.
_RESUMED = ("build", "lock", "fetch")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code: 0, 2, 3, 4, 5, 130, or 141 if its output is no longer read."""
    prepare_streams()
    set_level(0)
    ask_for_json(False)
    completion.prepare_completion()
    # At the default threshold, garbage collection takes a tenth of a command's time.
    gc.set_threshold(_YOUNG)
    # Nor does the exit look for any: that takes another.
    atexit.register(gc.freeze)
    _allow_open_files()
    try:
        code = _run(expand_upgrade(sys.argv[1:] if arguments is None else arguments))
    except (BrokenPipeError, SystemExit) as ended:
        if isinstance(ended, SystemExit) and not isinstance(ended.__context__, BrokenPipeError):
            raise
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        code = 141  # SIGPIPE, as shells report it; never 0: a test may have failed
    sys.exit(code)


def _allow_open_files() -> None:
    """Raise the limit on open files: each layer of an image needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _run(words: Sequence[str]) -> int:
    try:
        _check_working_directory(words)
        # Commands that submit themselves as a job take the words from their context.
        code = _application_for(words)(
            args=words, standalone_mode=False, prog_name="envbuild", obj=tuple(words)
        )
        if code == 130:
            raise KeyboardInterrupt  # typer returns a code instead
    except EnvbuildError as error:
        return _report(error)
    except (KeyboardInterrupt, typer.Abort):
        resumed = next((word for word in words if not word.startswith("-")), "") in _RESUMED
        outcome = "unfinished results were not written"
        if resumed:
            outcome = "finished parts are kept, and the next run continues from there"
        sys.stderr.write(f"interrupted: {outcome}\n")
        return 130
    except OSError as error:
        if not is_user_error(error):
            raise
        return _report(from_os_error(error))
    except Exception as error:
        if error.__class__.__module__.startswith(("click", "typer")) and hasattr(error, "show"):
            return _report_usage(error)
        raise
    return code if isinstance(code, int) else 0


def _application_for(words: Sequence[str]) -> typer.Typer:
    """Return the command with the verb of the words; with all verbs for help, completion and other words."""
    verb = next((word for word in words if not word.startswith("-")), "")
    is_known = verb in _HIDDEN or any(verb == name for rows in _COMMANDS.values() for name, _, _ in rows)
    return application(verb) if is_known and completion.VARIABLE not in os.environ else app


def _check_working_directory(words: Sequence[str]) -> None:
    """Reject a removed working directory: relative paths do not work in it."""
    own = set(itertools.takewhile(lambda word: word != "--", words))
    if completion.VARIABLE in os.environ or {"-h", "--help"} & own or words[:1] in ([], ["--version"]):
        return
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise MachineError(
            "the working directory no longer exists",
            hint="change to another one (`cd`), and run it again",
        ) from error


def _report_usage(error: Any) -> int:  # noqa: ANN401  # typer's own, of a private module
    if error.__class__.__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    # In the form of all errors, without typer's internals ("Value error, …").
    problem = error.format_message().replace(": Value error, ", ": ").rstrip(".")
    command = error.ctx.command_path if getattr(error, "ctx", None) else "envbuild"
    hint = f"`{command} --help` shows what there is"
    if problem.endswith("is not readable"):
        hint = "check its permissions with `ls -l`"
    elif problem.startswith(("No such command 'upgrade'", "No such command 'update'")):
        hint = "`envbuild lock SPEC.yaml --upgrade` takes newer packages"
    elif problem.startswith("No such option") and command.endswith((" exec", " launch")):
        hint = f"options of a program stand behind it: `{command} IMAGE.sif PROGRAM …`"
    elif problem.startswith("Got unexpected extra argument") and command.endswith(" shell"):
        hint = "`envbuild exec IMAGE.sif COMMAND` runs a command, also `bash -c …`"
    return _report(RequestError(problem, hint=hint))


def _report(error: EnvbuildError) -> int:
    print_error(error)
    return error.exit_code


if __name__ == "__main__":
    main()

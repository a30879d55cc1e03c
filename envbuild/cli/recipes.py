"""`envbuild recipes`: the recipes that a spec can name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import completion, options
from envbuild.cli.output import columns, named_lines, print_data, print_json, print_messages
from envbuild.cli.progress import session
from envbuild.errors import pluralize, raise_all
from envbuild.quoting import shell_path

if TYPE_CHECKING:
    from envbuild.jobs.judge import Job
    from envbuild.spec.recipe import BaseRequirement, Recipe
    from envbuild.spec.recipe_rules import RecipeSource
    from envbuild.workflows.recipe_check import CheckedRecipe

app = typer.Typer(help="The recipes that a spec can name.", no_args_is_help=True, rich_markup_mode=None)


@app.command("ls")
def ls(recipes: options.Recipes = None, json: options.Json = False) -> None:
    """List all recipes: name, kind, preferred version, summary."""
    listing = workflows.recipes.list_recipes(recipes or ())
    if json:
        print_json([_summary(recipe) for recipe in listing.recipes])
    elif listing.recipes:
        print_data(columns([_row(recipe) for recipe in listing.recipes]))
    # After listing the readable ones.
    raise_all(listing.errors)


def _summary(recipe: Recipe) -> dict[str, object]:
    return {
        "name": recipe.name,
        "kind": recipe.kind,
        "version": recipe.versions[0],
        "summary": recipe.summary,
        "frozen": bool(recipe.frozen),
    }


def _row(recipe: Recipe) -> tuple[str, ...]:
    frozen = " (frozen)" if recipe.frozen else ""
    return recipe.name, recipe.kind, recipe.versions[0], recipe.summary + frozen


@app.command("show")
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The recipe's name.", autocompletion=completion.recipes)
    ],
    recipes: options.Recipes = None,
    json: options.Json = False,
) -> None:
    """Show a recipe's versions, variants, needs, jobs, commands and variables."""
    source = workflows.recipes.show_recipe(name, recipes or ())
    if json:
        print_json(_recipe_data(source))
    else:
        print_data(named_lines(_rows(source)))


def _recipe_data(source: RecipeSource) -> dict[str, object]:
    recipe = source.loaded.value
    return {
        **recipe.model_dump(mode="json", exclude={"schema_", "requires"}),
        "requires": [str(choice) for choice in recipe.requires],
        "jobs": [asdict(job) for job in source.jobs],
        "path": source.loaded.path,
    }


def _rows(source: RecipeSource) -> Iterator[tuple[str, str]]:
    recipe = source.loaded.value
    yield "recipe", recipe.name
    yield "kind", recipe.kind
    yield "summary", recipe.summary
    yield "homepage", recipe.homepage
    yield "frozen", recipe.frozen
    yield "file", str(source.loaded.path)
    yield "versions", workflows.recipes.newest_first(recipe.versions)
    for name, variant in recipe.variants.items():
        origins = f" (from {', '.join((*variant.origins, 'pypi'))})" if variant.origins else ""
        over = f", over {', '.join(variant.backends)}" if variant.backends else ""
        installed = ", ".join(variant.requirements) or "nothing to install"
        only = f" ({workflows.recipes.newest_first(variant.versions)} only)" if variant.versions else ""
        untried = f"; untried: {variant.untried}" if variant.untried else ""
        yield "variant", f"{name}: {installed}{origins}{over}{only}{untried}"
    yield "owns", ", ".join(recipe.owns)
    yield "companions", ", ".join(recipe.companions)
    yield "requires", ", ".join(map(str, recipe.requires))
    yield "one of", ", ".join(recipe.requires_one_of)
    yield "needs", "an MPI in the spec" if recipe.needs_mpi else ""
    yield "base", _base(recipe.base)
    if recipe.source is not None:
        against = f", against {', '.join(recipe.source.against)}" if recipe.source.against else ""
        yield "built", f"{recipe.source.distribution} from its source{against}"
    yield "system", ", ".join(recipe.system) + (", seen by Python" if recipe.debian_python else "")
    yield "python", ", ".join(recipe.python)
    for job in source.jobs:
        carried = f" ({', '.join(job.variants)})" if job.variants else ""
        by = f", started by {job.launcher}" if job.launcher != "mpiexec" else ""
        yield "job", f"{job.id}: {job.title}{by}{carried}"
        for kind, values in _oracles(job):
            yield "", f"  {kind}: {values}"
    yield "commands", ", ".join(recipe.commands)
    for link, target in recipe.links.items():
        yield "link", f"{link} -> {target}"
    yield "lacks", ", ".join(recipe.lacks)
    if recipe.supplied is not None:
        for part, names in recipe.supplied:
            yield "from site", f"{part}: {', '.join(names)}" if names else ""
    for variable, value in recipe.environment.items():
        sign, text = ("=", value) if isinstance(value, str) else ("+=", value.prepend)
        yield "environment", f"{variable} {sign} {text}"
    for other, settings in recipe.environment_with.items():
        for variable, value in settings.items():
            yield "environment", f"{variable} = {value}, with {other}"


def _oracles(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the kinds of a job's oracles, each with its values."""
    if job.expect:
        yield "exact", ", ".join(f"{name} = {value}" for name, value in job.expect.items())
    if job.same_on_all_ranks:
        yield "equal on all ranks", ", ".join(job.same_on_all_ranks)
    if job.compare_with_single:
        limits = (f"{name} (<= {limit:.0e})" for name, limit in job.compare_with_single.items())
        yield "as on one rank", ", ".join(limits)
    if job.compare_with_reported:
        pairs = job.compare_with_reported.items()
        limits = (
            f"{name} as {other} (<= {limit:.0e})" for name, others in pairs for other, limit in others.items()
        )
        yield "on each rank", ", ".join(limits)
    if job.says:
        yield "each rank says", ", ".join(job.says)
    if job.measures:
        yield "measured", ", ".join(f"{name} ({value.unit})" for name, value in job.measures.items())


def _base(needs: BaseRequirement) -> str:
    parts = (
        f"Python {needs.python}" if needs.python else "",
        f"suite {' or '.join(needs.suites)}" if needs.suites else "",
        f"glibc >={needs.glibc}" if needs.glibc else "",
    )
    return ", ".join(part for part in parts if part)


@app.command("check")
def check(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|DIR",
            help="The recipe's name, or its directory.",
            autocompletion=completion.recipes,
        ),
    ],
    image: Annotated[
        Path | None,
        typer.Option(
            "--image",
            metavar="IMAGE",
            help="Run its negative controls in this image, which was built with it.",
        ),
    ] = None,
    recipes: options.Recipes = None,
    apptainer: options.Apptainer = None,
    json: options.Json = False,
) -> None:
    """Check a recipe against the rules: owners, oracles, controls, README, and what it requires.

    Exit code 0 if it follows the rules and every control fails as it must, 2 if
    it breaks a rule (all are reported) or the image was not built with this
    recipe, 4 if a control passes, and 5 if nothing here can run the image.
    """
    with session(json=json, apptainer=apptainer, recipes=recipes) as settings:
        image = workflows.images.image_file(image, settings) if image is not None else None
        checked = workflows.recipe_check.check_recipe(name, settings, path=image)
    if json:
        print_json(
            {
                "recipe": checked.recipe.name,
                "controls": checked.controls,
                "ran": checked.ran,
                "left_out": checked.left_out,
                "passed": checked.passed,
            }
        )
    else:
        print_data(format_checked(checked))
    raise typer.Exit(0 if checked.passed else 4)


def format_checked(checked: CheckedRecipe) -> str:
    """Return a summary, and a line for each control."""
    recipe = checked.recipe
    counts = f"{pluralize(checked.jobs, 'job')}, {pluralize(checked.controls, 'control')}"
    lines = [f"{recipe.name}: keeps the rules; {counts}"]
    for name, missed in checked.ran.items():
        lines.append(f"{'MISS' if missed else 'SEEN'}  {name}" + (f"  ({missed[0]})" if missed else ""))
    lines += [f"SKIP  {name}  (the image lacks what it needs)" for name in checked.left_out]
    return "\n".join(lines)


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The recipe's name.")],
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The version to begin with.")],
    distribution: Annotated[
        str | None,
        typer.Option(
            "--distribution",
            metavar="NAME",
            help="The distribution that it installs [the recipe's name].",
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "--import", metavar="MODULE", help="The module that must import [the distribution's name]."
        ),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where recipes lie; made if it is not there.")
    ] = Path("recipes"),
    offline: options.Offline = False,
) -> None:
    """Write the skeleton of a framework's recipe, with a mini job, its controls and a spec to try it.

    It asks the package index for the release, and bounds the Python to those
    for which there is a wheel.
    """
    written = workflows.recipe_new.new_recipe(
        name, version, directory, distribution=distribution, module=module, ask_index=not offline
    )
    spec, image, recipes = (
        shell_path(written.directory / "example.yaml"),
        shell_path(written.directory / "example.sif"),
        shell_path(directory),
    )
    found = [f"{written.release}: {written.found}"] if written.found else []
    steps = f"""\
written: {written.directory}/recipe.yaml, tutorial.py, verify/sums.py, README.md, example.yaml
next:
  envbuild build {spec} --recipes {recipes}
  envbuild test {image} --ranks 2
  write in verify/sums.py what it does across ranks, and README.md
  envbuild recipes check {name} --recipes {recipes} --image {image}"""
    print_messages("\n".join([*found, steps]))

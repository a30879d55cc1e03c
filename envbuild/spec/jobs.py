"""What may be wrong with a recipe's mini jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from envbuild.errors import EnvbuildError, RequestError, did_you_mean
from envbuild.spec.load import Loaded
from envbuild.spec.recipe import Recipe

# The test sets them for every rank, whatever a job says.
_OURS = ("OMP_NUM_THREADS", "ENVBUILD_")


def job_mistakes(loaded: Loaded[Recipe], files: Mapping[str, bytes]) -> Iterator[EnvbuildError]:
    """Tell mistakes in a recipe's `verify`.

    Parameters
    ----------
    files : mapping
        Relative path → content of the recipe's files.
    """
    recipe = loaded.value
    there = sorted(path.removeprefix("verify/") for path in files if path.startswith("verify/"))
    seen: set[str] = set()
    for index, job in enumerate(recipe.verify):
        if job.job not in there:
            hint = did_you_mean(job.job, there) or f"there are: {', '.join(there) or 'none'}"
            problem = f"there is no file `verify/{job.job}` in the recipe"
            yield RequestError(problem, at=loaded.at("verify", index, "job"), hint=hint)
        for name in job.environment:
            if name.startswith(_OURS):
                at = loaded.at("verify", index, "environment", name)
                yield RequestError(f"`{name}` is set by the test itself", at=at, hint="leave it out")
        for place, name in enumerate(job.variants):
            if name not in recipe.variants:
                at = loaded.at("verify", index, "variants", place)
                meant = (
                    did_you_mean(name, list(recipe.variants))
                    or f"there are: {', '.join(recipe.variants) or 'none'}"
                )
                yield RequestError(f"the recipe has no variant `{name}`", at=at, hint=meant)
        if job.id in seen:
            problem = f"the check `{job.id}` is there twice"
            yield RequestError(
                problem, at=loaded.at("verify", index, "id"), hint="give each job an `id` of its own"
            )
        seen.add(job.id)

"""Missing layers of many plans are divided among tasks: each belongs to one, after its inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from envbuild.plan.model import BuildPlan, InlineFile
from envbuild.plan.tasks import Division, divide
from tests.unit.plan.plans import LOCK, MPICH, keys, plan, replaced, resolved, source_plan

EVERYTHING = source_plan()
SMALLER = plan(resolved(MPICH), python=LOCK.python[:2])
OTHER_NAME = plan(story=(InlineFile(path="/.envbuild/manifest.json", content="e319"),))
NEWER_NUMPY = plan(
    python=replaced(LOCK.python, "numpy", version="2.4.0", file="numpy-2.4.0-py3-none-any.whl")
)
PLANS = (EVERYTHING, SMALLER, OTHER_NAME, NEWER_NUMPY)


def all_keys(plans: Sequence[BuildPlan]) -> set[str]:
    return {layer.key for plan in plans for layer in plan.layers}


def owned(division: Division) -> list[str]:
    """Return the keys that tasks and images own, in the order in which they are built."""
    of_tasks = [layer.key for level in division.levels for task in level for layer in task.image_layers]
    return [*of_tasks, *(key for own in division.own for key in own)]


@pytest.mark.parametrize("has_base", [False, True])
@pytest.mark.parametrize("wheels_bytes", [1, 2, 1000])
def test_each_missing_layer_belongs_to_one_task_after_its_inputs(has_base: bool, wheels_bytes: int) -> None:
    missing = all_keys(PLANS) - ({keys(EVERYTHING)["base"]} if has_base else set())
    sizes = {pin.sha256: 1 for pin in LOCK.python}
    division = divide(PLANS, missing, sizes, wheels_bytes=wheels_bytes)
    assert Counter(owned(division)) == Counter(missing)
    done = all_keys(PLANS) - missing
    for level in division.levels:
        for task in level:
            # What a worker reads: keys that follow from their steps, and all inputs.
            assert BuildPlan.from_json(task.to_json()) == task
            below = {layer.key for layer in task.layers} - {layer.key for layer in task.image_layers}
            assert below <= done
        done |= {layer.key for task in level for layer in task.image_layers}
    for plan_, own in zip(PLANS, division.own, strict=True):
        assert all_keys([plan_]) <= done | set(own)


def test_files_of_one_image_alone_are_written_with_it() -> None:
    division = divide(PLANS, all_keys(PLANS), {})
    assert division.own == ((), (), (keys(OTHER_NAME)["metadata"],), ())


def test_wheels_of_one_base_share_tasks_up_to_a_size() -> None:
    sizes = {pin.sha256: 10 for pin in LOCK.python}
    (base, *_), (*tasks,) = divide([plan()], all_keys([plan()]), sizes, wheels_bytes=20).levels
    assert base.image == ("base",)
    assert sorted(len(task.image) for task in tasks if task.image[0].startswith("wheel:")) == [1, 2, 2]
    # A wheel that alone is larger has a task.
    huge = divide([plan()], all_keys([plan()]), sizes, wheels_bytes=5)
    assert sum(task.image[0].startswith("wheel:") for task in huge.levels[1]) == 5


def test_two_versions_of_a_package_are_in_different_tasks() -> None:
    division = divide(PLANS, all_keys(PLANS), {})
    numpy = [task for level in division.levels for task in level if "wheel:numpy" in task.image]
    assert len(numpy) == 2


def test_nothing_is_missing() -> None:
    assert divide(PLANS, set(), {}) == Division(levels=(), own=((),) * len(PLANS))

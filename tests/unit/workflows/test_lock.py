"""What `plan` and `build` say of a new lock."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from envbuild.errors import ManyErrors, RequestError
from envbuild.events import Event, Warned
from envbuild.inputs.spec import read_spec
from envbuild.resolve.uv_errors import ResolutionError
from envbuild.rules.facts import Fact
from envbuild.rules.from_lock import facts_of_lock
from envbuild.rules.rulebook import judge
from envbuild.store.store import Store
from envbuild.workflows import lock
from envbuild.workflows.lock import Locked, lock_notes, lock_spec, report_choices, write_pylock
from envbuild.workflows.settings import Settings
from tests.support.resolved_specs import bare_lock, recipe_pin, resolved, wheel


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        (("a", "b", "c"), ["lock: a", "lock: b", "lock: c"]),
        (("a", "b", "c", "d"), ["lock: a", "lock: b", "lock: 2 more changes (`-v` lists them)"]),
    ],
)
def test_of_many_changes_the_first_are_shown(changes: tuple[str, ...], shown: list[str]) -> None:
    locked = Locked(resolved=resolved(), lock=bare_lock(), path=Path("demo.lock.yaml"), changes=changes)
    notes = lock_notes(locked)
    assert [note.text for note in notes if not note.detail] == shown
    assert {f"lock: {change}" for change in changes} <= {note.text for note in notes}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "frameworks: [jax]\n",
            [
                "without an MPI, `test` runs jax.distributed, jax.train only under srun;"
                " `mpi: mpich` in the spec adds one"
            ],
        ),
        ("frameworks: [jax]\nmpi: mpich\n", []),
        # torchrun starts them.
        ("frameworks: [pytorch]\n", []),
        ("packages: {python: [six]}\n", []),
    ],
)
def test_jobs_that_need_an_mpi_are_named_if_there_is_none(
    tmp_path: Path, lines: str, said: list[str]
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(f'name: demo\nversion: "1"\n{lines}')
    locked = Locked(resolved=read_spec(spec), lock=bare_lock(), path=tmp_path / "spec.lock.yaml")
    assert [note.text for note in lock_notes(locked)] == said


def test_what_is_frozen_is_a_warning(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text('name: demo\nversion: "1"\nmpi: openmpi-debian\nframeworks: [cntk]\n')
    events: list[Event] = []
    locked = Locked(resolved=read_spec(spec), lock=bare_lock(), path=tmp_path / "spec.lock.yaml")
    report_choices(locked, events.append)
    warnings = [event.text for event in events if isinstance(event, Warned)]
    assert [text.partition(":")[0] for text in warnings] == ["debian-11-python2 is frozen", "cntk is frozen"]


def test_names_without_wheels_that_debian_has_get_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(name: str) -> ResolutionError:
        return ResolutionError(
            f"no wheel of {name}", at=None, hint="drop it", names=[name], unavailable=[name], failures=[]
        )

    def refuse(*_: object, **__: object) -> NoReturn:
        # A dependency may have that name, too.
        raise ManyErrors([unavailable("ffmpeg"), unavailable("nosuch"), unavailable("git")])

    asked: list[str] = []

    def known(_: object, names: Iterable[str], __: object) -> list[str]:
        asked.extend(names)
        return ["ffmpeg"]

    monkeypatch.setattr(lock, "make_lock", refuse)
    monkeypatch.setattr(lock, "debian_packages", known)
    spec = tmp_path / "spec.yaml"
    spec.write_text('name: demo\nversion: "1"\npackages: {python: [ffmpeg, nosuch]}\n')
    with pytest.raises(ManyErrors) as caught:
        lock_spec(spec, Settings.of(store=tmp_path / "store"))
    assert asked == ["ffmpeg", "nosuch"]
    assert [error.hint for error in caught.value.each()] == [
        "Debian has a package `ffmpeg`: name it under `packages.system`"
        f" (`envbuild add {spec} ffmpeg --system`); drop it",
        "drop it",
        "drop it",
    ]


@pytest.mark.parametrize(
    ("accelerator", "expected"), [("cuda", "cuda-13.0"), ("cuda@12.9", "cuda-12.9"), ("cpu", "cpu")]
)
def test_a_target_is_judged_by_its_own_release_of_the_accelerator(
    tmp_path: Path, accelerator: str, expected: str
) -> None:
    # A driver of this machine says nothing of the machines that the target is for.
    site = tmp_path / "site.yaml"
    site.write_text('name: here\ngpus: {vendor: nvidia, driver: "535.104.05"}\n')
    spec = tmp_path / "spec.yaml"
    spec.write_text(f'name: demo\nversion: "1"\nframeworks: [jax]\naccelerator: {accelerator}\n')
    target = bare_lock(architecture="arm64", recipes=(recipe_pin("jax", "1", variant="cuda-13.0"),))
    there = read_spec(spec, site=site, target=target)
    assert (there.architecture, there.recipes[0].variant_name) == ("arm64", expected)
    here = read_spec(spec, site=site)
    assert here.recipes[0].variant_name == ("cpu" if accelerator == "cpu" else "cuda-12.9")


def test_a_directory_where_no_lock_can_be_written_is_reported_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text('name: demo\nversion: "1"\n')

    def resolve(*_: object, **__: object) -> NoReturn:
        raise AssertionError("it resolves packages")

    monkeypatch.setattr(lock, "resolve_context", resolve)
    # Root may write everywhere.
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, *words: path != tmp_path and may(path, *words))
    with pytest.raises(RequestError) as caught:
        lock_spec(spec, Settings.of(store=tmp_path / "store"))
    assert caught.value.problem == f"nothing can be written in `{tmp_path}`"
    assert caught.value.hint == "a lock lies beside its spec: copy `spec.yaml` into a directory of yours"
    # A plan writes none.
    with pytest.raises(AssertionError, match="it resolves packages"):
        lock_spec(spec, Settings.of(store=tmp_path / "store"), write=False)


def test_a_pylock_is_not_written_into_any_store(tmp_path: Path) -> None:
    locked = Locked(resolved=resolved(), lock=bare_lock(), path=tmp_path / "spec.lock.yaml")
    named, other = Store(tmp_path / "named"), Store(tmp_path / "other")
    for store in (named, other):
        store.directory("files")
        with pytest.raises(RequestError, match="is inside the store"):
            write_pylock(locked, store.path / "files", named.path)
    (tmp_path / "kept").mkdir()
    assert write_pylock(locked, tmp_path / "kept", named.path).is_file()


def test_a_release_of_cuda_says_which_driver_it_needs(tmp_path: Path) -> None:
    pin = wheel("nvidia-cuda-runtime", "13.2.57", layer="framework:pytorch")
    lock = replace(bare_lock(), python=(pin,))
    locked = Locked(resolved=resolved(), lock=lock, path=tmp_path / "demo.lock.yaml")
    (note,) = lock_notes(locked)
    assert note.text.startswith("accelerator: CUDA 13.2 needs a driver of at least 580; `nvidia-smi` ")
    # A rule compares it with the driver of a site.
    site = {"gpus.vendor": Fact("nvidia", "site:x"), "driver.version": Fact("580.95", "site:x")}
    judged = judge({**facts_of_lock(lock), **site})
    assert lock_notes(replace(locked, rule_results=judged)) == []

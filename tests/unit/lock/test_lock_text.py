from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import EnvbuildError, RequestError, render
from envbuild.lock.model import RootPin, ToolPin
from envbuild.lock.text import canonical, digest, dump, load
from tests.support.asking import build_deb, deb, wheel, whole_lock

PATH = Path("demo.lock.yaml")


def refused(text: str | bytes) -> str:
    with pytest.raises(EnvbuildError) as caught:
        load(text if isinstance(text, bytes) else text.encode(), PATH)
    return render(caught.value)


def test_a_lock_comes_back_as_it_was_written() -> None:
    lock = whole_lock()
    again = load(dump(lock).encode(), PATH)
    assert again == canonical(lock)
    assert dump(again) == dump(lock)


def test_what_builds_need_is_written_only_where_something_is_built() -> None:
    assert "build_" not in dump(whole_lock())
    compiler = build_deb(deb("g++", "4:12.2.0-3"), "framework:horovod")
    tools = [
        wheel("setuptools", "81.0.0", layer="framework:horovod"),
        wheel("wheel", layer="framework:horovod", requires=["setuptools"]),
        wheel("setuptools", "84.0.0", layer="framework:other"),
    ]
    lock = replace(whole_lock(), build_debs=(compiler,), build_python=tuple(tools))
    assert load(dump(lock).encode(), PATH) == canonical(lock)
    assert digest(lock) != digest(whole_lock())


def test_pins_are_those_of_every_table() -> None:
    compiler = build_deb(deb("g++"), "framework:horovod")
    root = RootPin(kind="tar", file="rocky.tar", size_bytes=1, sha256="0" * 64)
    tools = (wheel("setuptools", layer="framework:horovod"), wheel("setuptools", layer="framework:other"))
    lock = replace(whole_lock(), base_root=(root,), build_debs=(compiler,), build_python=tools)
    assert [pin.name for pin in lock.pins] == [
        *("rocky.tar", "python3", "libc6", "git", "scipy", "numpy", "mpich", "mpi4py", "torch", "g++"),
        *("setuptools", "setuptools"),
    ]


@pytest.mark.parametrize(
    ("twice", "said"),
    [
        (True, "`setuptools for framework:horovod` is pinned twice in build_python"),
        (False, "`wheel` requires `setuptools`, which is not pinned"),
    ],
)
def test_what_builds_need_is_checked_build_by_build(twice: bool, said: str) -> None:
    other = "framework:horovod" if twice else "framework:other"
    tools = [
        wheel("setuptools", "81.0.0", layer=other),
        wheel("setuptools", "82.0.0", layer="framework:horovod" if twice else "framework:more"),
        wheel("wheel", layer="framework:horovod", requires=["setuptools"]),
    ]
    assert said in refused(dump(replace(whole_lock(), build_python=tuple(tools))))


def test_the_order_in_which_things_were_found_leaves_no_trace() -> None:
    lock = whole_lock()
    other = replace(
        lock,
        python=lock.python[::-1],
        base_debs=lock.base_debs[::-1],
        recipes=lock.recipes[::-1],
        requests=lock.requests[::-1],
    )
    assert dump(other) == dump(lock)
    assert digest(other) == digest(lock)


def test_every_pin_is_one_line() -> None:
    before = dump(whole_lock()).splitlines()
    lock = whole_lock()
    after = dump(replace(lock, python=(*lock.python, wheel("tabulate")))).splitlines()
    assert [line for line in after if line not in before] == [
        line for line in after if line.startswith('- {name: "tabulate"')
    ]
    assert len(after) == len(before) + 1


def test_every_field_is_in_the_digest() -> None:
    lock = whole_lock()
    changed = [
        replace(lock, version="2"),
        replace(lock, base=replace(lock.base, glibc="2.37")),
        replace(lock, python=(replace(lock.python[0], requires=()), *lock.python[1:])),
        replace(lock, tools=()),
        replace(lock, system_debs=(replace(lock.system_debs[0], size_bytes=11),)),
    ]
    assert len({digest(lock), *map(digest, changed)}) == len(changed) + 1


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_whatever_a_tool_says_of_itself_is_kept_or_refused(version: str) -> None:
    lock = replace(whole_lock(), tools=(ToolPin(name="uv", version=version, digest="sha256:" + "f" * 64),))
    try:
        assert load(dump(lock).encode(), PATH).tools[0].version == version
    except RequestError as error:
        assert "tools[0].version" in error.problem  # noqa: PT017 - either is fine, nothing else is


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("format: 1", "format: 2", "lock format 2 is not the one that this version reads (1)"),
        ("format: 1", 'format: "1"', "`format` is not a whole number"),
        ('name: "demo"\n', "", "the lock file lacks `name`"),
        ('name: "demo"\n', 'name: "demo"\nnmae: 1\n', "the lock file has an unknown key `nmae`"),
        ('name: "demo"', "name: [demo]", "`name` is not a word"),
        ("tools:\n", "tools: 3\n", "this is not YAML"),
        ("requests:\n-", "requests:\n- 7\n-", "`requests[0]` is not a text in quotes"),
        ('- "scipy>=1.11"', '- "scipy @ https://example.org/x"', "is not a Python requirement without an"),
        ('- "git"', '- "Git"', "`system_requests[0]` is not a Debian package name"),
        ("e" * 64, "e" * 63, "is not 64 hexadecimal digits"),
        ("sha256:" + "1" * 64, "sha256:" + "1" * 65, "`recipes[0].digest` is not `sha256:` and 64"),
        ("size_bytes: 10", "size_bytes: -1", "is not a whole number between 0 and 1099511627776"),
        ("size_bytes: 10", "size_bytes: 1e9", "is not a whole number"),
        ("size_bytes: 10", "size_bytes: 99999999999999999999", "is not a whole number"),
        ("scipy-1.17.1-py3-none-any.whl", "../scipy-1.17.1-py3-none-any.whl", "`python[3].file` is not"),
        ("scipy-1.17.1-py3-none-any.whl", "a/scipy-1.17.1-py3-none-any.whl", "`python[3].file` is not"),
        ("scipy-1.17.1-py3", "scipy-1.17.2-py3", "is not a wheel or source archive of scip"),
        ("scipy-1.17.1-py3", "numpy-1.17.1-py3", "is not a wheel or source archive of scip"),
        ("pool/main/g/git/", "pool/../g/git/", "is not a relative path of a .deb file"),
        ("pool/main/g/git/", "/pool/main/g/git/", "is not a relative path of a .deb file"),
        ("pool/main/g/git/", "pool//g/git/", "is not a relative path of a .deb file"),
        ('"1:2.39.5-0+deb12u3"', '"1:2.39.5 evil"', "is not a Debian version"),
        ("git_2.39.5-0", "git_2.39.4-0", "is not of version 1:2.39.5-0+deb12u3 of git"),
        ('"1:2.39.5-0+deb12u3"', '"1:2.39.6-0+deb12u3"', "is not of version 1:2.39.6-0+deb12u3 of git"),
        ("git_2.39.5-0", "git_2%3a2.39.5-0", "is not of version 1:2.39.5-0+deb12u3 of git"),
        ('version: "1.17.1"', 'version: "1.17.2"', "is not a wheel or source archive of scipy 1.17.2"),
        ('version: "1.17.1"', 'version: "one"', "is not a Python version"),
        ('name: "scipy"', 'name: "SciPy"', "`python[3].name` is not a canonical Python name"),
        ('layer: "mpi"', 'layer: "/etc"', "is not the name of a layer"),
        ('requires: ["numpy"]', 'requires: ["nunpy"]', "`scipy` requires `nunpy`, which is not pinned"),
        ('- {name: "numpy"', '- {name: "numpy", nmae: 1', "`python[2]` has an unknown key `nmae`"),
        ('origin: "pytorch-cpu"', 'origin: "https://example.org"', "is not a logical origin"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(old: str, new: str, problem: str) -> None:
    text = dump(whole_lock())
    assert old in text
    message = refused(text.replace(old, new))
    assert problem in message
    assert "--> demo.lock.yaml" in message


@pytest.mark.parametrize(
    "file",
    ["git_1%3a2.39.5-0+deb12u3", "git_1:2.39.5-0+deb12u3", "git_2.39.5-0%2bdeb12u3", "git_latest", "git"],
)
def test_a_file_name_may_quote_the_epoch_or_leave_it_out_or_have_no_version(file: str) -> None:
    text = dump(whole_lock())
    name = "git_2.39.5-0+deb12u3_amd64.deb"
    assert name in text
    changed = load(text.replace(name, f"{file}_amd64.deb").encode(), PATH)
    assert changed.system_debs[0].file_name == f"{file}_amd64.deb"


def test_all_mistakes_are_told_at_once() -> None:
    text = dump(whole_lock()).replace("size_bytes: 10", "size_bytes: x").replace('"git"', '"?"')
    message = refused(text)
    assert message.count("error: ") == 10
    assert "demo.lock.yaml:26:" in message


def test_the_place_is_line_and_column() -> None:
    lines = dump(whole_lock()).splitlines()
    number = next(index for index, line in enumerate(lines) if line.startswith('- {name: "numpy"'))
    column = lines[number].index('"pypi"')
    lines[number] = lines[number].replace('"pypi"', '"?"')
    assert f"demo.lock.yaml:{number + 1}:{column + 1}" in refused("\n".join(lines))


@pytest.mark.parametrize("table", ["python", "base_debs", "recipes", "tools"])
def test_a_name_is_pinned_once(table: str) -> None:
    lock = whole_lock()
    pins = getattr(lock, table)
    twice: dict[str, Any] = {table: (*pins, pins[0])}
    message = refused(dump(replace(lock, **twice)))
    assert f"`{pins[0].name}` is pinned twice in" in message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "this is not a lock file: it is empty"),
        (b"[]", "the lock file is not a mapping"),
        (b"name: x\n", "it has no `format`"),
        (b"\xff\xfe", "this is not UTF-8 text: byte 0"),
        ("format: 1\n".encode("utf-16"), "this is not UTF-8 text"),
        (b"format: 1\nname: \x01\n", "it holds a character that may not stand in a text"),
        (b"format: &a 1\nname: *a\n", "it uses anchors or aliases"),
        (b"format: !!python/object/apply:os.system [x]\n", "it uses the tag"),
        (b"format: 1\nformat: 1\n", "the key `format` stands there twice"),
        (b"format: 1\n---\nformat: 1\n", "it holds more than one document"),
        (b"? [1]\n: 2\n", "a key is not a word"),
        (b"format: 1\nname: " + b"[" * 50_000, "it is nested too deeply"),
        (b"{" * 50_000, "it is nested too deeply"),
        (b"a: " + b"x" * (16 << 20), "it is larger than 16 MiB"),
        (b"format: 1\n\tname: x\n", "this is not YAML"),
    ],
)
def test_what_is_no_lock_file_is_refused(text: bytes, problem: str) -> None:
    message = refused(text)
    assert problem in message
    assert message.endswith("; or delete it and run `envbuild lock SPEC`, which pins anew\n")


@pytest.mark.parametrize("cut", [10, 300, 500, 1000, 2000])
def test_every_mistake_has_a_hint(cut: int) -> None:
    text = dump(whole_lock())
    assert len(text) > cut
    for broken in (text[:cut], "{", text.replace("size_bytes: 10", "size_bytes: x")):
        with pytest.raises(EnvbuildError) as caught:
            load(broken.encode(), PATH, hint="begin anew")
        assert {single.hint for single in caught.value.each()} == {"begin anew"}


def test_a_better_hint_stays() -> None:
    with pytest.raises(EnvbuildError) as caught:
        load(dump(whole_lock()).replace("\nname:", "\nnmae:", 1).encode(), PATH)
    hints = [single.hint for single in caught.value.each()]
    assert sorted(hint[:20] for hint in hints) == ["did you mean `name`?", "take it back from ver"[:20]]

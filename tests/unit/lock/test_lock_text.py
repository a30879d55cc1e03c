from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envbuild.errors import EnvbuildError, RequestError, render
from envbuild.lock.model import LockFile, RootPin, ToolPin
from envbuild.lock.text import MAX_BYTES, digest, dump, dump_file, load, load_file
from tests.support.resolved_specs import build_deb, deb, wheel, whole_lock

PATH = Path("demo.lock.yaml")


def refused(text: str | bytes) -> str:
    with pytest.raises(EnvbuildError) as caught:
        load(text if isinstance(text, bytes) else text.encode(), PATH)
    return render(caught.value)


def test_a_lock_comes_back_as_it_was_written() -> None:
    lock = whole_lock()
    assert load(dump(lock).encode(), PATH) == lock


def two_targets() -> LockFile:
    """Return a lock file whose second target differs in one package."""
    there = replace(whole_lock(), architecture="arm64", python=(wheel("scipy", "1.16.0"),))
    return LockFile.of(whole_lock()).with_lock(there)


def test_targets_are_sorted_and_come_back_as_they_were_written() -> None:
    file = two_targets()
    text = dump_file(file)
    assert load_file(text.encode(), PATH) == file
    amd64, arm64 = file.locks
    assert (amd64.architecture, arm64.architecture) == ("amd64", "arm64")
    assert dump_file(LockFile.of(arm64).with_lock(amd64)) == text
    assert (file.lock("amd64"), file.lock("arm64"), file.lock("riscv64")) == (amd64, arm64, None)
    assert dump(amd64) == text.partition("  arm64:\n")[0]


def test_another_target_leaves_the_bytes_of_the_first() -> None:
    before, after = dump(whole_lock()), dump_file(two_targets())
    assert after.startswith(before)
    assert after.removeprefix(before).startswith("  arm64:\n")


def test_the_lock_of_an_image_has_one_target() -> None:
    with pytest.raises(RequestError, match="one target is expected here, found those for amd64 a") as caught:
        load(dump_file(two_targets()).encode(), PATH, hint="build it again")
    assert caught.value.hint == "build it again"
    assert str(caught.value.at) == "demo.lock.yaml:8:1"


def test_what_is_wrong_in_another_target_is_told_with_its_place() -> None:
    text = dump_file(two_targets())
    number = text.partition('"1.16.0"')[0].count("\n") + 1
    column = text.splitlines()[number - 1].index('"1.16.0"') + 1
    message = refused(text.replace('"1.16.0"', '"one"'))
    assert "`targets.arm64.python.version`: `one` is not a Python version" in message
    assert f"--> demo.lock.yaml:{number}:{column}" in message


def test_what_builds_need_is_written_only_where_something_is_built() -> None:
    assert "build_" not in dump(whole_lock())
    compiler = build_deb(deb("g++", "4:12.2.0-3"), "framework:horovod")
    tools = [
        wheel("setuptools", "81.0.0", layer="framework:horovod"),
        wheel("wheel", layer="framework:horovod", requires=["setuptools"]),
        wheel("setuptools", "84.0.0", layer="framework:other"),
    ]
    lock = replace(whole_lock(), build_debs=(compiler,), build_python=tuple(tools))
    assert load(dump(lock).encode(), PATH) == lock
    assert digest(lock) != digest(whole_lock())


def test_pins_are_those_of_every_table() -> None:
    compiler = build_deb(deb("g++"), "framework:horovod")
    root = RootPin(kind="tar", file="rocky.tar", size_bytes=1, sha256="0" * 64)
    tools = (wheel("setuptools", layer="framework:horovod"), wheel("setuptools", layer="framework:other"))
    lock = replace(whole_lock(), base_debs=(), base_root=(root,), build_debs=(compiler,), build_python=tools)
    assert [pin.name for pin in lock.pins] == [
        *("rocky.tar", "git", "mpi4py", "mpich", "numpy", "scipy", "torch", "g++"),
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
    with pytest.raises(ValidationError, match=said):
        replace(whole_lock(), build_python=tuple(tools))


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
        line for line in after if line.startswith('    - {name: "tabulate"')
    ]
    assert len(after) == len(before) + 1


def test_every_field_is_in_the_digest() -> None:
    lock = whole_lock()
    changed = [
        replace(lock, version="2"),
        replace(lock, base=replace(lock.base, glibc="2.37")),
        replace(lock, python=(*lock.python[:3], replace(lock.python[3], requires=()), lock.python[4])),
        replace(lock, tools=()),
        replace(lock, system_debs=(replace(lock.system_debs[0], size_bytes=11),)),
    ]
    assert len({digest(lock), *map(digest, changed)}) == len(changed) + 1


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_whatever_a_tool_says_of_itself_is_kept_or_refused(version: str) -> None:
    try:
        pin = ToolPin(name="uv", version=version, digest="sha256:" + "f" * 64)
    except ValidationError:
        return
    lock = replace(whole_lock(), tools=(pin,))
    assert load(dump(lock).encode(), PATH).tools == (pin,)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("format: 2", "format: 1", "`format`: it has format 1, and this version of envbuild reads format 2"),
        ("format: 2", 'format: "2"', "`format`: expected 2, found the text `2`"),
        ("  amd64:", "  x86_64:", "`x86_64` is not an architecture, `amd64` or `arm64`"),
        ("  amd64:", "  amd64: {}\n  arm64:", "the key `base` is missing in `targets.amd64`"),
        ('name: "demo"\n', "", "the key `name` is missing"),
        ('name: "demo"\n', 'name: "demo"\nnmae: 1\n', "unknown key `nmae`"),
        ('name: "demo"', "name: [demo]", "`name`: expected text, found a list"),
        ("tools:\n", "tools: 3\n", "this does not belong to the lines above"),
        ("requests:\n    -", "requests:\n    - 7\n    -",
         "`targets.amd64.requests`: expected text, found the number 7"),
        ('- "scipy>=1.11"', '- "scipy @ https://example.org/x"', "https://example.org/x` names an address"),
        ('- "git"', '- "Git"', "`targets.amd64.system_requests`: `Git` is not a Debian package name"),
        ("e" * 64, "e" * 63, "is not 64 hexadecimal digits"),
        ("sha256:" + "1" * 64, "sha256:" + "1" * 65, "is not a digest (`sha256:` and 64 hex digits)"),
        ("size_bytes: 10", "size_bytes: -1", "must be at least 0, found the number -1"),
        ("size_bytes: 10", "size_bytes: 1e9", "expected a whole number, found the number 1e9"),
        ("size_bytes: 10", "size_bytes: 9999999999999", "must be at most"),
        ("scipy-1.17.1-py3-none-any.whl", "../scipy-1.17.1-py3-none-any.whl", "is not a file name"),
        ("scipy-1.17.1-py3-none-any.whl", "a/scipy-1.17.1-py3-none-any.whl", "is not a file name"),
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
        ('name: "scipy"', 'name: "SciPy"',
         "`targets.amd64.python.name`: `SciPy` is not a canonical Python name"),
        ('layer: "mpi"', 'layer: "/etc"', "is not the name of a layer"),
        ('requires: ["numpy"]', 'requires: ["nunpy"]', "`scipy` requires `nunpy`, which is not pinned"),
        ('- {name: "numpy"', '- {name: "numpy", nmae: 1', "unknown key `nmae` in `targets.amd64.python`"),
        ('origin: "pytorch-cpu"', 'origin: "https://example.org"', "is not an origin, such as"),
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
    number = next(index for index, line in enumerate(lines) if line.startswith('    - {name: "numpy"'))
    column = lines[number].index('"pypi"')
    lines[number] = lines[number].replace('"pypi"', '"?"')
    assert f"demo.lock.yaml:{number + 1}:{column + 1}" in refused("\n".join(lines))


@pytest.mark.parametrize("table", ["python", "base_debs", "recipes", "tools"])
def test_a_name_is_pinned_once(table: str) -> None:
    lock = whole_lock()
    pins = getattr(lock, table)
    twice: dict[str, Any] = {table: (*pins, pins[0])}
    with pytest.raises(ValidationError, match=f"`{pins[0].name}` is pinned twice in"):
        replace(lock, **twice)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "the file is empty"),
        (b"[]", "the file is not a mapping"),
        (b"name: x\n", "not a lock: it has no `format: 2`"),
        (
            b'format: 2\nname: "x"\nversion: "1"\naccelerator: "cpu"\ntargets: {}\n',
            "`targets`: must not be empty",
        ),
        (b"\xff", "byte 0xff (offset 0) is not UTF-8"),
        ("format: 1\n".encode("utf-16"), "the file is UTF-16, not UTF-8"),
        (b"format: 1\nname: \x01\n", "the character U+0001 may not be in this file"),
        (b"format: &a 1\nname: *a\n", "the alias `*a` is not allowed"),
        (b"format: !!python/object/apply:os.system [x]\n", "the tag `!!python/object/apply:os.system`"),
        (b"format: 1\nformat: 1\n", "the key `format` is given twice"),
        (b"format: 1\n---\nformat: 1\n", "a second document begins here"),
        (b"? [1]\n: 2\n", "a key must be text"),
        (b"format: 1\nname: " + b"[" * 50_000, "nested deeper than 16 levels"),
        (b"{" * 50_000, "a key must be text"),
        (b"a: " + b"x" * MAX_BYTES, f"the file is too large: {MAX_BYTES + 3} bytes"),
        (b"format: 1\n\tname: x\n", "a tab may not indent a line"),
    ],
)
def test_what_is_no_lock_file_is_refused(text: bytes, problem: str) -> None:
    message = refused(text)
    assert problem in message
    assert "hint: restore it from version control, use the version" in message
    assert message.endswith("or delete it and run `envbuild lock SPEC`\n")


@pytest.mark.parametrize("cut", [10, 300, 500, 1000, 2000])
def test_every_mistake_has_a_hint(cut: int) -> None:
    text = dump(whole_lock())
    assert len(text) > cut
    for broken in (text[:cut], "{", text.replace("size_bytes: 10", "size_bytes: x")):
        with pytest.raises(EnvbuildError) as caught:
            load(broken.encode(), PATH, hint="begin anew")
        assert {single.hint for single in caught.value.each()} == {"begin anew"}


def test_versions_without_proof_are_named() -> None:
    lock = replace(whole_lock(), unproven=("pytorch",))
    text = dump(lock)
    assert '    unproven:\n    - "pytorch"\n' in text
    assert load(text.encode(), Path("x.lock.yaml")) == lock
    assert "unproven" not in dump(whole_lock())

"""Files with requirements that a spec names: what they ask for, and where it says so."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest
from packaging.requirements import Requirement

from envbuild.errors import EnvbuildError, render
from envbuild.inputs.spec import read_spec
from envbuild.spec import requirements
from envbuild.spec.model import MAX_PACKAGES
from envbuild.spec.requirements import Repository
from envbuild.spec.resolved import ResolvedSpec
from envbuild.system import files, host

CATALOG = Path(__file__).parent / "catalog"
SPEC = 'name: demo\nversion: "1"\nbase: debian-12\nframeworks: [pytorch]\n'
A, B = "a" * 64, "b" * 64

PYLOCK = f"""\
lock-version = "1.0"
created-by = "test"
requires-python = ">=3.11"

[[packages]]
name = "scipy"
version = "1.17.1"
wheels = [
    {{name = "scipy-1.17.1-cp311-cp311-macosx_11_0_arm64.whl", url = "https://example.org/1", hashes = {{sha256 = "{A}"}}}},
    {{name = "scipy-1.17.1-cp311-cp311-manylinux_2_28_x86_64.whl", url = "https://example.org/2", hashes = {{sha256 = "{B}"}}}},
]

[[packages]]
name = "colorama"
version = "0.4.6"
marker = "sys_platform == 'win32'"
wheels = [{{name = "colorama-0.4.6-py3-none-any.whl", url = "https://example.org/3", hashes = {{sha256 = "{A}"}}}}]
"""  # noqa: E501


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave out what this machine and its user have; our own catalog is that of the tests."""
    for variable in ("ENVBUILD_RECIPES", "ENVBUILD_SITE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", tmp_path / "etc")
    monkeypatch.setattr(files, "_own_data", lambda: CATALOG)
    monkeypatch.setattr(host, "architecture", lambda: "amd64")
    monkeypatch.chdir(tmp_path)


def read(python: str = "[{file: requirements.txt}]", **contents: str) -> ResolvedSpec:
    """Read a spec with files beside it; `contents` names them with `_` for dots and `__` for slashes."""
    for name, text in contents.items():
        path = Path(name.replace("__", "/").replace("_", "."))
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    Path("spec.yaml").write_text(f"{SPEC}packages:\n  python: {python}\n")
    return read_spec(Path("spec.yaml"))


def refused(python: str = "[{file: requirements.txt}]", **contents: str) -> str:
    with pytest.raises(EnvbuildError) as caught:
        read(python, **contents)
    return render(caught.value)


def test_a_requirements_file_with_all_that_can_be_used() -> None:
    text = f"""\
# Of the group.
scipy>=1.11  # a remark
-r sub/more.txt
--constraint=limits.txt
--require-hashes
idle; python_version < "3.10"
pandas==2.2.3 ; python_version >= "3.10" \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
    # via me
torch==2.13.0
"""
    resolved = read(
        requirements_txt=text, sub__more_txt="-r ../requirements.txt\nless\n", limits_txt="numpy<2\n"
    )
    # The recipe decides what torch is, and the line agrees.
    assert resolved.python.texts == (
        'less', 'pandas==2.2.3 ; python_version >= "3.10"', "scipy>=1.11", "torch==2.13.0+cpu"
    )  # fmt: skip
    assert [entry.text for entry in resolved.python.constraints] == ["numpy<2"]
    assert resolved.python.hashes == {"pandas": {A, B}}
    places = [str(resolved.python.location_of(name)) for name in ("pandas", "less", "other")]
    assert places == ["requirements.txt:7:1", "sub/more.txt:2:1", "spec.yaml"]


def test_a_file_beside_requirements_of_the_spec() -> None:
    resolved = read(
        "[tabulate, {file: requirements.txt}, 'scipy<2']", requirements_txt="scipy>=1.11\nscipy\n"
    )
    assert resolved.python.texts == ("scipy", "scipy<2", "scipy>=1.11", "tabulate", "torch==2.13.0+cpu")


def test_lines_that_name_addresses_are_pointed_out_without_them() -> None:
    text = "-i https://me:secret@example.org/simple\n--extra-index-url=https://example.org\nscipy\n"
    assert read(requirements_txt=text).remarks == (
        "requirements.txt:1:1: `-i` is not used: addresses are settings of the site",
        "requirements.txt:2:1: `--extra-index-url` is not used: addresses are settings of the site",
    )


WITH_CREDENTIALS = (
    "https://me:secret@example.org/x",
    "HTTPS://me:secret@example.org/x",
    "https://secret@example.org/x",
    "https://me:se/secret@example.org/x",
    "https://me:it's@secret#?@example.org/x",
    "https:/me:secret@example.org/x",
    "//me:secret@example.org/x",
    "me:secret@example.org/x",
    "https://example.org/x?token=secret",
)
LINES = (
    *("-r {}", "-r{}", "--requirement={}", "-c {}", "-i {}", "--index-url={}", "--Index-URL={}", "-f {}"),
    *("--find-links={}", "--proxy {}", "--trusted-host={}", "--x:{}", "-e git+{}", "{}", "x @ {}", "x@{}"),
    *("{}/x-1-py3-none-any.whl", "x @ {}/x-1.tar.gz", "x @ {}/x-1.tar.gz --hash=md5:0", "x @ git+{}"),
)


@pytest.mark.parametrize("line", LINES)
def test_no_line_of_a_file_shows_credentials(line: str) -> None:
    for address in WITH_CREDENTIALS:
        text = line.format(address)
        try:
            said = str(read(requirements_txt=f"{text}\n").remarks)
        except EnvbuildError as error:
            said = render(error)
        assert "secret" not in said, text


@pytest.mark.parametrize(
    "line", ["--header 'Authorization: Bearer secret'", "--password secret", "x --pw secret"]
)
def test_no_value_of_an_option_is_shown(line: str) -> None:
    assert "secret" not in refused(requirements_txt=f"{line}\n")


@pytest.mark.parametrize("line", ["-r {}", "-c '{}", "-f {}", '-r "{}', "{}", "x @ {}", "--{}"])
def test_a_long_line_is_not_quoted_in_full(line: str) -> None:
    assert len(refused(requirements_txt=line.format("x" * 100_000) + "\n")) < 2000


@pytest.mark.parametrize("address", WITH_CREDENTIALS)
def test_no_entry_of_a_spec_shows_credentials(address: str) -> None:
    text = json.dumps(address)
    for entry in (
        text,
        json.dumps(f"--index-url={address}"),
        f"{{file: {text}}}",
        f"{{directory: {text}}}",
        f"{{wheel: {json.dumps(address + '/x-1-py3-none-any.whl')}}}",
        f"{{name: x, git: {text}, commit: {A[:40]}}}",
    ):
        assert "secret" not in refused(f"[{entry}]"), entry


def test_the_dependencies_of_a_project() -> None:
    text = (
        '[project]\nname = "x"\ndependencies = [\n  "scipy>=1.11",\n  \'less; sys_platform == "win32"\',\n]\n'
    )
    resolved = read("[{file: pyproject.toml}]", pyproject_toml=text)
    assert resolved.python.texts == ("scipy>=1.11", "torch==2.13.0+cpu")
    assert str(resolved.python.location_of("scipy")) == "pyproject.toml:4:1"


def test_a_pylock_is_selected_from_for_the_base() -> None:
    resolved = read("[{file: pylock.toml}]", pylock_toml=PYLOCK)
    assert resolved.python.texts == ("scipy==1.17.1", "torch==2.13.0+cpu")
    assert resolved.python.hashes == {"scipy": {B}}
    assert str(resolved.python.location_of("scipy")) == "pylock.toml:6:1"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('">=3.11"', '">=3.12"', "it has no selection for the base image `debian-12`: python_full_version"),
        ("manylinux_2_28", "manylinux_2_39", "No wheel found matching the provided tags for package 'scipy'"),
        (f'sha256 = "{B}"', 'md5 = "00"', "`scipy` has no wheel with a sha256 for the base's Python"),
        ('lock-version = "1.0"', 'lock-version = "2.0"', "it is not a valid pylock.toml: pylock version 2.0"),
        ("wheels = [\n", "sdist = [\n", "it is not a valid pylock.toml: "),
        ("created-by", "created by", "it is not TOML: "),
    ],
)
def test_pylocks_that_cannot_be_used(old: str, new: str, problem: str) -> None:
    assert old in PYLOCK
    text = refused("[{file: pylock.toml}]", pylock_toml=PYLOCK.replace(old, new))
    assert problem in text
    assert "--> pylock.toml" in text


def test_what_a_pylock_takes_from_elsewhere_is_named_with_its_line() -> None:
    entries = (
        'vcs = {type = "git", url = "https://example.org/x", commit-id = "00"}',
        'directory = {path = "x"}',
    )
    packages = "".join(f'[[packages]]\nname = "p{number}"\n{entry}\n' for number, entry in enumerate(entries))
    text = refused("[{file: pylock.toml}]", pylock_toml=f'lock-version = "1.0"\ncreated-by = "x"\n{packages}')
    assert (
        "`p0` is taken from an address: only wheels from an index can be used\n  --> pylock.toml:4:1" in text
    )
    assert "`p1` is a directory: only wheels from an index can be used\n  --> pylock.toml:7:1" in text


def test_a_recipe_and_a_line_that_disagree() -> None:
    text = refused(requirements_txt="scipy\ntorch==2.5.1\n")
    assert text == (
        "error: `torch==2.5.1` excludes 2.13.0, which the recipe `pytorch` brings\n"
        "  --> requirements.txt:2:1\n\n"
        "hint: remove the line, or choose another version under `frameworks` of the spec: 2.13.0, 2.12.1\n"
    )


def test_other_distributions_of_a_recipe_are_left_to_it() -> None:
    resolved = read(requirements_txt="torch==2.13.0\ntriton==3.6.0\nscipy\n")
    assert resolved.python.texts == ("scipy", "torch==2.13.0+cpu")
    assert resolved.remarks == (
        "requirements.txt:2:1: `triton==3.6.0` is not used: the recipe `pytorch` decides on it",
    )


def test_a_file_may_not_lie_elsewhere(tmp_path: Path) -> None:
    (tmp_path.parent / "outside.txt").write_text("secret\n")
    Path("link.txt").symlink_to(tmp_path.parent / "outside.txt")
    text = refused("[{file: link.txt}]")
    assert "`link.txt` leads out of the spec's directory\n  --> spec.yaml:6:12" in text
    text = refused(requirements_txt="scipy\n-r ../../outside.txt\n")
    assert "leads out of the spec's directory\n  --> requirements.txt:2:1" in text


@pytest.mark.parametrize(
    "entry",
    [
        f"{{name: tool, git: 'file:///etc', commit: {A[:40]}}}",
        f"{{name: tool, git: 'file://{{here}}/../other', commit: {A[:40]}}}",
        f"{{name: tool, git: 'file://{{here}}/linked', commit: {A[:40]}}}",
        "{directory: linked}",
        "{directory: wheels}",
        "{wheel: wheels/own-1.0-py3-none-any.whl}",
        "{wheel: linked/own-1.0-py3-none-any.whl}",
        "{file: linked/r.txt}",
        "{file: options.txt}",
    ],
)
def test_nothing_is_taken_from_outside_the_directory_of_the_spec(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (outside / "r.txt").write_text("scipy\n")
    (outside / "own-1.0-py3-none-any.whl").write_text("secret")
    (here / "wheels").mkdir()
    (here / "wheels/own-1.0-py3-none-any.whl").symlink_to(outside / "own-1.0-py3-none-any.whl")
    (here / "linked").symlink_to(outside)
    (here / "options.txt").write_text(f"--find-links {outside}\n")
    text = refused(f"[{entry.replace('{here}', str(here))}]")
    assert "the spec's directory" in text
    assert "secret" not in text


def a_wheel(name: str, content: str = "") -> str:
    """Write something in place of a wheel; return its digest."""
    path = Path("wheels", name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    return hashlib.sha256(content.encode()).hexdigest()


def test_wheels_that_a_spec_and_its_files_name() -> None:
    own, other = a_wheel("own-1.0-py3-none-any.whl"), a_wheel("other-2.0-py3-none-any.whl", "x")
    a_wheel("not-1.0-py3-none-any.whl")
    text = f"""\
./wheels/other-2.0-py3-none-any.whl --hash=sha256:{other}
far[x] @ https://example.org/a%2Bb/far-3.0%2Bcpu-py3-none-any.whl#sha256={A} ; python_version > "3"
-f wheels
not @ ./wheels/not-1.0-py3-none-any.whl ; python_version < "3"
"""
    entries = "{wheel: wheels/own-1.0-py3-none-any.whl}, {directory: wheels}, 'own[more]'"
    resolved = read(f"[{entries}, {{file: requirements.txt}}]", requirements_txt=text)
    assert resolved.python.texts == (
        'far[x]===3.0+cpu ; python_version > "3"',
        "other===2.0",
        "own===1.0",
        "own[more]",
        "torch==2.13.0+cpu",
    )
    assert resolved.python.hashes == {"own": {own}, "other": {other}, "far": {A}}
    requests = resolved.python.explicit_wheels.values()
    assert {request.name: request.wheel.address for request in requests if request.wheel} == {
        "own": "wheels/own-1.0-py3-none-any.whl",
        "other": "wheels/other-2.0-py3-none-any.whl",
        "far": "https://example.org/a%2Bb/far-3.0%2Bcpu-py3-none-any.whl",
    }
    assert set(resolved.wheel_directories) == {Path("wheels").absolute()}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"./own-1.0-py3-none-any.whl --hash=sha256:{A}", "is not the file that is named: its sha256 is "),
        ("https://example.org/own-1.0-py3-none-any.whl", "has no sha256 of 64 hexadecimal digits"),
        (f"https://me:secret@example.org/own-1-py3-none-any.whl#sha256={A}", "put them in ~/.netrc"),
        ("../own-1.0-py3-none-any.whl", "leads out of the spec's directory"),
        ("file:///etc/own-1.0-py3-none-any.whl", "leads out of the spec's directory"),
        ("other @ ./own-1.0-py3-none-any.whl", "`own-1.0-py3-none-any.whl` is not a wheel of `other`"),
        ("./missing-1.0-py3-none-any.whl", "`missing-1.0-py3-none-any.whl` cannot be read"),
        ("own>=2\n./own-1.0-py3-none-any.whl", "`own>=2` excludes the wheel of `own` that is named"),
        ("./own-1.0-py3-none-any.whl\n./own-2.0-py3-none-any.whl", "two files of `own` are named"),
        ("./torch-2.13.0-py3-none-any.whl", "the package `torch` belongs to the recipe `pytorch`"),
        ("-f nowhere", "there is no directory `nowhere`"),
        ("-f ..", "leads out of the spec's directory"),
    ],
)
def test_wheels_that_cannot_be_used(line: str, problem: str) -> None:
    for name in ("own-1.0", "own-2.0", "torch-2.13.0"):
        Path(f"{name}-py3-none-any.whl").write_text(name)
    text = refused(requirements_txt=f"{line}\n")
    assert problem in text
    assert "--> requirements.txt:" in text
    assert "secret" not in text


@pytest.mark.parametrize(
    "file",
    [
        "_foo-1.0-py3-none-any.whl",
        ".foo-1.0-py3-none-any.whl",
        "foo_-1.0-py3-none-any.whl",
        "ñandu-1.0-py3-none-any.whl",
        "\u212aelvin-1.0-py3-none-any.whl",
        "%5Ffoo-1.0-py3-none-any.whl",
    ],
)
@pytest.mark.parametrize("place", ["", "wheels/", "https://example.org/"])
def test_a_wheel_whose_name_is_not_that_of_a_distribution_is_an_error(file: str, place: str) -> None:
    Path("wheels").mkdir()
    for directory in (".", "wheels"):
        Path(directory, file).write_text("x")
    digest = f"#sha256={A}" if "://" in place else ""
    assert "does not name a wheel" in refused(requirements_txt=f"{place}{file}{digest}\n")
    entry = f"{{wheel: '{place}{file}'{f', sha256: {A}' if digest else ''}}}"
    assert "does not name a wheel" in refused(f"[{entry}]")


def test_a_line_in_the_form_of_conda_gets_the_one_to_write() -> None:
    assert "hint: did you mean `numpy==1.2.*`?\n" in refused(requirements_txt="numpy=1.2\n")


def test_commits_of_repositories() -> None:
    commit = "0123456789" * 4
    text = f"""\
tool[gpu] @ git+https://example.org/group/tool.git@{commit}#subdirectory=python/tool&egg=tool
mine@git+ssh://git@example.org/mine@{commit} ; python_version > "3"
"""
    third = f"file://{Path.cwd()}/third"
    entry = f"{{name: Third_One, git: '{third}', commit: {commit}, version: '1.0'}}"
    resolved = read(f"[{entry}, {{file: requirements.txt}}]", requirements_txt=text)
    assert resolved.python.texts == (
        'mine ; python_version > "3"', "third-one", "tool[gpu]", "torch==2.13.0+cpu"
    )  # fmt: skip
    repositories = {name: request.repository for name, request in resolved.python.commits.items()}
    assert repositories == {
        "tool": Repository(
            url="https://example.org/group/tool.git", commit=commit, subdirectory="python/tool"
        ),
        "mine": Repository(url="ssh://git@example.org/mine", commit=commit),
        "third-one": Repository(url=third, commit=commit, version="1.0"),
    }
    assert {name: build.layer for name, build in resolved.builds.items()} == {
        "mine": "source:mine", "third-one": "source:third-one", "tool": "source:tool"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tool @ git+https://example.org/tool", "no commit of 40 hexadecimal digits is behind `https:"),
        ("tool @ git+https://example.org/tool@main", "no commit of 40 hexadecimal digits is behind `https:"),
        ("git+https://example.org/tool@main", "no name is in front of `git+https://example.org/tool`"),
        (f"tool @ git+https://me:secret@example.org/tool@{A[:40]}", "may not hold a user or password"),
        (f"tool @ git+ext://x@{A[:40]}", "is not an address of a repository"),
        (f"tool @ git+file:///x@{A[:40]}#subdirectory=../y", "is not a relative path"),
        (f"tool @ git+file:///etc@{A[:40]}", "the repository file:///etc is outside the spec's directory"),
        (f"tool @ git+file://localhost/x@{A[:40]}", "is outside the spec's directory"),
        (f"tool @ git+file:../x@{A[:40]}", "is not an address of a repository"),
        (f"tool @ git+/etc@{A[:40]}", "is not an address of a repository"),
        (f"tool @ git+../x@{A[:40]}", "is not an address of a repository"),
        (f"tool @ git+~/x@{A[:40]}", "is not an address of a repository"),
        (f"tool @ git+FILE:///x@{A[:40]}", "is not an address of a repository"),
        (f"torch @ git+file:///x@{A[:40]}", "belongs to the recipe `pytorch`"),
        (f"x @ git+file:///x@{A[:40]}\nx @ git+file:///x@{B[:40]}", "two files of `x` are named"),
    ],
)
def test_repositories_that_cannot_be_used(line: str, problem: str) -> None:
    text = refused(requirements_txt=f"{line}\n")
    assert problem in text
    assert "--> requirements.txt:" in text
    assert "secret" not in text


@pytest.mark.parametrize("before", ["scipy\n", "scipy==1.0 --hash=sha256:" + A])
def test_a_changed_file_changes_what_is_asked(before: str) -> None:
    def asked(text: str) -> object:
        resolved = read(requirements_txt=text)
        constraints = [entry.text for entry in resolved.python.constraints]
        return resolved.python.texts, constraints, resolved.python.hashes

    assert asked(before) == asked(f"# Another remark.\n{before}")
    assert asked(before) != asked(before.replace("scipy", "numpy"))
    assert asked(before) != asked(f"{before}\nless\n")
    assert asked("scipy==1.0 --hash=sha256:" + A) != asked("scipy==1.0 --hash=sha256:" + B)


HOSTILE_TOML = {
    "deep": "a = " + "[" * 10_000,
    "long": f"a = {'9' * 5000}",
    "parts": "a." * 10_000 + "b = 1",
}


@pytest.mark.redteam
@pytest.mark.parametrize("text", HOSTILE_TOML.values(), ids=HOSTILE_TOML.keys())
@pytest.mark.parametrize("file", ["pylock.toml", "pyproject.toml"])
def test_hostile_toml_is_an_error(file: str, text: str) -> None:
    shown = refused(f"[{{file: {file}}}]", **{file.replace(".", "_"): text})
    assert shown.startswith("error: it is not TOML: ")
    assert f"  --> {file}\n" in shown


@pytest.mark.redteam
def test_the_number_of_requirements_has_a_limit() -> None:
    lines = "".join(f"p{number}\n" for number in range(MAX_PACKAGES))
    assert len(read(requirements_txt=lines + "-i https://example.org\n").requested) == MAX_PACKAGES
    for text in (f"{lines}one-more\n", f"-r more.txt\n{lines}"):
        shown = refused(requirements_txt=text, more_txt="one-more\n")
        assert shown.startswith(
            f"error: more than {MAX_PACKAGES} requirements\n  --> requirements.txt:2001:1"
        )
    listed = ", ".join(f'"p{number}"' for number in range(MAX_PACKAGES + 1))
    project = f"[project]\ndependencies = [{listed}]\n"
    assert "more than 2000 requirements" in refused("[{file: pyproject.toml}]", pyproject_toml=project)
    packages = "".join(
        f'[[packages]]\nname = "p{number}"\ndirectory = {{path = "."}}\n'
        for number in range(MAX_PACKAGES + 1)
    )
    lock = f'lock-version = "1.0"\ncreated-by = "test"\n{packages}'
    assert "more than 2000 packages" in refused("[{file: pylock.toml}]", pylock_toml=lock)


@pytest.mark.parametrize("key", ["python", "system", "from_source"])
def test_the_number_of_packages_of_a_spec_has_a_limit(key: str) -> None:
    names = ", ".join(f"p{number}" for number in range(20_000))
    Path("spec.yaml").write_text(f"{SPEC}packages: {{{key}: [{names}]}}\n")
    with pytest.raises(EnvbuildError) as caught:
        read_spec(Path("spec.yaml"))
    (error,) = caught.value.each()
    assert error.problem == f"`packages.{key}`: must have at most {MAX_PACKAGES} entries"


def test_errors_and_remarks_of_a_file_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    options = "-i https://example.org/simple\n" * 300
    remarks = read(requirements_txt=options).remarks
    assert len(remarks) == 51
    assert remarks[-1] == "250 more lines are not used"
    tries: list[str] = []

    def counted(text: str) -> NoReturn:
        tries.append(text)
        raise ValueError("`x` is wrong")

    monkeypatch.setattr(requirements, "parse_requirement", counted)
    shown = refused(requirements_txt="/x\n" * 5000)
    assert len(tries) == 50
    assert shown.count("error: `x` is wrong") == 50
    assert "error: and 1 more error\n" in shown


@pytest.mark.redteam
@pytest.mark.parametrize(
    "line", ["a" + " " * 100_000 + "b", "a.whl#" * 20_000 + " b", "git+" * 20_000, "a>1" + ",>1" * 20_000]
)
def test_a_long_requirement_is_refused_before_patterns_look_at_it(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "_GIT", None)
    monkeypatch.setattr(requirements, "_WHEEL", None)
    assert refused(requirements_txt=line).startswith("error: a requirement is longer than 4096 characters")


def test_dependencies_of_a_project_are_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [f"p{number}; python_version > '3'" for number in range(500)]
    text = "[project]\ndependencies = [\n" + "".join(f'  "{entry}",\n' for entry in entries) + "]\n"
    monkeypatch.setattr(requirements, "_location_of", None)
    resolved = read("[{file: pyproject.toml}]", pyproject_toml=text)
    assert [str(request.at) for request in resolved.requested[:2]] == [
        "pyproject.toml:3:1",
        "pyproject.toml:4:1",
    ]
    assert str(resolved.requested[-1].at) == "pyproject.toml:502:1"


def test_a_requirement_is_parsed_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each other one: a file may have two thousand."""
    counts: Counter[int] = Counter()
    parse = Requirement.__init__

    def counted(self: Requirement, text: str) -> None:
        counts[lines] += 1
        parse(self, text)

    monkeypatch.setattr(Requirement, "__init__", counted)
    for lines in (50, 100):
        resolved = read(requirements_txt="".join(f"p{number}>1\n" for number in range(lines)))
        assert len(resolved.python.texts) == lines + 1
        assert [resolved.python.location_of(f"p{number}").line for number in (0, lines - 1)] == [
            1,
            lines,
        ]
        assert resolved.builds == {}
    assert counts[100] <= 2 * counts[50] < 1000


def test_options_and_the_length_of_all_requirements_have_a_limit() -> None:
    shown = refused(requirements_txt="-r requirements.txt\n" * 1001)
    assert shown.startswith("error: more than 1000 lines are options\n  --> requirements.txt:1001:1\n")
    line = "p{}; " + " or ".join(["python_version > '3'"] * 100) + "\n"
    shown = refused(requirements_txt="".join(line.format(number) for number in range(300)))
    assert shown.startswith("error: the requirements are longer than 524288 characters\n")
    # Hashes are not parsed.
    hashes = " --hash=sha256:" + A
    assert len(read(requirements_txt="".join(f"p{n}{hashes * 100}\n" for n in range(100))).requested) == 100

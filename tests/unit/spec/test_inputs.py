"""Reading what a spec names: where things are found, what is put together, what digests cover."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, RequestError, render
from envbuild.inputs import catalog
from envbuild.inputs import spec as spec_reader
from envbuild.inputs.spec import read_spec
from envbuild.resolve.debian import DebianRequest
from envbuild.spec.resolved import ResolvedSpec
from envbuild.system import files, host

CATALOG = Path(__file__).parent / "catalog"
SPEC = 'name: demo\nversion: "1"\nbase: debian-12\nmpi: mpich\nframeworks: [pytorch]\n'


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave out what this machine and its user have; our own catalog is that of the tests."""
    for variable in ("ENVBUILD_RECIPES", "ENVBUILD_SITE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", tmp_path / "etc")
    monkeypatch.setattr(files, "_own_data", lambda: CATALOG)
    monkeypatch.setattr(host, "architecture", lambda: "amd64")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def resolved(tmp_path: Path, extra: str = "", **arguments: object) -> ResolvedSpec:
    return read_spec(write(tmp_path / "spec.yaml", SPEC + extra), **arguments)  # type: ignore[arg-type]


def text_of(tmp_path: Path, extra: str = "", **arguments: object) -> str:
    with pytest.raises(EnvbuildError) as caught:
        resolved(tmp_path, extra, **arguments)
    return render(caught.value).replace(f"{tmp_path}/", "")


def site(name: str) -> str:
    return f"name: {name}\n"


def test_what_is_put_together(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.txt", "hello")
    result = resolved(
        tmp_path, "files: [{source: data/a.txt, target: /data/a.txt}]\npackages: {python: [scipy]}\n"
    )
    assert [chosen.layer for chosen in result.recipes] == ["mpi", "framework:pytorch"]
    assert [chosen.version for chosen in result.recipes] == ["5.0.2", "2.13.0"]
    assert result.files == {"data/a.txt": b"hello"}
    assert result.python.texts == ("mpich==5.0.2", "scipy", "torch==2.13.0+cpu")
    assert result.owner("Triton") == "framework:pytorch"
    assert result.architecture == "amd64"
    assert result.site is None


def test_debian_packages_keep_their_places(tmp_path: Path) -> None:
    result = resolved(tmp_path, "packages:\n  system:\n  - git\n  - less\n")
    request = DebianRequest.of(result)
    assert [str(request.location_of(name)) for name in ("git", "less", "of-a-recipe")] == [
        f"{tmp_path}/spec.yaml:8:5",
        f"{tmp_path}/spec.yaml:9:5",
        f"{tmp_path}/spec.yaml",
    ]


def test_the_first_version_that_the_constraint_admits_is_chosen(tmp_path: Path) -> None:
    text = SPEC.replace("mpich", "'mpich@<5'").replace("[pytorch]", "['pytorch@2.12']")
    result = read_spec(write(tmp_path / "spec.yaml", text))
    assert [chosen.version for chosen in result.recipes] == ["4.3.1", "2.12.1"]


def test_a_recipe_that_requires_another_has_a_say_in_its_version(tmp_path: Path) -> None:
    result = read_spec(write(tmp_path / "spec.yaml", SPEC.replace("[pytorch]", "[pytorch, rider]")))
    assert [chosen.version for chosen in result.frameworks] == ["2.12.1", "1.0"]


@pytest.mark.parametrize(
    ("asked", "version", "requirement"),
    [
        ("pytorch@2.5", "2.5", "torch==2.5.*"),
        ("pytorch@2.5.1", "2.5.1", "torch==2.5.1+cpu"),
        ("pytorch@==2.5.1", "2.5.1", "torch==2.5.1+cpu"),
    ],
)
def test_a_version_without_proof_is_taken_if_the_spec_says_so(
    asked: str, version: str, requirement: str, tmp_path: Path
) -> None:
    text = SPEC.replace("[pytorch]", f"['{asked}']")
    with pytest.raises(RequestError, match="no proven version of `pytorch`") as caught:
        read_spec(write(tmp_path / "spec.yaml", text))
    assert f"`proven: false` takes {version} without a test result" in caught.value.hint
    result = read_spec(write(tmp_path / "spec.yaml", text + "proven: false\n"))
    assert [(chosen.version, chosen.is_proven) for chosen in result.recipes] == [
        ("5.0.2", True),
        (version, False),
    ]
    assert requirement in result.python.texts
    assert result.remarks == (f"pytorch {version} has no test result yet",)
    proven = read_spec(write(tmp_path / "spec.yaml", SPEC + "proven: false\n"))
    assert [chosen.is_proven for chosen in proven.recipes] == [True, True]


def test_an_mpi_serves_every_accelerator(tmp_path: Path) -> None:
    text = SPEC.replace("[pytorch]", "[rocket]") + "accelerator: rocm\n"
    result = read_spec(write(tmp_path / "spec.yaml", text))
    assert [chosen.variant_name for chosen in result.recipes] == ["cpu", "rocm"]


def test_a_base_can_be_named_by_its_distribution(tmp_path: Path) -> None:
    base = (CATALOG / "base-images" / "debian-12.yaml").read_text()
    newer = base.replace("debian-12", "debian-12.5").replace('"12"', '"12.5"')
    write(tmp_path / "config/envbuild/base-images/debian-12.5.yaml", newer)
    for wanted, found in (
        ("debian@12", "debian-12.5"),
        ("debian@<12.5", "debian-12"),
        ("debian-12", "debian-12"),
    ):
        text = SPEC.replace("debian-12", f"'{wanted}'")
        assert read_spec(write(tmp_path / "spec.yaml", text)).base.name == found


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Put a base image beside the good ones that somebody has not finished, and one that nobody may read."""
    text = (CATALOG / "base-images" / "debian-12.yaml").read_text()
    unfinished = text.replace("debian-12", "mine").replace('"12"', "12").replace('"2.36"', "2.36")
    (tmp_path / "config/envbuild/base-images/closed.yaml").mkdir(parents=True)
    return write(tmp_path / "config/envbuild/base-images/mine.yaml", unfinished)


def searching(tmp_path: Path, base: str = "", extra: str = "") -> ResolvedSpec:
    text = SPEC.replace("base: debian-12\n", base) + extra
    return read_spec(write(tmp_path / "spec.yaml", text))


@pytest.mark.parametrize("base", ["", "base: debian@12\n"])
def test_a_base_with_mistakes_is_passed_over_where_it_is_not_named(
    tmp_path: Path, broken: Path, base: str
) -> None:
    result = searching(tmp_path, base)
    assert result.base.name == "debian-12"
    assert result.remarks == (
        f"`{broken.parent}/closed.yaml` is not a valid base image:"
        f" `{broken.parent}/closed.yaml` is a directory, not a file",
        f"`{broken}` is not a valid base image: `version`: expected text, found the number 12",
    )
    assert searching(tmp_path, "base: debian-12\n").remarks == ()


def test_a_base_that_is_called_otherwise_is_passed_over(tmp_path: Path) -> None:
    text = (CATALOG / "base-images" / "debian-12.yaml").read_text()
    write(tmp_path / "config/envbuild/base-images/a.yaml", text.replace("debian-12", "b"))
    assert searching(tmp_path).base.name == "debian-12"


@pytest.mark.parametrize(
    ("base", "extra"), [("base: mine\n", ""), ("", "python: '3.9'\n"), ("base: debian@99\n", "")]
)
def test_the_mistakes_of_a_base_are_told_where_it_may_be_meant(
    tmp_path: Path, broken: Path, base: str, extra: str
) -> None:
    with pytest.raises(EnvbuildError) as caught:
        searching(tmp_path, base, extra)
    assert f"{broken}:" in render(caught.value)


def test_a_base_with_mistakes_is_not_offered(broken: Path) -> None:
    assert "mine" not in {base.name for base in catalog.read_bases()}


def test_python_is_judged_by_its_minor_release(tmp_path: Path) -> None:
    for constraint in ("3.11", ">=3.11.2", "<3.12", "~=3.11.1"):
        assert resolved(tmp_path, f"python: '{constraint}'\n").spec.python


def test_recipes_are_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (CATALOG / "recipes" / "mpich" / "recipe.yaml").read_text()
    places = ["given", "variable", "config/envbuild/recipes", "etc/recipes"]
    for number, place in enumerate(places):
        write(tmp_path / place / "mpich" / "recipe.yaml", text.replace("An MPI", place))
        (tmp_path / f"nothing{number}").mkdir()
    monkeypatch.setenv("ENVBUILD_RECIPES", f"{tmp_path}/nothing0{os.pathsep}{tmp_path}/variable")
    given = [tmp_path / "nothing1", tmp_path / "given"]
    for place in places:
        assert resolved(tmp_path, recipes=given).recipes[0].recipe.summary == place
        shutil.rmtree(tmp_path / place / "mpich")
    assert resolved(tmp_path, recipes=given).recipes[0].recipe.summary == "An MPI"


def test_sites_are_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = write(tmp_path / "given.yaml", site("given"))
    monkeypatch.setenv("ENVBUILD_SITE", str(write(tmp_path / "variable.yaml", site("variable"))))
    write(tmp_path / "config/envbuild/site.yaml", site("user"))
    write(tmp_path / "etc/site.yaml", site("machine"))

    def found(extra: str = "", **arguments: object) -> str | None:
        settings = resolved(tmp_path, extra, **arguments).site
        return None if settings is None else settings.name

    assert found("site: example\n", site=given) == "given"
    assert found("site: example\n") == "variable"
    monkeypatch.delenv("ENVBUILD_SITE")
    assert found("site: example\n") == "example"
    assert found() == "user"
    (tmp_path / "config/envbuild/site.yaml").unlink()
    assert found() == "machine"
    (tmp_path / "etc/site.yaml").unlink()
    assert found() is None


def test_only_the_recipes_that_are_named_are_read(tmp_path: Path) -> None:
    write(tmp_path / "config/envbuild/recipes/broken/recipe.yaml", "name: [\n")
    assert resolved(tmp_path).recipes
    text = SPEC.replace("[pytorch]", "[broken]")
    with pytest.raises(RequestError, match="is missing"):
        read_spec(write(tmp_path / "spec.yaml", text))
    with pytest.raises(RequestError, match="unknown recipe `brokn`") as caught:
        read_spec(write(tmp_path / "spec.yaml", SPEC.replace("[pytorch]", "[brokn]")))
    assert caught.value.hint == "did you mean `broken`? `envbuild recipes ls` lists all"


def test_a_recipes_digest_covers_its_files_and_nothing_else(tmp_path: Path) -> None:
    recipe = tmp_path / "mine" / "pytorch"
    shutil.copytree(CATALOG / "recipes" / "pytorch", recipe)

    def digest() -> str:
        return resolved(tmp_path, recipes=[tmp_path / "mine"]).frameworks[0].digest

    before = digest()
    contents = {
        name: hashlib.sha256((recipe / name).read_bytes()).hexdigest()
        for name in ("recipe.yaml", "verify/parallel_demo.py")
    }
    canonical = json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()
    assert before == "sha256:" + hashlib.sha256(canonical).hexdigest()
    write(recipe / "README.md", "words")
    write(recipe / "verify" / "notes.txt", "words")
    (recipe / "verify" / "parallel_demo.py").touch()
    assert digest() == before
    write(recipe / "verify" / "helper.py", "")
    assert digest() != before


def test_a_bases_digest_covers_what_it_says_not_how(tmp_path: Path) -> None:
    base = (CATALOG / "base-images" / "debian-12.yaml").read_text()
    copy = tmp_path / "config/envbuild/base-images/debian-12.yaml"
    before = resolved(tmp_path).base_digest
    write(copy, "# a comment\n" + base.replace("[debian:bookworm]", '\n  - "debian:bookworm"'))
    assert resolved(tmp_path).base_digest == before
    write(copy, base.replace("[python3]", "[python3, git]"))
    assert resolved(tmp_path).base_digest != before


def test_mistakes_of_all_files_are_told_together(tmp_path: Path) -> None:
    write(tmp_path / "mine/mpich/recipe.yaml", "name: mpich\nkind: mpi\n")
    write(tmp_path / "config/envbuild/base-images/debian-12.yaml", "name: [\n")
    here = write(tmp_path / "here.yaml", "nmae: x\n")
    text = text_of(tmp_path, "test: {ranks: 1}\n", recipes=[tmp_path / "mine"], site=here)
    for place in ("spec.yaml:6:15", "mine/mpich/recipe.yaml:1:1", "debian-12.yaml:2:1", "here.yaml:1:1"):
        assert f"{place}\n" in text
    assert "unknown" not in text.replace("unknown key `nmae`", "")


def test_what_is_given_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = tmp_path / "nowhere"
    assert "there is no directory `nowhere`" in text_of(tmp_path, recipes=[nowhere])
    assert "there is no file `nowhere`" in text_of(tmp_path, site=nowhere)
    monkeypatch.setenv("ENVBUILD_RECIPES", str(nowhere))
    assert "hint: ENVBUILD_RECIPES takes a directory" in text_of(tmp_path)
    monkeypatch.delenv("ENVBUILD_RECIPES")
    with pytest.raises(RequestError, match="there is no file") as caught:
        read_spec(tmp_path / "spce.yaml")
    assert caught.value.hint == "did you mean `spec.yaml`?"


def test_files_stay_below_the_spec(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret", "x")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "data").symlink_to(secret)
    (tmp_path / "project" / "up").symlink_to(tmp_path)
    (tmp_path / "project" / "loop").symlink_to("loop")
    extra = "files:\n" + "".join(
        f"  - {{source: {source}, target: /data/{index}}}\n"
        for index, source in enumerate(("data", "up/secret", "loop"))
    )
    text = text_of(tmp_path / "project", extra)
    for line, source in ((7, "data"), (8, "up/secret")):
        assert f"`{source}` leads out of the spec's directory\n  --> spec.yaml:{line}:14" in text
    # It leads nowhere, and its reader says so.
    assert "loop` cannot be read: Too many levels of symbolic links\n  --> spec.yaml:9:14" in text


@pytest.mark.redteam
@pytest.mark.parametrize("name", ["verify/sums.py", "patches/a.patch", "recipe.yaml"])
def test_files_of_a_recipe_stay_below_it(tmp_path: Path, name: str) -> None:
    secret = write(tmp_path / "secret", "name: mpich\n")
    ours = tmp_path / "mine/mpich"
    shutil.copytree(CATALOG / "recipes/mpich", ours)
    (ours / name).parent.mkdir(exist_ok=True)
    (ours / name).unlink(missing_ok=True)
    (ours / name).symlink_to(secret)
    text = text_of(tmp_path, recipes=[tmp_path / "mine"])
    assert f"`{name}` leads out of the recipe's directory\n  --> mine/mpich/{name}" in text
    # A job may be that of a recipe beside it, and a recipe may be a link as a whole.
    (ours / name).unlink()
    shutil.copytree(CATALOG / "recipes/mpich", ours, dirs_exist_ok=True)
    write(tmp_path / "mine/other/verify/sums.py", "")
    (ours / "verify").mkdir(exist_ok=True)
    (ours / "verify/shared.py").symlink_to("../../other/verify/sums.py")
    assert resolved(tmp_path, recipes=[tmp_path / "mine"]).mpi is not None
    (ours / "verify/shared.py").unlink()
    ours.rename(tmp_path / "elsewhere")
    ours.symlink_to(tmp_path / "elsewhere")
    assert resolved(tmp_path, recipes=[tmp_path / "mine"]).mpi is not None


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    text = text_of(tmp_path, "files: [{source: pipe, target: /data/a}]\n")
    assert "pipe` is not a regular file\n  --> spec.yaml:6:18" in text


def test_a_file_may_not_be_huge(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(spec_reader.MAX_FILE_BYTES + 1)
    text = text_of(tmp_path, "files: [{source: large, target: /data/a}]\n")
    assert "large` is too large: more than 67108864 bytes" in text


def test_files_of_a_spec_are_read_once_and_in_all_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        write(tmp_path / name, "x" * 1000)
    read: list[str] = []
    real = files.read_input

    def counted(path: Path, **named: Any) -> bytes:
        read.append(path.name)
        return real(path, **named)

    monkeypatch.setattr(spec_reader, "read_input", counted)
    same = "".join(f"  - {{source: a, target: /data/{index}}}\n" for index in range(500))
    assert list(resolved(tmp_path, f"files:\n{same}").files) == ["a"]
    assert read.count("a") == 1
    monkeypatch.setattr(spec_reader, "MAX_FILES_BYTES", 2500)
    others = "".join(f"  - {{source: {name}, target: /data/{name}}}\n" for name in "abc")
    assert "the files of the spec have more than 0 MiB\n  --> spec.yaml:9:14" in text_of(
        tmp_path, f"files:\n{others}"
    )


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        (f"files: [{'{source: a, target: /b}, ' * 2001}]\n", "`files`: must have at most 2000 entries"),
        (f"fabric: [{'ucx, ' * 101}]\n", "`fabric`: must have at most 100 entries"),
        (f"files: [{{source: a, target: {'/b' * 101}}}]\n", "is more than 100 directories deep"),
    ],
)
def test_lists_of_a_spec_have_limits(tmp_path: Path, extra: str, problem: str) -> None:
    assert problem in text_of(tmp_path, extra)

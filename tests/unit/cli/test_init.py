"""`envbuild init`: a first spec that is right, by questions on a terminal and by flags anywhere."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from envbuild.cli.main import main
from envbuild.errors import RequestError
from envbuild.inputs.spec import read_spec
from envbuild.spec.draft import SpecDraft
from envbuild.spec.yamlfile import read_yaml
from envbuild.workflows import init as workflow
from envbuild.workflows.init import read_choices, spec_path, spec_text
from tests.support.schemas import complaints, plain
from tests.support.shipped import list_recipes_once

COMMAND = Path(sys.executable).with_name("envbuild")
RECIPES = Path(__file__).parents[3] / "recipes"
# What a recipe wants beside it that it does not require by name.
BESIDE = {"keras": ["-f", "jax"]}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no settings of this machine take part."""
    monkeypatch.setattr(workflow, "list_recipes", list_recipes_once)
    monkeypatch.delenv("ENVBUILD_RECIPES", raising=False)
    monkeypatch.delenv("ENVBUILD_SITE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def init(*words: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["init", *words])
    assert ended.value.code == code


def without_terminal(*words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, "init", *words], input=typed, capture_output=True, text=True, timeout=60)


def on_terminal(*words: str, answers: Sequence[str]) -> tuple[int, str]:
    """Answer one question after the other at a terminal; return the exit code and what was seen."""
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, "init", *words], stdin=inner, stdout=inner, stderr=inner, start_new_session=True
    )
    os.close(inner)
    seen, left = "", list(answers)
    begun = 0
    while True:
        ready, _, _ = select.select([outer], [], [], 60)
        assert ready, f"it waits for more than {answers}:\n{seen}"
        try:
            seen += os.read(outer, 4096).decode()
        except OSError:
            break
        if re.search(r"\]: $", seen[begun:]) and left:
            begun = len(seen)
            os.write(outer, left.pop(0).encode())
    os.close(outer)
    assert left == []
    return process.wait(60), seen.replace("\r\n", "\n")


def test_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    said = without_terminal(typed="jax\n")
    assert (said.returncode, said.stdout) == (0, "")
    assert said.stderr == "spec.yaml: written\nnext: envbuild build spec.yaml\n"
    resolved = read_spec(Path("spec.yaml"))
    assert [chosen.recipe.name for chosen in resolved.recipes] == ["mpich", "pytorch"]
    assert (resolved.spec.name, str(resolved.spec.base)) == ("pytorch-mpich", "debian-12")


@pytest.mark.parametrize("name", sorted(path.parent.name for path in RECIPES.glob("*/recipe.yaml")))
def test_a_spec_for_each_recipe_is_right(name: str) -> None:
    kind = read_choices().recipes[name].kind
    flag = {"mpi": "--mpi", "framework": "--framework", "fabric": "--fabric", "site": "--from-site"}[kind]
    init(flag, name, *BESIDE.get(name, []), "-y", "--schema")
    assert name in [chosen.recipe.name for chosen in read_spec(Path("spec.yaml")).recipes]
    content = Path("spec.yaml").read_bytes()
    assert content.startswith(b"# yaml-language-server: $schema=spec.schema.json\n")
    assert complaints("spec", plain(read_yaml(content, Path("spec.yaml")).value)) == []
    assert Path("spec.schema.json").exists()


def test_what_its_comments_offer_is_right_too() -> None:
    init("-y")
    text = Path("spec.yaml").read_text()
    offered = re.sub(r"(?m)^# ([a-z]+: \{)", r"\1", text)
    assert offered.count("\n# ") + 3 == text.count("\n# ")
    Path("spec.yaml").write_text(offered)
    spec = read_spec(Path("spec.yaml")).spec
    assert spec.packages.python
    assert spec.environment
    assert spec.test.ranks == 2
    versions = re.findall(r"`(\S+@\S+)` for a version", text)
    there = read_choices()
    assert versions
    for version in versions:
        draft = SpecDraft(mpi=version) if "mpi" in version else SpecDraft(frameworks=(version,))
        spec_text(there, draft, Path("other.yaml"))
    accelerators = re.search(r"accelerator: cpu +# or (.*)", text)
    assert accelerators
    for word in accelerators[1].split(", "):
        spec_text(there, SpecDraft(accelerator=word), Path("other.yaml"))


def test_flags_say_everything() -> None:
    init(
        *(
            "mine/first.yml",
            "-f",
            "pytorch@2.13",
            "-f",
            "onnxruntime",
            "--mpi",
            "openmpi",
            "--base",
            "debian@12",
        ),
        *("--fabric", "ucx", "--python", "scipy>=1.11", "--python", "pandas", "--system", "git"),
        *("--name", "mine", "--version", "2026.11", "-y"),
    )
    spec = read_spec(Path("mine/first.yml")).spec
    assert [str(one) for one in spec.frameworks] == ["pytorch@==2.13.*", "onnxruntime"]
    assert (str(spec.mpi), spec.name, spec.version, str(spec.base)) == (
        "openmpi",
        "mine",
        "2026.11",
        "debian@==12.*",
    )
    assert spec.packages.python == ("scipy>=1.11", "pandas")
    assert (spec.packages.system, [one.name for one in spec.fabric]) == (("git",), ["ucx"])


def test_requirements_become_part_of_the_spec(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    requirements = Path("mine/requirements.txt")
    requirements.write_text("torch==2.13.0\nscipy>=1.11\n")
    init("mine", "-y", "--requirements", "mine/requirements.txt")
    resolved = read_spec(Path("mine/spec.yaml"))
    assert [str(choice) for choice in resolved.spec.frameworks] == ["pytorch@==2.13.0.*"]
    assert "scipy>=1.11" in resolved.python.texts
    requirements.write_text("scipy\n-e .\n")
    init("mine/second.yaml", "-y", "-r", "mine/requirements.txt", code=2)
    assert "mine/requirements.txt:2:1" in capsys.readouterr().err
    init("other/spec.yaml", "-y", "-r", "mine/requirements.txt", code=2)
    printed = capsys.readouterr().err
    assert "does not lie below the directory" in printed
    assert f"hint: a spec names files beside it: copy the file to `{Path.cwd()}/other`\n" in printed
    assert not Path("other").exists()


def test_only_its_main_distribution_decides_the_version_of_a_recipe() -> None:
    Path("requirements.txt").write_text("torch==2.13.0\ntriton==3.6.0\n")
    init("-y", "-r", "requirements.txt")
    resolved = read_spec(Path("spec.yaml"))
    assert [str(choice) for choice in resolved.spec.frameworks] == ["pytorch@==2.13.0.*"]
    assert "triton==3.6.0" not in resolved.python.texts


def test_a_version_that_no_recipe_has_is_reported_at_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("requirements.txt").write_text("numpy\ntorch<2.6\n")
    init("-y", "-r", "requirements.txt", code=2)
    said = capsys.readouterr().err
    assert "error: no proven version of `pytorch` meets `<2.6`\n  --> requirements.txt:2:1\n" in said
    assert "; `--no-proven` takes any one release (`X.Y`) without a test result\n" in said


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["-f", "pytorch@2.5"], "; `--no-proven` takes 2.5 without a test result"),
        (["-f", "pytorch", "--accelerator", "nvidia"], "write `--accelerator` as one of: cpu, cuda@13.0"),
        (["-f", "horovod", "--mpi", "none"], "add a line such as `--mpi mpich`"),
        (["-f", "mpich", "--mpi", "none"], "hint: name it with `--mpi`\n"),
        (["--fabric", "pytorch"], "hint: name it with `--framework`\n"),
        (["-f", "caffe", "--base", "debian-12"], "hint: remove `--base` to let envbuild choose a"),
    ],
)
def test_hints_name_options(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    init("-y", *words, code=2)
    said = capsys.readouterr().err
    assert hint in said
    assert "proven: false" not in said


@pytest.mark.parametrize(
    ("words", "proven"),
    [
        (["--no-proven", "-f", "pytorch@2.5"], False),
        (["--no-proven", "-r", "requirements.txt"], False),
        ([], None),
    ],
)
def test_versions_without_a_test_result_can_be_asked_for(words: list[str], proven: bool | None) -> None:
    Path("requirements.txt").write_text("six\n")
    init("-y", *words)
    assert yaml.safe_load(Path("spec.yaml").read_text()).get("proven") == proven
    init("-y", "--proven", "-r", "requirements.txt", "other.yaml")
    assert "proven" not in yaml.safe_load(Path("other.yaml").read_text())


def test_only_proven_versions_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    Path("requirements.txt").write_text("torch==2.4.1\n")
    init("-y", "--proven", "-r", "requirements.txt", code=2)
    assert "no proven version of `pytorch` meets" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("jax[cuda12]==0.10.2\n", {"accelerator": "cuda@12", "frameworks": ["jax@0.10.2"]}),
        (
            "--extra-index-url https://example.org/whl/cu130\ntorch==2.13.0\n",
            {"accelerator": "cuda@13.0", "frameworks": ["pytorch@2.13.0"]},
        ),
        ("torch==2.13.0+cu130\n", {"accelerator": "cuda@13.0", "frameworks": ["pytorch@2.13.0"]}),
        ("torch==2.4.1\n", {"proven": False, "accelerator": "cpu", "frameworks": ["pytorch@2.4.1"]}),
        ("openmpi\ntorchvision\n", {"mpi": "openmpi", "frameworks": ["pytorch"]}),
    ],
)
def test_requirements_choose_accelerator_and_versions(text: str, keys: dict[str, object]) -> None:
    Path("requirements.txt").write_text(text)
    init("-y", "-r", "requirements.txt")
    spec = yaml.safe_load(Path("spec.yaml").read_text())
    assert {key: spec[key] for key in keys} == keys


def test_a_build_for_another_accelerator_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    Path("requirements.txt").write_text("torch==2.13.0+cu130\n")
    init("-y", "-r", "requirements.txt", "--accelerator", "cpu", code=2)
    said = capsys.readouterr().err
    assert "`torch==2.13.0+cu130` excludes 2.13.0" in said
    assert (
        "hint: write `torch==2.13.0`: `accelerator` decides on the build, and `+cu130` is not that of `cpu`"
        in said
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--python", "requirements.txt"], "write `{file: requirements.txt}`"),
        (["--python", "./wheels/x.whl"], "write `{wheel: wheels/x.whl}`"),
        (
            ["-f", "pytorch", "-f", "torch"],
            "the recipe `pytorch`, which is named as well, brings it: remove it",
        ),
    ],
)
def test_names_in_the_wrong_place(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    init("-y", *words, code=2)
    assert f"hint: {hint}\n" in capsys.readouterr().err


def test_an_image_without_mpi() -> None:
    init("-f", "mlflow", "--mpi", "none", "-y")
    assert read_spec(Path("spec.yaml")).spec.mpi is None


def test_what_is_required_comes_along_unless_it_was_chosen() -> None:
    init("-f", "caffe", "-y")
    assert str(read_spec(Path("spec.yaml")).spec.mpi) == "openmpi-debian"
    init("second.yaml", "-f", "mpi4jax", "-f", "jax@0.10", "-y")
    assert [str(one) for one in read_spec(Path("second.yaml")).spec.frameworks] == [
        "mpi4jax",
        "jax@==0.10.*",
    ]


def test_all_that_is_wrong_is_told_at_once_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    init("-f", "pytroch", "--mpi", "mpihc", "--base", "debain-12", "--name", "A b", "-y", code=2)
    said = capsys.readouterr().err
    for word in (
        "did you mean `pytorch`?",
        "did you mean `mpich`?",
        "did you mean `debian-12`?",
        "`A b` is not a name",
    ):
        assert word in said
    assert "-->" not in said, "there is no file to look at"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["a: b", "no", "1.0", "x # y", "[a]", '"', "é"])
def test_no_value_becomes_another(value: str) -> None:
    init("--version", value, "--name", "a", "-y", code=0 if value in ("no", "1.0") else 2)
    if Path("spec.yaml").exists():
        assert read_spec(Path("spec.yaml")).spec.version == value


@pytest.mark.parametrize("words", [["spec.yaml"], ["."], [], ["link.yaml"], ["dir"]])
def test_nothing_is_overwritten(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dir").mkdir()
    for name in ("spec.yaml", "dir/spec.yaml"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "link.yaml").symlink_to("nowhere")
    init(*words, "-y", code=2)
    assert "already exists" in capsys.readouterr().err
    assert (tmp_path / "spec.yaml").read_text() == (tmp_path / "dir/spec.yaml").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_schema_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "spec.schema.json").write_text("mine")
    init("--schema", "-y", code=2)
    assert (tmp_path / "spec.schema.json").read_text() == "mine"
    assert not (tmp_path / "spec.yaml").exists()


def test_a_file_is_told_from_a_directory(tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").mkdir()
    assert spec_path(Path("a.yml")) == Path("a.yml")
    assert spec_path(Path("new")) == Path("new/spec.yaml")
    assert spec_path(Path("odd.yaml")) == Path("odd.yaml/spec.yaml")
    assert spec_path(Path("pytorch-2.13")) == Path("pytorch-2.13/spec.yaml")


@pytest.mark.parametrize("name", ["x.txt", "spec.yam", "file"])
def test_a_name_that_is_no_specs_is_refused(name: str) -> None:
    Path("file").touch()
    with pytest.raises(RequestError, match=f"`{name}` cannot be the name of a spec") as caught:
        spec_path(Path(name))
    assert str(caught.value.hint).startswith(f"name a file such as {Path(name).stem}.yaml")
    assert not Path(name).is_dir()
    with pytest.raises(SystemExit) as ended:
        main(["init", "/proc/nowhere/a.yaml", "-y"])
    assert ended.value.code in (2, 5)


def test_a_terminal_is_asked_and_typos_get_a_suggestion() -> None:
    answers = [
        "pytroch\n",
        "pytorch jax\n",
        "opnmpi\n",
        "openmpi\n",
        "cude\n",
        "cuda@13.0\n",
        "Big\n",
        "mine\n",
    ]
    code, seen = on_terminal(answers=[*answers, "\n"])
    assert code == 0, seen
    for word in ("did you mean `pytorch`?", "did you mean `openmpi`?", "`Big` is not a name"):
        assert word in seen
    spec = read_spec(Path("spec.yaml")).spec
    assert [one.name for one in spec.frameworks] == ["pytorch", "jax"]
    assert (str(spec.mpi), str(spec.accelerator)) == ("openmpi", "cuda@==13.0.*")
    assert (spec.name, spec.version, str(spec.base)) == ("mine", "1.0", "debian-12")


def test_a_terminal_is_asked_only_for_what_is_not_said() -> None:
    code, seen = on_terminal(
        "-f", "pytorch", "--mpi", "mpich", "--base", "debian-12", answers=["\n", "\n", "\n"]
    )
    assert code == 0, seen
    assert "Frameworks" not in seen
    assert on_terminal("b.yaml", "--yes", answers=[])[0] == 0


def test_only_what_is_right_for_the_rest_is_offered() -> None:
    there = read_choices()
    draft = SpecDraft(frameworks=("caffe",))
    assert there.accelerators(there.completed(draft)) == ("cpu",)
    with pytest.raises(RequestError, match="no proven version of `jax`"):
        spec_text(there, SpecDraft(frameworks=("jax@99",)), Path("spec.yaml"))


def test_the_end_of_the_answers_ends_it(tmp_path: Path) -> None:
    code, seen = on_terminal(answers=["\n", "\x04"])
    assert code == 130, seen
    assert not (tmp_path / "spec.yaml").exists()

"""Definition files and Dockerfiles of others: what a spec can say of them, line by line, and what not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import RequestError
from envbuild.spec.foreign import images
from envbuild.spec.foreign.commands import split
from envbuild.spec.foreign.model import Known, Proposal
from envbuild.spec.foreign.packages import debian_names, needless, python_requirements
from envbuild.spec.foreign.proposal import propose
from envbuild.spec.foreign.statements import language_of, read
from envbuild.spec.load import load_spec

GOLDEN = Path(__file__).parents[2] / "golden" / "import-def"
BASES = {"debian-11": "3.9", "debian-12": "3.11"}
RECIPES = {
    "horovod": ("framework", ("0.28.1",)),
    "jupyterlab": ("framework", ("4.6",)),
    "mpich": ("mpi", ("5.0.2",)),
    "openmpi": ("mpi", ("5.0.9",)),
    "pytorch": ("framework", ("2.13.0", "2.12.1")),
    "tensorflow": ("framework", ("2.21.0",)),
}
OWNERS = {
    "torch": "pytorch",
    "horovod": "horovod",
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "mpich": "mpich",
}
BESIDE = {
    "train.py": "executable",
    "data.csv": "file",
    "src": "directory",
    "requirements.txt": "file",
    "data.tar.gz": "file",
}
TEXTS = {
    "requirements.txt": (
        "pandas==2.2.3  # why\n\n# a remark\n-r more.txt\nnumpy \\\n  --hash=sha256:00\n-e .\n"
    ),
    "more.txt": "-c limits.txt\nhttps://example.org/x.whl\nmpi4py\n",
}


def look(name: str) -> Literal["file", "executable", "directory", "absent"]:
    return BESIDE.get(name, "absent")  # type: ignore[return-value]  # of these


KNOWN = Known(recipes=RECIPES, owners=OWNERS, bases=BASES, look=look, read=TEXTS.get)


def proposed(text: str) -> Proposal:
    return propose(read(text, Path("Dockerfile")), KNOWN, name="Some Thing")


def left(text: str) -> list[tuple[int, str]]:
    return [(note.line, note.what) for note in proposed(text).notes if note.outcome == "left"]


WHOLE = (
    *("Dockerfile", "app.def", "vendor.def", "builds.def", "stages.def"),
    *("stages.Dockerfile", "secrets.Dockerfile", "conda.Dockerfile"),
)


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_file(name: str, golden: Callable[[Path, str], None]) -> None:
    path = GOLDEN / name
    proposal = propose(read(path.read_text(), path), KNOWN, name=path.stem)
    spec = proposal.to_yaml(name)
    lines = [f"{note.line}: {note.outcome}: {note.text}: {note.what}\n" for note in proposal.notes]
    golden(GOLDEN / f"{name}.spec.yaml", spec)
    golden(GOLDEN / f"{name}.notes.txt", "".join(lines))
    load_spec(spec.encode(), path)


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_of_a_file_is_passed_over(name: str) -> None:
    """Every line that is no remark and no continuation has a word said of it."""
    path = GOLDEN / name
    told = {note.line for note in propose(read(path.read_text(), path), KNOWN, name=path.stem).notes}
    for statement in read(path.read_text(), path):
        lines = range(statement.line, statement.line + statement.text.count("\n") + 1)
        assert told & set(lines), statement


def test_secrets_are_neither_taken_nor_shown() -> None:
    for name in ("secrets.Dockerfile", "vendor.def"):
        path = GOLDEN / name
        proposal = propose(read(path.read_text(), path), KNOWN, name=path.stem)
        said = proposal.to_yaml(name) + "".join(note.text + note.what for note in proposal.notes)
        for secret in ("hf_abc", "x y", "ghp_abc", "user:secret", "u:p"):
            assert secret not in said
    assert "HF_TOKEN" in (GOLDEN / "secrets.Dockerfile.notes.txt").read_text()
    assert "TOKENIZERS_PARALLELISM" in (GOLDEN / "secrets.Dockerfile.spec.yaml").read_text()


@pytest.mark.parametrize(
    "line",
    [
        'ENV MYDB_DSN="host=h user=u password=S3CR3T"',
        "ENV HF=hf_S3CR3Tabcdef",
        "ENV OPENAI=sk-S3CR3Tabcdef",
        "ENV OPENAI_KEY=S3CR3T",
        "ENV MYSQL_PWD=S3CR3T",
        "ENV PGPASSWORD=S3CR3T",
        "ENV PIP_INDEX_URL=https://u:S3CR3T@example.org/simple",
        "ARG PIP_PASS=S3CR3T",
        'RUN curl -H "Authorization: Bearer S3CR3T" https://example.org',
        "RUN curl -u user:S3CR3T https://example.org",
        "RUN curl --user=user:S3CR3T https://example.org",
        "RUN wget --password S3CR3T https://example.org",
        "RUN wget --password=S3CR3T https://example.org",
        "RUN aws configure set aws_secret_access_key S3CR3T",
        "RUN echo machine example.org login u password S3CR3T > /root/.netrc",
        "RUN mysql -u root -pS3CR3T -e x",
        "RUN docker login -u me -p S3CR3T example.org",
        "RUN huggingface-cli login --token S3CR3T",
        "RUN PGPASSWORD=S3CR3T psql",
        "RUN echo AKIAS3CR3TABCDEFGHIJ",
        "LABEL token=S3CR3T",
        "LABEL summary=hf_S3CR3Tabcdef",
    ],
)
def test_secrets_of_all_kinds_are_neither_taken_nor_shown(line: str) -> None:
    path = Path("Dockerfile")
    text = f"FROM debian:12\n{line}\nENV USED=$OPENAI_KEY$PIP_PASS$HF$OPENAI$MYSQL_PWD\n"
    proposal = propose(read(text, path), KNOWN, name="some")
    said = proposal.to_yaml("some") + "".join(note.text + note.what for note in proposal.notes)
    assert "S3CR3T" not in said


def test_what_is_no_secret_is_taken() -> None:
    text = (
        "FROM debian:12\nENV TOKENIZERS_PARALLELISM=false KEYBOARD=us COMPASS=north BYPASS_CACHE=1 A=pass:b\n"
    )
    proposal = propose(read(text, Path("Dockerfile")), KNOWN, name="some")
    assert set(proposal.environment) == {"TOKENIZERS_PARALLELISM", "KEYBOARD", "COMPASS", "BYPASS_CACHE"}


def test_variables_of_variables_have_no_end_without_a_limit() -> None:
    lines = [f"ENV A{number + 1}=" + f"$A{number}" * 10 for number in range(12)]
    text = "\n".join(["FROM debian:12", "ENV A0=xxxxxxxxxx", *lines, ""])
    proposal = propose(read(text, Path("Dockerfile")), KNOWN, name="some")
    assert len(proposal.to_yaml("some")) < 20_000
    assert {note.outcome for note in proposal.notes[-5:]} == {"left"}


@pytest.mark.parametrize(
    ("reference", "base", "python", "accelerator", "frameworks"),
    [
        ("debian:bookworm-slim", "debian-12", "", "", ()),
        ("docker.io/library/debian:12.5", "debian-12", "", "", ()),
        ("debian:bullseye-20240101@sha256:00", "debian-11", "", "", ()),
        ("python:3.11", "debian-12", "3.11", "", ()),
        ("python:3.9-slim-bullseye", "debian-11", "3.9", "", ()),
        ("python:3.11-slim-bookworm AS x", "debian-12", "3.11", "", ()),
        ("pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime", "", "", "cuda@13.0", (("pytorch", "2.13.0"),)),
        ("pytorch/pytorch", "", "", "", (("pytorch", ""),)),
        ("tensorflow/tensorflow:2.21.0-gpu", "", "", "cuda", (("tensorflow", "2.21.0"),)),
        ("quay.io/jupyter/scipy-notebook:latest", "", "", "", (("jupyterlab", ""),)),
        ("nvcr.io/nvidia/pytorch:25.01-py3", "", "", "cuda", (("pytorch", ""),)),
        ("nvidia/cuda:13.0.1-devel-ubuntu24.04", "", "", "cuda@13.0", ()),
    ],
)
def test_images_that_many_know(
    reference: str, base: str, python: str, accelerator: str, frameworks: object
) -> None:
    found = images.read(reference, BASES)
    assert (found.base, found.python, found.accelerator) == (base, python, accelerator)
    assert found.frameworks == frameworks


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("ubuntu:24.04", "bases are Debian"),
        ("rockylinux:9", "bases are Debian"),
        ("debian:trixie", "there is no base for `debian:trixie`"),
        (
            "python:3.12-slim",
            "no base has the Python of `python:3.12-slim`: debian-11 has 3.9, debian-12 has",
        ),
        ("nvcr.io/nvidia/pytorch:25.01-py3", "the vendor's own build is not in it"),
    ],
)
def test_images_that_no_base_stands_for(reference: str, why: str) -> None:
    assert images.read(reference, BASES).why.startswith(why)


def words(text: str, **variables: str) -> list[tuple[int, tuple[str, ...], str]]:
    return [(one.line, one.words, one.why) for one in split(text, 10, variables)]


def test_simple_commands_and_their_lines() -> None:
    text = 'apt-get update && \\\n  apt-get install -y \\\n   "a b" c\\ d; true\n'
    text += "echo '$X' # remark\nA=1 B=2 run"
    assert words(text) == [
        (10, ("apt-get", "update"), ""),
        (11, ("apt-get", "install", "-y", "a b", "c d"), ""),
        (12, ("true",), ""),
        (13, ("echo", "$X"), ""),
        (14, ("run",), ""),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pip install x==$V", ("pip", "install", "x==1.2")),
        ('pip install "x==${V}"', ("pip", "install", "x==1.2")),
        ("pip install scipy>=1.11 y<2", ("pip", "install", "scipy>=1.11", "y<2")),
        ("apt-get update > /dev/null 2>&1", ("apt-get", "update")),
        ("apt-get update &>/dev/null", ("apt-get", "update")),
    ],
)
def test_variables_and_what_is_thrown_away(text: str, expected: tuple[str, ...]) -> None:
    assert words(text, V="1.2") == [(10, expected, "")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pip install x==$OTHER", "it depends on a variable whose value is not in the file"),
        ("pip install $(cat x)", "it is more than a simple command"),
        ("pip install `cat x`", "it depends on what another command says"),
        ('pip install "$(cat x)"', "it depends on what another command says"),
        ("curl x | sh", "it is more than a simple command"),
        ("(cd x)", "it is more than a simple command"),
        ("run &", "it is more than a simple command"),
        ("for x in a", "it is more than a simple command"),
        ("echo x > /etc/x", "it writes a file"),
        ("echo x >>/etc/x", "it writes a file"),
        ("cat < /etc/x", "it is more than a simple command"),
        ("echo 'x", "its quotes do not end"),
    ],
)
def test_what_is_more_than_a_simple_command(text: str, why: str) -> None:
    ((line, got, told),) = words(text)
    assert (line, got) == (10, ())
    assert told.startswith(why)


@given(st.text(alphabet="ab \n\\'\"$;&|<>#=`(){}%", max_size=60))
def test_no_shell_text_is_too_odd(text: str) -> None:
    for command in split(text, 1, {}):
        assert bool(command.words) != bool(command.why)
        assert 1 <= command.line <= text.count("\n") + 1


@given(
    st.text(alphabet="FROMRUNEVCPY ab:\n\\'\"$=#%<{}-", max_size=80),
    st.sampled_from(["FROM x\n", "Bootstrap: docker\n"]),
)
def test_no_file_is_too_odd(text: str, start: str) -> None:
    proposal = proposed(start + text)
    lines = len((start + text).splitlines())
    assert all(1 <= note.line <= lines for note in proposal.notes)
    load_spec(proposal.to_yaml("x").encode(), Path("x"))
    json.dumps(proposal.to_data())


def test_debian_packages() -> None:
    asked = "less=590-2 git/stable libx:amd64 python3-pip libmpich-dev ./local.deb Wrong"
    found = debian_names(["apt-get", "install", "-y", "-t", "backports", *asked.split()])
    assert found is not None
    assert (found.packages, found.mpis) == (["less", "git", "libx"], {"mpich": ["libmpich-dev"]})
    assert (found.ours, found.odd) == (["python3-pip"], ["./local.deb", "Wrong"])
    assert (found.release, found.removed) == ("backports", [])
    assert debian_names(["apt-get", "update"]) is None


def test_python_packages() -> None:
    asked = "a>1 --index-url=https://example.org -r requirements.txt git+https://example.org/y ./z"
    asked += " -r none.txt --target /x b"
    command = ["python3", "-m", "pip", "--no-cache-dir", "install", "-U", *asked.split()]
    found = python_requirements(command, TEXTS.get)
    assert found is not None
    assert [str(one) for one in found.requirements] == [
        "a>1",
        "requirements.txt:1: pandas==2.2.3",
        "more.txt:3: mpi4py",
        "requirements.txt:5: numpy",
        "b",
    ]
    assert [str(one) for one in found.odd] == [
        "--index-url https://example.org",
        "more.txt:1: -c limits.txt",
        "more.txt:2: https://example.org/x.whl",
        "requirements.txt:7: .",
        "git+https://example.org/y",
        "./z",
        "-r none.txt",
        "--target /x",
    ]
    assert python_requirements(["pip", "download", "x"], TEXTS.get) is None
    assert python_requirements(["uv", "pip", "install", "x"], TEXTS.get) is not None


def test_files_that_name_each_other_end() -> None:
    texts = {"x": "a\n-r d/y\n", "d/y": "b\n-r z\n-r ../x\n", "d/z": "c\n"}
    found = python_requirements(["pip", "install", "-r", "./x", "-r", "d/z"], texts.get)
    assert found is not None
    assert [str(one) for one in found.requirements] == ["x:1: a", "d/y:1: b", "d/z:1: c"]
    assert [(str(one), one.why) for one in found.odd] == [
        ("d/y:3: -r ../x", "the file is being read already: it names itself")
    ]


def test_files_that_never_stop_naming_others_end() -> None:
    found = python_requirements(["pip", "install", "-r", "x"], lambda name: f"-r d/{name[-1]}\n")
    assert found is not None
    assert len(found.odd) == 1


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--user", "an image's Python packages lie in /opt/env"),
        ("--target=/x", "an image's Python packages lie in /opt/env"),
        ("--pre", "a lock takes releases: a constraint that names one (`==2.0rc1`) admits it"),
        ("--no-deps", "what a package requires comes along"),
        ("--new-fangled", "nothing in a spec says this to pip"),
    ],
)
def test_an_option_of_pip_that_decides_something_is_told(option: str, why: str) -> None:
    assert left(f"FROM debian:12\nRUN pip install {option} less\n") == [(2, why)]


def test_an_option_of_pip_that_decides_nothing_is_not_told() -> None:
    options = "--no-cache-dir -U -qq --break-system-packages --timeout 60 --root-user-action=ignore"
    assert left(f"FROM debian:12\nRUN pip install {options} less\n") == []


@pytest.mark.parametrize(
    "command",
    [
        "apt-get clean",
        "rm -rf /var/lib/apt/lists/* /tmp/x",
        "set -ex",
        "pip cache purge",
        "python3 -m venv /venv",
        "/usr/bin/apt-get -y upgrade",
        "conda clean -a",
    ],
)
def test_what_need_not_be_done(command: str) -> None:
    assert needless(command.split())


@pytest.mark.parametrize(
    "command", ["rm -rf /opt/x", "apt-get install x", "make", "rm /var/lib/x", "conda install x"]
)
def test_what_may_matter(command: str) -> None:
    assert not needless(command.split())


def test_the_last_stage_makes_the_image() -> None:
    proposal = proposed(
        "FROM golang AS build\nRUN apt-get install less\nFROM debian:12\nRUN apt-get install git\n"
    )
    assert (proposal.base, proposal.system_packages) == ("debian-12", ["git"])
    assert [note.outcome for note in proposal.notes] == ["left", "left", "taken", "taken"]


def test_remarks_within_a_continued_line() -> None:
    assert proposed("FROM debian:12\nRUN apt-get install -y \\\n # a remark\n\n less\n").system_packages == [
        "less"
    ]


def test_variables_of_an_image() -> None:
    text = (
        "FROM debian:12\nENV A=1 B='two words'\nENV C=$A-x\n"
        "ENV PATH=/x:/$A:$PATH LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/y\n"
        "ENV HOME=/x\nENV D old style\nENV PIP_NO_CACHE_DIR=1\n"
    )
    proposal = proposed(text)
    assert proposal.environment == {
        "A": "1",
        "B": "two words",
        "C": "1-x",
        "PATH": {"prepend": "/x:/1"},
        "D": "old style",
    }
    assert [line for line, _ in left(text)] == [4, 5]


def test_a_line_does_not_see_the_variables_that_it_sets() -> None:
    text = "FROM debian:12\nENV A=old\nENV A=new B=$A C=1 D=$C\nENV E=$A$B\n"
    proposal = proposed(text)
    assert proposal.environment == {"A": "new", "B": "old", "C": "1", "E": "newold"}
    assert [(note.line, note.text) for note in proposal.notes if note.outcome == "left"] == [(3, "D=$C")]


def test_what_stands_in_single_quotes_is_meant_so() -> None:
    text = (
        "FROM debian:12\nENV X=1\nENV A='$X' B=\"$X\" C=\\$X D='a'\"$X\"'$X' E=\"it's $X\"\nENV F $X '$X'\n"
    )
    found = proposed(text).environment
    assert found == {"X": "1", "A": "$X", "B": "1", "C": "$X", "D": "a1$X", "E": "it's 1", "F": "1 $X"}


@pytest.mark.parametrize(
    "value", ["1e3", "0o17", "0x1F", ".5", "yes", "null", "~", "1_000", "- a", "a: b", " "]
)
def test_a_value_stays_text_in_the_yaml(value: str) -> None:
    proposal = proposed("FROM debian:12\n")
    proposal.environment["N"] = value
    assert load_spec(proposal.to_yaml("x").encode(), Path("x")).environment == {"N": value}


def test_a_search_path_is_not_replaced() -> None:
    text = "FROM debian:12\nENV PATH=/usr/bin\nENV LD_LIBRARY_PATH=a:$LD_LIBRARY_PATH\n"
    assert proposed(text).environment == {}
    assert [line for line, _ in left(text)] == [2, 3]


def test_a_variable_may_hold_several_words() -> None:
    text = 'FROM debian:12\nENV P="less nano" V=2\nRUN apt-get install $P "lib$V" x$V$P\n'
    assert proposed(text).system_packages == ["less", "nano", "lib2", "x2less"]


def test_variables_of_a_definition_file() -> None:
    text = "Bootstrap: docker\nFrom: debian:12\n%environment\n"
    text += "    A='x y'\n    export A\n    export B=2\n    set -e\n"
    proposal = proposed(text)
    assert proposal.environment == {"A": "x y", "B": "2"}
    outcomes = [(note.line, note.outcome) for note in proposal.notes][2:]
    assert outcomes == [(4, "taken"), (5, "needless"), (6, "taken"), (7, "left")]


def test_files_beside_it() -> None:
    text = (
        "FROM debian:12\nCOPY train.py data.csv /srv/\nCOPY src /srv/src\nCOPY nowhere /x\n"
        "COPY data.csv relative\n"
        "COPY --chown=x data.csv /y\nCOPY *.csv /z\nADD https://example.org/x /x\n"
    )
    assert proposed(text).files == [
        {"source": "train.py", "target": "/srv/train.py", "executable": True},
        {"source": "data.csv", "target": "/srv/data.csv"},
        {"source": "data.csv", "target": "/y"},
    ]
    assert [line for line, _ in left(text)] == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("ADD https://example.org/x /x", "it is downloaded: keep the file beside the spec"),
        ("ADD data.tar.gz /x", "`ADD` unpacks it"),
        ("COPY data.csv /opt/env/x", "/opt/env is reserved: another layer owns it"),
        ("COPY data.csv /tmp/x", "/tmp is reserved: the runtime mounts its own there"),
        ("COPY data.csv /a\nCOPY train.py /a/b", "`/a` is a file: one cannot lie in the other"),
        ("COPY data.csv /a\nCOPY train.py /a", "this line puts another file there"),
    ],
)
def test_files_that_a_spec_cannot_have(lines: str, why: str) -> None:
    ((_, told),) = left(f"FROM debian:12\n{lines}\n")
    assert told.startswith(why)
    assert len(proposed(f"FROM debian:12\n{lines}\n").files) == lines.count("\n")


def test_a_file_of_a_definition_file_without_a_target() -> None:
    text = "Bootstrap: docker\nFrom: debian:12\n%files\n    data.csv\n"
    assert left(text) == [(4, "a spec's file has a target: none is named here")]


def test_the_same_package_twice() -> None:
    text = "FROM debian:12\nRUN pip install 'numpy<2' less && pip install 'NumPy>=1.20' less\n"
    proposal = proposed(text)
    assert proposal.python_packages == ["numpy<2,>=1.20", "less"]
    assert [note.what for note in proposal.notes][-2:] == [
        "packages.python: numpy<2,>=1.20",
        "packages.python",
    ]
    text += "RUN pip install 'numpy>=2' torch==2.13.0 torch 'torch>=2'\n"
    assert proposed(text).frameworks == ["pytorch@2.13.0"]
    assert left(text) == [
        (3, "no version can meet this and what was asked for before"),
        (3, "`pytorch` is taken already, with another constraint"),
    ]


@pytest.mark.parametrize(
    ("words", "accelerator"),
    [
        ("tensorflow[and-cuda]", "cuda"),
        ("torch --index-url https://example.org/whl/cu126", "cuda@12.6"),
        ("torch --extra-index-url https://example.org/whl/cu130/", "cuda@13.0"),
        ("torch==2.13.0+cu126", "cuda@12.6"),
        ("torch -f https://example.org/whl/rocm6.4", "rocm@6.4"),
        ("tensorflow-gpu", "cuda"),
        ("tensorflow-gpu torch==2.13.0+cu126 tensorflow[and-cuda]", "cuda@12.6"),
        ("torch --index-url https://example.org/whl/cpu", ""),
    ],
)
def test_an_accelerator_that_a_build_names(words: str, accelerator: str) -> None:
    proposal = proposed(f"FROM debian:12\nRUN pip install {words}\n")
    assert proposal.accelerator == accelerator
    assert proposal.python_packages == []
    assert load_spec(proposal.to_yaml("x").encode(), Path("x"))


def test_what_a_recipe_cannot_take_of_a_requirement_is_told() -> None:
    text = "FROM debian:12\nRUN pip install horovod[spark] torch==2.13.0+cu126 torch==2.13.0+cu130\n"
    assert left(text) == [
        (2, "what comes along, its recipe says"),
        (2, "an image is for one accelerator, and `cuda@12.6` is taken: cuda@13.0"),
    ]


def test_what_apt_takes_away_or_has_from_elsewhere_is_told() -> None:
    text = "FROM debian:12\nRUN apt-get install -y nano- -tbookworm-backports less\n"
    assert proposed(text).system_packages == ["less"]
    assert left(text) == [
        (2, "packages come from the base's own suites, all of a lock together"),
        (2, "apt takes it away, and a spec only adds packages"),
    ]


def test_a_version_that_the_recipe_lacks() -> None:
    text = "FROM debian:12\nRUN pip install torch==1.9.0 horovod==0.28.1 tensorflow-cpu~=2.21\n"
    assert proposed(text).frameworks == ["pytorch", "horovod@0.28.1", "tensorflow@~=2.21"]
    assert left(text) == [(2, "the recipe has 2.13.0, 2.12.1: any of these is proposed")]


def test_an_mpi() -> None:
    assert proposed("FROM debian:12\nRUN pip install mpi4py\n").mpi == "mpich"
    assert (
        proposed("FROM debian:12\nRUN apt-get install openmpi-bin\nRUN pip install mpi4py\n").mpi == "openmpi"
    )
    # That mpi4py came first says nothing of which MPI is meant.
    text = "FROM debian:12\nRUN pip install mpi4py\nRUN apt-get install openmpi-bin libopenmpi-dev mpich\n"
    assert proposed(text).mpi == "openmpi"
    assert left(text) == [(3, "an image has one MPI, and `openmpi` is taken: mpich")]


def test_nothing_understood() -> None:
    assert left("FROM ubuntu:24.04\nRUN make\n")[-1] == (1, "nothing in it was understood")


def test_control_characters_go_no_further() -> None:
    proposal = proposed("FROM debian:12\nRUN make \x1b[31m\u202e\n")
    assert proposal.notes[-1].text == "make \ufffd[31m\ufffd"
    load_spec(proposal.to_yaml("x").encode(), Path("x"))


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("# x\n\nfrom x\n", "docker"),
        ("ARG A\nFROM x\n", "docker"),
        ("\nbootstrap : localimage\n", "definition"),
        ("name: x\n", None),
        ("", None),
    ],
)
def test_languages(text: str, language: str | None) -> None:
    assert language_of(text) == language
    if language is None:
        with pytest.raises(RequestError, match="is neither a definition file nor a Dockerfile"):
            read(text, Path("x"))

"""`envbuild import`: the spec that it proposes, and a note for each piece of the file."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.cli.import_file import format_notes
from envbuild.cli.main import main
from envbuild.errors import EnvbuildError, RequestError, render
from envbuild.extend.packages import read_request
from envbuild.importers.conda import conda_table
from envbuild.importers.importer import propose
from envbuild.importers.proposal import Proposal
from envbuild.importers.statements import read_statements
from envbuild.inputs.catalog import read_bases
from envbuild.inputs.spec import read_spec
from envbuild.spec.load import load_spec
from envbuild.spec.model import EnvSpec
from envbuild.workflows import import_file as workflow
from envbuild.workflows.import_file import Imported, import_file
from envbuild.workflows.recipes import list_recipes
from tests.support.shipped import list_recipes_once

GOLDEN = Path(__file__).parents[2] / "golden" / "import"
FILES = {
    "data.csv": "",
    "data.tar.gz": "",
    "src/x": "",
    "requirements.txt": (
        "pandas==2.2.3  # why\n\n# a remark\n-r more.txt\nnumpy \\\n  --hash=sha256:00\n-e .\n"
    ),
    "more.txt": "-c limits.txt\nhttps://example.org/x.whl\nmpi4py\n",
}


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Take the place of an index; return the requirements of which it has no wheels."""
    without = {"ncl"}
    monkeypatch.setattr(workflow, "without_wheels", lambda texts, *_: without & {*texts})
    monkeypatch.setattr(workflow, "list_recipes", list_recipes_once)
    return without


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with files that a Dockerfile may name."""
    directory = tmp_path / "Some Thing"
    (directory / "src").mkdir(parents=True)
    for name, text in FILES.items():
        (directory / name).write_text(text)
    (directory / "train.py").write_text("#!/bin/sh\n")
    (directory / "train.py").chmod(0o755)
    return directory


def imported(place: Path, text: str, name: str = "Dockerfile") -> Proposal:
    (place / name).write_text(text)
    return import_file(place / name).proposal


def spec_of(place: Path, *lines: str) -> dict[str, Any]:
    """The spec that is proposed for lines of a Dockerfile, without those keys that each has."""
    spec = imported(place, "\n".join(("FROM debian:12", *lines, ""))).spec
    return {key: value for key, value in spec.items() if key not in ("name", "version", "base")}


def unsupported(place: Path, *lines: str) -> list[tuple[int, str]]:
    """Lines and reasons of what is not taken over; the first line after FROM is 1."""
    notes = imported(place, "\n".join(("FROM debian:12", *lines, ""))).notes
    return [(note.line - 1, note.explanation) for note in notes if note.outcome == "unsupported"]


@pytest.mark.parametrize(
    "name", sorted(path.name for path in GOLDEN.iterdir() if not path.name.endswith((".txt", ".yaml")))
)
def test_a_whole_file(name: str, place: Path, golden: Callable[[Path, str], None]) -> None:
    shutil.copy(GOLDEN / name, place)
    result = import_file(place / name)
    notes = [
        f"{note.line}: {note.outcome}: {note.text}: {note.explanation}\n" for note in result.proposal.notes
    ]
    golden(GOLDEN / f"{name}.spec.yaml", result.text)
    golden(GOLDEN / f"{name}.notes.txt", "".join(notes))
    noted = {note.line for note in result.proposal.notes}
    for statement in read_statements((GOLDEN / name).read_text(), place / name):
        lines = range(statement.line, statement.line + statement.text.count("\n") + 1)
        assert noted & set(lines), f"no note for {statement}"


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (
            "no-such-package\n",
            ["names of pip and Debian packages are not looked up; `envbuild lock` does that"],
        ),
        ("torch\n", ["it names no MPI: for jobs of several ranks add `mpi: mpich`"]),
        ("torch\nmpi4py\n", []),
    ],
)
def test_the_summary_says_that_names_are_not_looked_up(place: Path, text: str, more: list[str]) -> None:
    source = place / "requirements.txt"
    source.write_text(text)
    taken = text.count("\n")
    summary = format_notes(import_file(source))[taken:]
    assert summary == [
        f"{source}: {line}" for line in (f"{taken} taken, 0 changed, 0 unsupported, 0 skipped", *more)
    ]


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
        "RUN echo root:S3CR3T | chpasswd",
        "RUN mysql -u root -pS3CR3T -e x",
        "RUN docker login -u me -p S3CR3T example.org",
        "RUN huggingface-cli login --token S3CR3T",
        "RUN PGPASSWORD=S3CR3T psql",
        "RUN echo AKIAS3CR3TABCDEFGHIJ",
        "RUN pip install --extra-index-url https://u:S3CR3T@example.org/simple x",
        'RUN pip install "x @ https://u:S3/C:R3T@example.org/x.whl"',
        "LABEL token=S3CR3T",
        'RUN pip install --client-cert /x --header "Authorization: Bearer S3CR3T" x',
        "RUN pip install --password S3CR3T x",
        "RUN pip install --proxy HTTPS://u:S3CR3T@example.org x",
        "RUN pip install -r HTTPS://u:S3CR3T@example.org/r.txt",
        'RUN curl -H "X-Access: S3CR3T" https://example.org',
        "RUN mysql mydb -pS3CR3T",
        "RUN mysqlimport --local -pS3CR3T db x.txt",
        "RUN ngrok authtoken S3CR3T",
        "RUN tool --authtoken S3CR3T",
        "RUN tool --gpg-key=S3CR3T",
        "ENV APP_SECRETVALUE=S3CR3T",
        "ENV STORE=AccountKey=S3CR3T",
        "ENV AWS_SECRETACCESSKEY=S3CR3T",
        'ENV JSON={"secretAccessKey":"S3CR3T"}',
        "RUN echo privateKey: S3CR3T > /root/x",
    ],
)
def test_secrets_are_neither_taken_nor_shown(line: str, place: Path) -> None:
    (place / "Dockerfile").write_text(f"FROM debian:12\n{line}\nENV USED=$OPENAI_KEY$PIP_PASS$HF$MYSQL_PWD\n")
    result = import_file(place / "Dockerfile")
    assert "S3" not in result.text + repr(result.proposal) + "".join(format_notes(result))


@pytest.mark.parametrize(
    "line",
    [
        '--client-cert /x --header "Authorization: Bearer S3CR3T"',
        "--header=Authorization:S3CR3T",
        "--password S3CR3T",
        "-i HTTPS://u:S3CR3T@example.org",
        "-r https://u:S3CR3T@example.org/r.txt",
        "--proxy u:S3CR3T@example.org",
        "x @ HTTPS://u:S3CR3T@example.org/x.whl",
        "x --config-settings token=S3CR3T",
    ],
)
def test_secrets_of_a_requirements_file_are_neither_taken_nor_shown(line: str, place: Path) -> None:
    (place / "requirements.txt").write_text(f"{line}\nscipy\n")
    result = import_file(place / "requirements.txt")
    assert "S3" not in result.text + repr(result.proposal) + "".join(format_notes(result))
    assert result.proposal.spec["packages"] == {"python": ["scipy"]}


@pytest.mark.parametrize(
    "line",
    [
        "RUN wget https://example.org/repo/RPM-GPG-KEY-vendor",
        "RUN curl https://example.org/keys/GPG-PUB-KEY-VENDOR.PUB",
        "RUN apt-key adv --fetch-keys https://example.org/3bf863cc.pub",
        "RUN bash --login build.sh",
        "RUN apt-get source mysql-client tiktoken==0.9 hf_transfer",
    ],
)
def test_words_that_only_resemble_secrets_are_shown(line: str, place: Path) -> None:
    notes = imported(place, f"FROM debian:12\n{line}\n").notes
    assert line.removeprefix("RUN ") in [note.text for note in notes]


def test_names_that_only_resemble_those_of_secrets_are_taken(place: Path) -> None:
    names = ("TOKENIZERS_PARALLELISM", "KEYBOARD", "COMPASS", "BYPASS_CACHE", "HF_HUB_ENABLE_HF_TRANSFER")
    packages = ["mysql-connector-python", "tiktoken==0.9", "huggingface-hub[hf_transfer]"]
    packages += ["secretstorage", "azure-keyvault-secrets"]
    lines = ("ENV " + " ".join(f"{name}=1" for name in names), f"RUN pip install {' '.join(packages)}")
    assert spec_of(place, *lines) == {
        "packages": {"python": packages},
        "environment": dict.fromkeys(names, "1"),
    }


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("debian:bookworm-slim", {"base": "debian-12"}),
        ("docker.io/library/debian:12.5", {"base": "debian-12"}),
        ("debian:bullseye-20240101@sha256:00", {"base": "debian-11"}),
        ("python:3.11", {"base": "debian-12", "python": "3.11"}),
        ("python:3.9-slim-bullseye", {"base": "debian-11", "python": "3.9"}),
        ("--platform=linux/amd64 python:3.11-slim AS x", {"base": "debian-12", "python": "3.11"}),
        (
            "pytorch/pytorch:2.13.0-cuda13.0-cudnn9",
            {"frameworks": ["pytorch@2.13.0"], "accelerator": "cuda@13.0"},
        ),
        ("pytorch/pytorch", {"frameworks": ["pytorch"]}),
        ("tensorflow/tensorflow:latest-gpu", {"frameworks": ["tensorflow"], "accelerator": "cuda"}),
        ("nvcr.io/nvidia/pytorch:25.01-py3", {"frameworks": ["pytorch"], "accelerator": "cuda"}),
        ("nvidia/cuda:13.0.1-devel-ubuntu24.04", {"accelerator": "cuda@13.0"}),
    ],
)
def test_images(reference: str, expected: dict[str, object], place: Path) -> None:
    spec = imported(place, f"FROM {reference}\n").spec
    assert spec == {"name": "some-thing", "version": "1", **expected}
    definition = imported(place, f"Bootstrap: docker\nFrom: {reference}\n", "x.def").spec
    assert definition == spec | {"name": "x"}


@pytest.mark.parametrize(
    "reference", ["ubuntu:24.04", "rockylinux:9", "debian:latest", "python:3.8-slim", "scratch"]
)
def test_images_that_no_base_matches(reference: str, place: Path) -> None:
    notes = imported(place, f"FROM {reference}\nRUN pip install less\n").notes
    assert notes[0].explanation.startswith("no base image matches")


@pytest.mark.parametrize(
    ("lines", "python"),
    [
        (["RUN pip install scipy>=1.11 'less<2' # a comment"], ["scipy>=1.11", "less<2"]),
        (
            ["RUN true && \\", "  python3 -m pip install \\", "  # comment", "", "  a \\", "  'b'; true"],
            ["a", "b"],
        ),
        (["RUN pip install a \\\r", "  b\r"], ["a", "b"]),
        (["RUN --mount=type=cache,target=/x A=1 sudo /usr/bin/pip3.11 -q install a"], ["a"]),
        (["RUN uv pip install --system a > /dev/null 2>&1 || true"], ["a"]),
        (["ARG V=1.2", 'RUN X="4" && pip install a==$V "b==${V}.3" c==$X'], ["a==1.2", "b==1.2.3", "c==4"]),
        (['ENV P="a b"', "ARG Q='c d' R=e", 'RUN S="f g" && pip install $P $Q $R ${S}'], list("abcdefg")),
        (["RUN pip install numpy 'NumPy<2' \"numpy[x] >= 1.20\""], ["numpy[x]<2,>=1.20"]),
        (["RUN pip install pip setuptools 'a; python_version>\"3\"'"], ['a; python_version>"3"']),
        (["RUN pip install -r requirements.txt"], ["pandas==2.2.3", "numpy"]),
        (
            ["COPY requirements.txt /tmp/", "RUN pip install -r /tmp/requirements.txt"],
            ["pandas==2.2.3", "numpy"],
        ),
        (["RUN pip install -r x.txt"], ["a", "b"]),
    ],
)
def test_python_packages(lines: list[str], python: list[str], place: Path) -> None:
    (place / "x.txt").write_text("\ufeffa\n-r src/y.txt\n")
    (place / "src/y.txt").write_text("b\n-r ../x.txt\n")
    assert spec_of(place, *lines)["packages"] == {"python": python}


@pytest.mark.parametrize(
    "line",
    [
        "RUN if [ -f x ]; then pip install a; else pip install b; fi",
        "RUN (cd /x && pip install a) >> log.txt 2>&1",
        "RUN pip install a | tee log",
        "RUN yes | pip install a || pip install b",
        'RUN ["pip", "install", "a"]',
        "RUN bash -lc 'set -e; pip install a'",
        "RUN <<EOT\npip install a\n# don't\nEOT",
        "RUN cat <<EOT > /x && pip install a\ndon't\nEOT",
        "RUN for p in a; do pip install $p; done",
        'RUN echo "open\\n\\\npip install a\nRUN pip install a',
        "RUN sudo -E conda run -n base pip install a",
        "RUN python3.11 -m venv /x && /x/bin/pip install ${V:-a}",
        "WORKDIR /w\nCOPY src/r.txt .\nRUN pip install -r r.txt",
        "COPY src /w\nRUN cd /w && pip install -r r.txt",
        "COPY src/env.yml /tmp/\nRUN mamba env update -n base --file /tmp/env.yml",
        "RUN micromamba install -y -c conda-forge a",
        "COPY src /w\nRUN pip install -e /w",
        "COPY src /w\nRUN cd /w && poetry install --only main",
        "COPY src/pyproject.toml /w/\nWORKDIR /w\nRUN pip install poetry==1.8 && uv sync --frozen",
        "COPY src/pyproject.toml .\nRUN uv pip install -r pyproject.toml",
        "RUN --mount=type=bind,source=src/r.txt,target=/tmp/r.txt pip install -r /tmp/r.txt",
        "RUN pip install a==$UNKNOWN",
        "RUN pip install b a && pip uninstall -y B",
        "RUN if [[ $x < 2 || $x == 1 && y > z ]]; then pip install a; fi",
        "RUN pip freeze | sort && env | grep -v x | head -3 && pip install a",
    ],
)
def test_what_a_line_contains_is_taken_in_spite_of_its_other_parts(line: str, place: Path) -> None:
    (place / "src/r.txt").write_text("a\n")
    (place / "src/env.yml").write_text("dependencies: [a]\n")
    (place / "src/pyproject.toml").write_text("[project]\nname = 'x'\ndependencies = ['a']\n")
    assert spec_of(place, *line.split("\n"))["packages"] == {"python": ["a"]}


@pytest.mark.parametrize(
    ("lines", "spec", "changed"),
    [
        (
            [
                "RUN wget https://example.org/v4.0/openmpi-4.0.2.tar.bz2 && ./configure --prefix=/opt/ompi",
                "ENV OMPI_DIR=/opt/ompi PATH=/opt/ompi/bin:/opt/x/bin:$PATH",
            ],
            {"mpi": "openmpi", "environment": {"PATH": {"prepend": "/opt/x/bin"}}},
            [
                "mpi: openmpi; the recipe has no `4.0.2`",
                "nothing lies at `/opt/ompi`",
                "nothing lies at `/opt/om",
            ],
        ),
        (
            ["RUN git clone -b v3.4.3 https://example.org/pmodels/mpich"],
            {"mpi": "mpich"},
            ["mpi: mpich; the recipe has no `3.4.3`"],
        ),
        (
            ["RUN pip install mpi4py==3.1.6"],
            {"mpi": "mpich"},
            ["mpi: its recipe brings mpi4py; `==3.1.6` is not used"],
        ),
        (
            ["RUN A_FLAG=1 pip install x"],
            {"packages": {"python": ["x"]}},
            ["wheels are not built: A_FLAG has no effect"],
        ),
        (
            ["RUN pip install triton torchvision==0.14.0 'torch<2'"],
            {"frameworks": ["pytorch"], "packages": {"python": ["torchvision"]}},
            [
                "without `==0.14.0`, as `pytorch` has another version",
                "frameworks: pytorch; the recipe has no `<2`",
            ],
        ),
        (
            ["RUN pip install torchvision"],
            {"frameworks": ["pytorch"], "packages": {"python": ["torchvision"]}},
            ["frameworks: pytorch, to which it belongs"],
        ),
        (
            ["RUN A=1 B=2 DEBIAN_FRONTEND=x pip install x"],
            {"packages": {"python": ["x"]}},
            ["wheels are not built: A, B have no effect"],
        ),
        (
            ["RUN DEBIAN_FRONTEND=noninteractive apt-get install -y less"],
            {"packages": {"system": ["less"]}},
            [],
        ),
        (
            ["RUN pip install a==1", "RUN pip install a==2"],
            {"packages": {"python": ["a==2"]}},
            ["packages.python, in place of `a==1`"],
        ),
        (
            ["RUN pip install 'a==1+$TAG' b==$V"],
            {"packages": {"python": ["a==1", "b"]}},
            ["`a==1`, as `+$TAG` depends on an unknown variable", "`b`, as `==$V` depends on an unknown"],
        ),
        (
            ["ENV PATH=/opt/conda/bin:$PATH", "ENV PATH=/a/bin:$PATH"],
            {"environment": {"PATH": {"prepend": "/a/bin"}}},
            ["nothing lies at `/opt/conda/bin`"],
        ),
        (
            ["ENV LANG=en_US.UTF-8 LC_ALL=C.utf8 LC_TIME=POSIX"],
            {"environment": {"LANG": "C.UTF-8", "LC_ALL": "C.utf8", "LC_TIME": "POSIX"}},
            ["environment: C.UTF-8, which every image has"],
        ),
        (
            ['ENV PYTHONPATH=${PYTHONPATH}:"/code" A="x y"B'],
            {"environment": {"PYTHONPATH": {"prepend": "/code"}, "A": "x yB"}},
            ["environment, in front of the image's own directories"],
        ),
        (
            ["ARG X", "ENV X=${X:-1}", 'ENV Y="8.0;9.0"'],
            {"environment": {"X": "1", "Y": "8.0;9.0"}},
            [],
        ),
        (
            ["ENV PATH=$PATH:/a/bin"],
            {"environment": {"PATH": {"prepend": "/a/bin"}}},
            ["environment, in front of the image's own directories"],
        ),
        (
            ["ENV LD_LIBRARY_PATH=/a:$UNKNOWN/lib:$LD_LIBRARY_PATH"],
            {"environment": {"LD_LIBRARY_PATH": {"prepend": "/a"}}},
            ["environment, without the parts that depend on an unknown variable"],
        ),
        (
            ["ENV LD_LIBRARY_PATH=/a/lib${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}"],
            {"environment": {"LD_LIBRARY_PATH": {"prepend": "/a/lib"}}},
            [],
        ),
        (
            ["RUN apt-get install cuda-toolkit-13-0 libcudnn9-cuda-13 less"],
            {"accelerator": "cuda@13.0", "packages": {"system": ["less"]}},
            [],
        ),
    ],
)
def test_what_is_changed_is_not_called_taken(
    lines: list[str], spec: object, changed: list[str], place: Path
) -> None:
    assert spec_of(place, *lines) == spec
    notes = imported(place, "\n".join(("FROM debian:12", *lines, ""))).notes
    found = sorted(note.explanation for note in notes if note.outcome == "changed")
    assert len(found) == len(changed)
    for explanation, beginning in zip(found, sorted(changed), strict=True):
        assert explanation.startswith(beginning)


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("python=3.11", "3.11"),
        ("python=3.11.4", "3.11"),
        ("python>=3.9,<3.12", ">=3.9,<3.12"),
        ("python=2.7.15", "2.7"),
        ("python<3.12", ">=3,<3.12"),
        ("python!=3.11", ">=3,!=3.11"),
    ],
)
def test_bounds_of_python_stay_bounds(text: str, python: str, place: Path) -> None:
    spec = imported(place, f"dependencies: ['{text}', less]\n", "environment.yml").spec
    assert spec["python"] == python


@pytest.mark.parametrize(
    "middle",
    [
        "FROM main AS final",
        "ARG B=main\nARG B\nFROM ${B}",
        "ARG B=main\nFROM ${B}",
        "FROM x AS other\nRUN pip install b\nFROM MAIN",
    ],
)
def test_a_stage_that_continues_another_contains_it(middle: str, place: Path) -> None:
    text = f"FROM debian:12 AS main\nRUN pip install a\n{middle}\nRUN pip install c\n"
    spec = imported(place, text).spec
    assert (spec["base"], spec["packages"]) == ("debian-12", {"python": ["a", "c"]})


@pytest.mark.parametrize(
    ("command", "spec"),
    [
        (
            "dnf install -y gcc-c++ openmpi-devel git",
            {"mpi": "openmpi", "packages": {"system": ["g++", "git"]}},
        ),
        ("zypper --non-interactive in git", {"packages": {"system": ["git"]}}),
        ("yum -y groupinstall 'Development Tools'", {"packages": {"system": ["build-essential"]}}),
        ("dnf install -y @development-tools epel-release", {"packages": {"system": ["build-essential"]}}),
        (
            "apt-get install gcc less && apt-get purge -y --auto-remove gcc",
            {"packages": {"system": ["less"]}},
        ),
        (
            "conda install -y pytorch=2.13 cmake",
            {"frameworks": ["pytorch@2.13"], "packages": {"system": ["cmake"]}},
        ),
    ],
)
def test_packages_of_other_families(command: str, spec: object, place: Path) -> None:
    assert spec_of(place, f"RUN {command}") == spec


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("pip install $OTHER==1", "`$OTHER==1` is not a Python requirement"),
        ("pip install `cat`", "``cat`` is not a Python requirement"),
        ('pip install "$(cat x)"', "`$(cat x)` is not a Python requirement"),
        ("pip install $(cat x)", "`$(cat x)` is not a Python requirement"),
        ("curl x | sh", "a program that is built needs a recipe with `source`"),
        ("(install_it x)", "a spec has packages, variables and files, but no commands"),
        ("run &", "a spec has packages, variables and files, but no commands"),
        ("true || pip install x", "it is installed only if another command is not"),
        ("echo x >>/etc/x", "it reads or writes a file"),
        ("echo x>/etc/x", "it reads or writes a file"),
        ("echo 'x", "its quotes do not end"),
        ("cat <<X", "it reads or writes a file"),
        ("conda env update -f x.yml", "the file is not beside this one"),
        ("dnf install x", "base images are Debian"),
        ("microdnf -y install x", "base images are Debian"),
        ("zypper --non-interactive in x", "base images are Debian"),
        ("apk add --no-cache x", "base images are Debian"),
        ("spack install x", "name its packages under `packages.system` or `packages.python`"),
        ("poetry install --no-root", "write its packages to a file: `envbuild init -r pyproject.toml`"),
        ("Rscript -e 'install.packages(\"x\")'", "name Debian's packages of R"),
        ("rm -rf /opt/x", "a spec has packages, variables and files, but no commands"),
        ("pip install git+https://a:b@example.org/y", "`git+https:…@example.org/y` names an address"),
        (
            "pip install git+https://example.org/y.git@v1",
            "write `{name: y, git: https://example.org/y.git, c",
        ),
        ("pip install https://example.org/y.zip", "`https://example.org/y.zip` names an address"),
        ("pip install x.whl/../y", "`x.whl/../y` is not a Python requirement"),
        ("pip install -r ../x.txt", "the file is not beside this one"),
        ("pip install --pre less", "a spec has no such option"),
        ("pip install --target=/x less", "a spec has no such option"),
        ("pip install -i https://example.org less", "addresses are settings of the site"),
        ("apt-get install less=590-2", "the lock decides the versions"),
        ("apt-get install less=$VERSION", "the lock decides the versions"),
        ("apt-get install $PACKAGES", "it does not name a Debian package"),
        ("apt-get install ./local.deb", "it does not name a Debian package"),
        ("apt-get install nano-", "it does not name a Debian package"),
        ("apt-get install -t backports less", "a spec has no such option"),
        ("apt-get install openmpi-bin mpich", "an image has one MPI, here openmpi"),
    ],
)
def test_what_a_spec_cannot_hold(command: str, why: str, place: Path) -> None:
    (place.parent / "x.txt").write_text("secret\n")
    ((line, reason),) = unsupported(place, "RUN true && \\", f"  {command}")
    assert (line, reason[: len(why)]) == (2, why)


@pytest.mark.parametrize(
    "command",
    [
        *("apt-get clean", "/usr/bin/apt-get -y upgrade", "rm -rf /var/lib/apt/lists/* /tmp/x", "set -ex"),
        *("pip cache purge", "python3 -m venv /venv", "conda clean -a", "apt-get install python3-pip"),
        *("pip install --no-cache-dir -U -qq --break-system-packages --timeout 60 less",),
        *("(cd x)", "for x in a; do echo $x; done", "mkdir -p /x && chmod 755 /x", "source /x/activate"),
        *("bash Miniconda3-latest.sh -b -p /x", "[ -f x ] && :", "pip install less > /dev/null 2>&1"),
    ],
)
def test_commands_that_an_image_does_not_need_are_skipped(command: str, place: Path) -> None:
    assert unsupported(place, f"RUN {command}", "ENV A=1") == []


@pytest.mark.parametrize(
    ("lines", "mpi"),
    [
        (["RUN pip install mpi4py"], "mpich"),
        (["RUN pip install mpi4py", "RUN apt-get install libopenmpi-dev"], "openmpi"),
        (["RUN apt-get install openmpi-bin=4 openmpi-common", "RUN pip install mpi4py"], "openmpi"),
        (
            ["ARG V=9.9.9", "RUN wget https://example.org/openmpi-$V.tar.gz && cd openmpi-$V && make"],
            "openmpi",
        ),
        (["RUN git clone https://example.org/pmodels/mpich.git"], "mpich"),
        (["RUN git clone https://example.org/open-mpi/ompi"], "openmpi"),
    ],
)
def test_an_mpi(lines: list[str], mpi: str, place: Path) -> None:
    assert spec_of(place, *lines) == {"mpi": mpi}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("torch==2.13.0+cu126 torch", {"frameworks": ["pytorch@2.13.0"], "accelerator": "cuda"}),
        ("torch~=2.13.0 triton", {"frameworks": ["pytorch@~=2.13.0"]}),
        (
            "torch --index-url https://example.org/whl/cu130/",
            {"frameworks": ["pytorch"], "accelerator": "cuda@13.0"},
        ),
        ("torch -f https://example.org/whl/rocm6.4", {"frameworks": ["pytorch"], "accelerator": "rocm"}),
        ("jax[cuda12] jaxlib", {"frameworks": ["jax"], "accelerator": "cuda@12"}),
        (
            "tensorflow-gpu keras",
            {"frameworks": ["tensorflow", "keras"], "accelerator": "cuda", "mpi": "mpich"},
        ),
        (
            "torch==1.9.0 --index-url https://example.org/whl/cpu",
            {"frameworks": ["pytorch@1.9.0"], "proven": False},
        ),
    ],
)
def test_frameworks_and_accelerators(words: str, expected: dict[str, object], place: Path) -> None:
    assert spec_of(place, f"RUN pip install {words}") == expected


@pytest.mark.parametrize(
    ("lines", "environment"),
    [
        (["ENV A=1 B='two words'", 'ENV C="$A"-x'], {"A": "1", "B": "two words", "C": "1-x"}),
        (["ENV A=1", "ENV C=$A-x D="], {"A": "1", "C": "1-x", "D": ""}),
        (["ENV A=old", "ENV A=new B=$A"], {"A": "new", "B": "old"}),
        (["ENV OLD two words"], {"OLD": "two words"}),
        (["ENV PYTHONPATH=/app:/lib/app"], {"PYTHONPATH": {"prepend": "/app:/lib/app"}}),
        (['ENV A "/a b"', "ENV PATH=/miniconda/bin:$PATH"], {"A": "/a b"}),
        (["ENV A=/a", "ENV PATH=/x:$A:${PATH}"], {"A": "/a", "PATH": {"prepend": "/x:/a"}}),
        (["ENV PIP_NO_CACHE_DIR=1 DEBIAN_FRONTEND=x E=1"], {"E": "1"}),
        (["ENV PATH=/usr/bin HOME=/x LD_LIBRARY_PATH=/y E=$E E2=1"], {"E2": "1"}),
        (["ENV X=1", "ENV A='$X' E=1", "ENV B=\\$X"], {"X": "1", "E": "1"}),
        # spython reads B=1 as part of A.
        (["ENV A= B=1", "ENV E=1"], {"E": "1"}),
        (["ENV E=1", f"ENV A={'$E' * 3000}", f"ENV B={'x' * 5000}"], {"E": "1"}),
        (
            ["ENV N=1e3 O=0o17 X=0x1F D=.5 Y=yes Z=null T=~ U=1_000"],
            {
                "N": "1e3",
                "O": "0o17",
                "X": "0x1F",
                "D": ".5",
                "Y": "yes",
                "Z": "null",
                "T": "~",
                "U": "1_000",
            },
        ),
    ],
)
def test_variables_of_an_image(lines: list[str], environment: object, place: Path) -> None:
    assert spec_of(place, *lines)["environment"] == environment
    loaded = load_spec(import_file(place / "Dockerfile").text.encode(), place)
    assert loaded.model_dump()["environment"] == environment


def test_a_definition_file(place: Path) -> None:
    text = (
        "Bootstrap: debootstrap\nOSVersion: bookworm\n%arguments\n  v=1.17\n%environment\n  A='x y'\n"
        "  export B={{ v }}\n  export C=1; export D=1\n%files\n  data.csv /srv/\n  train.py\n"
        "%files from build\n  data.csv /other\n%post\n  pip install scipy=={{ v }}\n"
        "  export PATH=$X:$PATH\n  python3 -c '\n  pip install a\n  '\n  pip install b\n"
    )
    proposal = imported(place, text, "x.def")
    assert proposal.spec == {
        "name": "x",
        "version": "1",
        "base": "debian-12",
        "packages": {"python": ["scipy==1.17", "b"]},
        "environment": {"A": "x y", "B": "1.17", "C": "1", "D": "1"},
        "files": [{"source": "data.csv", "target": "/srv/data.csv"}],
    }
    assert [note.line for note in proposal.notes if note.outcome == "unsupported"] == [11, 13, 17]


def test_a_requirements_file(place: Path) -> None:
    spec = imported(place, "torch==2.13.0\nscipy  # why\n-r more.txt\n", "requirements-gpu.txt").spec
    assert spec == {
        "name": "some-thing",
        "version": "1",
        "mpi": "mpich",
        "frameworks": ["pytorch@2.13.0"],
        "packages": {"python": ["scipy"]},
    }


def test_other_distributions_of_a_recipe_are_left_to_it(place: Path) -> None:
    proposal = imported(place, "torch==2.13.0\ntriton==3.6.0\n", "freeze.txt")
    assert proposal.spec["frameworks"] == ["pytorch@2.13.0"]
    assert "packages" not in proposal.spec
    assert [(note.line, note.outcome, note.explanation) for note in proposal.notes] == [
        (1, "taken", "frameworks: pytorch@2.13.0"),
        (2, "skipped", "the recipe `pytorch` decides on it"),
    ]


# Each would take minutes if the time grew with the square of the length.
@pytest.mark.parametrize(
    "command",
    [
        "echo a" + ">1" * 100_000,
        "if " * 200_000,
        "A=1 " * 100_000 + "pip install x",
        "rm " + "-rf " * 100_000 + "$x",
        "/" * 400_000,
    ],
    ids=["redirections", "keywords", "variables", "options", "slashes"],
)
def test_a_hostile_command_is_read_in_time(command: str, place: Path) -> None:
    assert imported(place, f"FROM debian:12\nRUN {command}\n").spec["base"] == "debian-12"


def test_names_that_no_file_system_has_are_noted(place: Path) -> None:
    name = "x" * 300
    assert unsupported(place, f"COPY {name} /opt/x", f"COPY {name}/y /opt/y") == [
        (1, "there is no such file beside it; name the files of a directory one by one"),
        (2, "there is no such file beside it; name the files of a directory one by one"),
    ]


def test_files(place: Path) -> None:
    (place.parent / "secret.txt").write_text("secret\n")
    (place / "link.txt").symlink_to("../secret.txt")
    lines = [
        "COPY train.py ./data.csv /srv/",
        "COPY --chown=x data.csv /y",
        "COPY src /srv/src",
        "COPY nowhere *.csv ../secret.txt link.txt /x/",
        "COPY /etc/passwd /x/",
        "COPY data.csv relative",
        "COPY data.csv /opt/env/x",
        "ADD https://example.org/x data.tar.gz /x/",
        'COPY ["data.csv", "/z"]',
    ]
    assert spec_of(place, *lines)["files"] == [
        {"source": "train.py", "target": "/srv/train.py", "executable": True},
        {"source": "data.csv", "target": "/srv/data.csv"},
        {"source": "data.csv", "target": "/y"},
        {"source": "data.csv", "target": "/x/data.csv"},
        {"source": "data.csv", "target": "/relative"},
    ]
    assert [line for line, _ in unsupported(place, *lines)] == [2, 3, 4, 4, 4, 5, 7, 8, 8, 9]


def test_the_last_stage_makes_the_image(place: Path) -> None:
    text = "FROM golang AS build\nRUN apt-get install less\nFROM debian:12\nRUN apt-get install git\n"
    proposal = imported(place, text)
    assert proposal.spec["packages"] == {"system": ["git"]}
    assert [(note.line, note.outcome) for note in proposal.notes] == [
        (1, "unsupported"),
        (3, "taken"),
        (4, "taken"),
    ]


@pytest.mark.parametrize(
    "copied",
    [
        "--from=b /opt/tools /opt/tools",
        "--from=b /opt/venv /opt/venv",
        "--chown=1 --from=0 /root/.local /x",
        "--from=B /w/.venv .",
    ],
)
def test_a_stage_whose_python_environment_is_copied_is_read(copied: str, place: Path) -> None:
    made = "RUN python -m venv /opt/tools\nRUN pip install a"
    stages = f"FROM python:3.11 AS b\n{made}\nFROM golang\nRUN pip install c\nFROM debian:12"
    text = f"{stages}\nCOPY {copied}\n"
    spec = imported(place, text).spec
    assert (spec["base"], spec["packages"]) == ("debian-12", {"python": ["a"]})


def test_a_stage_of_a_definition_file_whose_environment_is_copied_is_read(place: Path) -> None:
    stage = "Bootstrap: docker\nFrom: debian:12\n"
    text = f"{stage}Stage: build\n%post\n  pip install a\n{stage}%files from build\n  /opt/venv /opt/venv\n"
    assert imported(place, text, "x.def").spec["packages"] == {"python": ["a"]}


def test_an_image_that_brings_an_installer_alone_is_not_needed(place: Path) -> None:
    stages = "FROM continuumio/miniconda3:latest AS b\nRUN pip install a\nFROM debian:12"
    proposal = imported(place, f"{stages}\nCOPY --from=b /opt/conda /opt/conda\n")
    assert [(note.line, note.outcome) for note in proposal.notes] == [
        (2, "taken"),
        (3, "taken"),
        (1, "skipped"),
        (4, "skipped"),
    ]


def test_a_section_that_is_not_read_has_one_note(place: Path) -> None:
    text = "Bootstrap: docker\nFrom: debian:12\n%setup\n  touch x\n%runscript\n  if x; then\n    y\n  fi\n"
    assert [(note.line, note.text) for note in imported(place, text, "x.def").notes[:2]] == [
        (4, "%setup"),
        (6, "%runscript"),
    ]


def test_any_python_3_is_every_base(place: Path) -> None:
    proposal = imported(place, "dependencies: [python=3, pip: [less]]\n", "environment.yml")
    assert "python" not in proposal.spec
    assert "every base image has Python 3" in [note.explanation for note in proposal.notes]


def test_a_release_of_cuda_that_no_recipe_has(place: Path) -> None:
    proposal = imported(place, "FROM nvidia/cuda:9.0-devel\nENV PATH=$CONDA_PREFIX/bin:$PATH\n")
    assert proposal.spec["accelerator"] == "cuda"
    assert proposal.notes[0].explanation.startswith("accelerator: cuda; the recipes have ")
    assert "environment" not in proposal.spec


def test_nothing_understood(place: Path) -> None:
    note = imported(place, "FROM ubuntu:24.04\nRUN make \x1b[31m\u202e\n").notes
    assert "nothing in it fits into a spec" in [item.explanation for item in note if item.line == 1]
    assert note[-1].text == "make \ufffd[31m\ufffd"


RECIPES = list_recipes().recipes
BASES = read_bases()


@given(
    st.text(alphabet="FROMRUNEVCPY ab:\n\\'\"$=#%<{}-;&|()>`\0", max_size=80),
    st.sampled_from(["FROM x\n", "FROM x\nRUN ", "FROM x\nENV A=", "Bootstrap: docker\n%post\n"]),
)
def test_no_file_is_too_odd(text: str, start: str) -> None:
    proposal = propose(read_statements(start + text, Path("x")), "x", Path(), RECIPES, BASES)
    assert {note.line for note in proposal.notes} <= set(range(1, (start + text).count("\n") + 2))


@pytest.mark.parametrize(
    "text",
    [
        "ENV A0=xxxxxxxxxx\n" + "".join(f"ENV A{at + 1}={f'$A{at}' * 10}\n" for at in range(12)),
        "RUN a " + "\\\n" * 60_000,
        "RUN " + "a" * 200_000,
        "RUN " + "'" * 30_001,
        "RUN " + "a;" * 16_000,
        "RUN pip install a" + "[" * 20_000,
        "ENV " + "A=1 " * 20_000,
        "RUN cat <<X\n" + "x\n" * 60_000,
        "COPY \0 /x\nRUN pip install -r \0\nENV A=\0\n",
    ],
)
def test_a_hostile_file_is_bounded(text: str, place: Path) -> None:
    (place / "Dockerfile").write_text("FROM debian:12\n" + text)
    result = import_file(place / "Dockerfile")
    assert len(result.text) < 2_000_000
    assert all(len(note.text) <= 100 for note in result.proposal.notes)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"FROM x\n\xff\xfe", "is not UTF-8"),
        (b"name: x\n", "is not a Dockerfile, definition file, requirements file or conda environment"),
        (b"", "is not a Dockerfile, definition file, requirements file or conda environment"),
        (b"#" * (2 << 20), "is too large"),
    ],
)
def test_files_that_are_refused(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(EnvbuildError, match=problem):
        import_file(tmp_path / "x")


def test_a_proposal_can_be_locked(place: Path) -> None:
    (place / "Dockerfile").write_text(
        "\ufeffFROM python:3.11-slim-bookworm\nRUN apt-get update && apt-get install -y less\n"
        "RUN pip install torch mpi4py tensorflow scipy==1.17.1\n"
    )
    import_file(place / "Dockerfile", output=place / "spec.yaml")
    resolved = read_spec(place / "spec.yaml")
    assert {chosen.recipe.name for chosen in resolved.recipes} == {"mpich", "pytorch", "tensorflow"}
    assert (resolved.base.name, resolved.spec.packages.system) == ("debian-12", ("less",))


def test_an_environment_whose_index_does_not_answer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "without_wheels", lambda *_: None)
    proposal = imported(place, "dependencies: [ncl]\n", "environment.yml")
    assert proposal.spec["packages"] == {"python": ["ncl"]}
    assert "no index could be asked which of them have wheels" in [
        note.explanation for note in proposal.notes
    ]


@pytest.mark.parametrize(
    ("package", "key", "value"),
    [
        ("python=3.13.1", "python", "3.13"),
        ("cudatoolkit=12.9", "accelerator", "cuda@12.9"),
        ("ray-default>=2", "frameworks", ["ray@>=2"]),
        ("conda-forge::Gxx_linux-64 12.*", "packages", {"system": ["g++"]}),
        ("mpich", "mpi", "mpich"),
        ("librosa", "packages", {"python": ["librosa"]}),
        ("cuda-version>=12.9", "accelerator", "cuda"),
        ("jax>=0.4=cuda12*", "accelerator", "cuda"),
        ("torchaudio>=0.22.0=cpu*", "packages", {"python": ["torchaudio>=0.22.0"]}),
        ("python-dateutil=2.9.0.post0=pyh_1", "packages", {"python": ["python-dateutil==2.9.0.post0"]}),
        ("less=$V", "packages", {"python": ["less"]}),
        ("hhsuite", "packages", {"system": ["hhsuite"]}),
        ("kalign2=2.04=h1", "packages", {"system": ["kalign"]}),
        ("r-data.table", "packages", {"system": ["r-cran-data.table"]}),
        ("bioconductor-deseq2", "packages", {"system": ["r-bioc-deseq2"]}),
    ],
)
def test_packages_of_conda(package: str, key: str, value: object, place: Path) -> None:
    proposal = imported(place, f"name: x\ndependencies:\n- {package}\n", "environment.yml")
    assert proposal.spec[key] == value


def test_what_has_another_version_than_in_a_conda_environment_is_noted(place: Path) -> None:
    text = "dependencies: [samtools=1.3, cuda-version>=12.9, less=$V, mpi=1.0=openmpi]\n"
    notes = imported(place, text, "environment.yml").notes
    assert [(note.text, note.explanation) for note in notes if note.outcome == "changed"] == [
        ("samtools=1.3", "packages.system: samtools, in Debian's version"),
        ("cuda-version>=12.9", "`>=12.9` is not used: `accelerator` takes one release"),
        ("less=$V", "without `=$V`, which depends on an unknown variable"),
    ]
    assert [note.text for note in notes if note.outcome == "skipped"] == ["mpi=1.0=openmpi"]


@pytest.mark.parametrize(
    "line",
    [
        f"x @ git+https://example.org/a/y.git@{'c' * 40}",
        f"git+https://example.org/a/y.git@{'c' * 40}#egg=x",
    ],
)
def test_a_commit_of_git_is_taken(line: str, place: Path) -> None:
    entry = {"name": "x", "git": "https://example.org/a/y.git", "commit": "c" * 40}
    assert imported(place, f"{line}\n", "r.txt").spec["packages"] == {"python": [entry]}
    assert spec_of(place, f"RUN pip install '{line}'")["packages"] == {"python": [entry]}


@pytest.mark.parametrize(
    ("head", "address"),
    [
        ("Bootstrap: library\nFrom: lab/tools:1", "apptainer pull image.sif library://lab/tools:1"),
        ("From: lab/tools:1\nBootstrap: docker", "apptainer pull image.sif docker://lab/tools:1"),
        ("Bootstrap: localimage\nFrom: base.sif", "envbuild extend base.sif -r requirements.txt"),
    ],
)
def test_an_image_is_named_as_it_is_fetched(head: str, address: str, place: Path) -> None:
    notes = imported(place, f"{head}\n%post\n  pip install less\n", "x.def").notes
    assert any(address in note.explanation for note in notes)


def test_an_image_whose_name_is_unknown_is_not_offered(place: Path) -> None:
    notes = imported(place, "ARG X\nFROM lab/$X\nRUN pip install less\n").notes
    assert notes[0].explanation == "it depends on an unknown variable: write its value into the file"


def test_comments_and_activations_in_an_environment_are_passed_over(place: Path) -> None:
    text = (
        "Bootstrap: docker\nFrom: debian:12\n%environment\n"
        "  export A=1 # why\n  . /opt/conda/etc/profile.d/conda.sh\n  conda activate x\n"
        "  export B=/opt/conda/x\n"
    )
    proposal = imported(place, text, "x.def")
    assert proposal.spec["environment"] == {"A": "1"}
    assert [note.line for note in proposal.notes if note.outcome == "unsupported"] == []


def test_a_file_that_lies_below_a_directory_above_is_found(place: Path) -> None:
    (place / "docker").mkdir()
    text = "FROM debian:12\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\n"
    (place / "docker/Dockerfile").write_text(text)
    notes = import_file(place / "docker/Dockerfile").proposal.notes
    assert [note.explanation for note in notes if note.outcome == "unsupported"] == [
        "there is no such file beside it, but below `..`: copy this file to there, and import the copy",
        "the file is not beside this one, but below `..`: copy this file to there, and import the copy",
    ]


def test_files_of_a_pattern_are_taken(place: Path) -> None:
    spec = spec_of(place, "COPY data.c* src/*.txt /data")
    assert spec["files"] == [{"source": "data.csv", "target": "/data/data.csv"}]
    spec = spec_of(place, "COPY *.py m*.txt /data/")
    assert [entry["target"] for entry in spec["files"]] == ["/data/train.py", "/data/more.txt"]


def test_a_file_without_packages_is_said(place: Path) -> None:
    text = "[project]\nname = 'x'\nversion = '1'\nrequires-python = '>=3.9'\n"
    notes = imported(place, text, "pyproject.toml").notes
    assert [note.explanation for note in notes if note.outcome == "unsupported"] == ["it names no package"]


def test_a_file_that_is_copied_into_a_directory_of_every_image_keeps_its_name(place: Path) -> None:
    spec = spec_of(place, "COPY train.py /usr/local/bin", "COPY data.csv /data")
    assert [entry["target"] for entry in spec["files"]] == ["/usr/local/bin/train.py", "/data"]


def test_what_is_lost_of_a_conda_environment_is_noted(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "dependencies:\n- pytorch=2.5.1\n- pytorch-cuda=12.1\n- cudatoolkit\n- faiss-gpu\n- pip: [einops]\n"
    )
    (place / "environment.yml").write_text(text)
    result = import_file(place / "environment.yml")
    spec = result.proposal.spec
    assert (spec["frameworks"], spec["proven"], spec["accelerator"]) == (["pytorch@2.5.1"], False, "cuda")
    assert [f"{note.line} {note.outcome}: {note.explanation}" for note in result.proposal.notes] == [
        "2 changed: frameworks: pytorch@2.5.1, with `proven: false`: it has no test result",
        "3 changed: accelerator: cuda; the recipe `pytorch` has cuda@13.0, cuda@13.2",
        "5 changed: `faiss-cpu` takes its place, which does not use GPUs",
        "5 taken: packages.python",
        "6 taken: packages.python",
        "4 skipped: the accelerator is chosen already",
    ]
    assert format_notes(result)[-1].endswith(
        ": names from pip sections are not looked up; `envbuild lock` does that"
    )


def test_hashes_that_are_not_taken_over_are_noted_once(place: Path) -> None:
    proposal = imported(place, "numpy --hash=sha256:00\nscipy --hash=sha256:11\n", "locked.txt")
    assert proposal.spec["packages"] == {"python": ["numpy", "scipy"]}
    assert [(note.line, note.explanation) for note in proposal.notes if note.outcome == "unsupported"] == [
        (1, "hashes are not taken over, here and below; `envbuild init -r FILE` keeps them")
    ]


def test_every_entry_of_the_table_can_be_taken() -> None:
    table = conda_table()
    spec = {"name": "x", "version": "1", "packages": {}}
    spec["packages"] = {"python": (*table.wheels.values(),), "system": (*table.debian.values(),)}
    assert EnvSpec.model_validate(spec)
    assert not {name for name in (*table.wheels, *table.debian, *table.cuda) if name != name.lower()}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("channels: [x]\n", "`environment.yml` is not a conda environment"),
        ("dependencies: [a\n", "is missing"),
        ("dependencies: &a [*a]\n", "alias"),
    ],
)
def test_environments_that_cannot_be_read(text: str, problem: str, place: Path) -> None:
    with pytest.raises(EnvbuildError) as caught:
        imported(place, text, "environment.yml")
    assert problem in render(caught.value)


def test_a_base_with_mistakes_is_not_proposed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place))
    bases = place / "envbuild/base-images"
    bases.mkdir(parents=True)
    (bases / "debian-12.yaml").write_text("name: debian-12\n")
    assert "base" not in imported(place, "FROM debian:12\n").spec
    assert imported(place, "FROM debian:11\n").spec["base"] == "debian-11"


def test_an_existing_output_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("mine\n")
    with pytest.raises(RequestError, match=r"spec\.yaml` already exists"):
        import_file(tmp_path / "Dockerfile", output=tmp_path / "spec.yaml")
    assert (tmp_path / "spec.yaml").read_text() == "mine\n"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.def"
    path.write_text("Bootstrap: docker\nFrom: debian:12\n%post\n    pip install scipy\n    make\n")
    with pytest.raises(SystemExit) as ended:
        main(["import", str(path)])
    assert ended.value.code == 0
    printed = capsys.readouterr()
    assert "name: train\n" in printed.out
    assert printed.err.splitlines() == [
        f"{path}:5: unsupported: make: a program that is built needs a recipe with `source`; keep a"
        " downloaded file beside the spec",
        f"{path}:2: taken: From debian:12: base: debian-12",
        f"{path}:4: taken: scipy: packages.python",
        f"{path}: skipped, as an image does not need them: Bootstrap: docker",
        f"{path}: 2 taken, 0 changed, 1 unsupported, 1 skipped",
        f"{path}: names of pip and Debian packages are not looked up; `envbuild lock` does that",
    ]
    with pytest.raises(SystemExit):
        main(["import", str(path), "--json", "-o", str(tmp_path / "spec.yaml")])
    data = json.loads(capsys.readouterr().out)
    assert data["spec"]["packages"] == {"python": ["scipy"]}
    assert [note["line"] for note in data["notes"]] == [5, 2, 4, 1]
    written = (tmp_path / "spec.yaml").read_text()
    assert written.startswith("# Proposed from train.def")
    assert "# line 5: unsupported: make" in written


def test_notes_are_printed_or_written_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "Dockerfile").write_text("FROM debian:12\nRUN make\n")
    for options in ([], ["-o", str(place / "spec.yaml")]):
        with pytest.raises(SystemExit):
            main(["import", str(place / "Dockerfile"), *options])
        printed = capsys.readouterr()
        texts = printed.out + printed.err + ((place / "spec.yaml").read_text() if options else "")
        assert texts.count("a program that is built needs a recipe") == 1


def test_what_lock_would_refuse_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "x.def").write_text(
        "Bootstrap: docker\nFrom: nvcr.io/nvidia/pytorch:25.06-py3\n%post\n pip install horovod\n"
    )
    with pytest.raises(SystemExit):
        main(["import", str(place / "x.def")])
    assert (
        "`envbuild lock` would refuse it: the recipe `horovod` has no variant for `cuda`"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", ["bad\udcff.def", "two\nname: evil.def", "esc\x1b[2J.def"])
def test_the_name_of_the_file_stays_in_its_comment(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("FROM debian:12\nRUN make everything\n")
    result: Imported = import_file(tmp_path / name, output=tmp_path / "spec.yaml")
    assert (tmp_path / "spec.yaml").read_text() == result.text
    assert all(char.isprintable() or char == "\n" for char in result.text)
    assert "\nname: evil" not in result.text


@pytest.mark.parametrize(
    ("name", "head", "line"),
    [
        ("Dockerfile", "FROM debian:12\n", "ENV A=1\n"),
        ("environment.yml", "dependencies: [python=3.11]\nvariables:\n", "  A{}: a\n"),
        ("requirements.txt", "", "p{}\n"),
    ],
)
def test_a_file_of_very_many_lines_is_refused(name: str, head: str, line: str, tmp_path: Path) -> None:
    source = tmp_path / name
    source.write_text(head + "".join(line.format(number) for number in range(5001)))
    with pytest.raises(RequestError, match="more than 5000 instructions, packages and variables"):
        import_file(source)


SECRET = "Xq7Tzz"


@pytest.mark.redteam
@pytest.mark.parametrize(
    "line",
    [
        "-r https://u:S@h/x.txt",
        "-r //u:S@h/x.txt",
        "-r u:S@h:x.txt",
        "-r S@h:x.txt",
        r"-r https:\\u:S@h\r.txt",
        "-r ${URL}u:S@h/r.txt",
        "-c HTTPS:/u:S@h/r.txt",
        "-f HTTPS:u:S@h/r.txt",
        "-f u:S@h/r",
        "-f wheels?token=S",
        "--extra-index-url https://u:S@h/",
        '--header "Authorization: Bearer S"',
        'foo --config-settings "t=S"',
        'foo --global-option="--token=S"',
        "u:S@h/foo-1-py3-none-any.whl",
        "foo@https://u:S@h/foo",
        "foo @ git+https://S@h/x.git@main",
        "TOKEN=S",
        "Authorization: Bearer S",
        "machine h login u password S",
    ],
)
def test_no_line_of_a_requirements_file_shows_a_secret(place: Path, line: str) -> None:
    """The same rule decides in a proposal, in its notes, and in errors of requirements files."""
    listed = place / "listed.txt"
    listed.write_text(re.sub(r"\bS\b", SECRET, line) + "\n")
    result = import_file(listed)
    assert SECRET not in result.text + "".join(format_notes(result))
    try:
        remarks = "".join(read_request(files=[listed]).remarks)
    except EnvbuildError as error:
        remarks = render(error)
    assert SECRET not in remarks

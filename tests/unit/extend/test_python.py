"""Finding the Pythons of images that anyone made, and what is installed for them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import RequestError
from envbuild.extend.python import choose_python, find_pythons, owned_files, probe_python
from envbuild.preflight import distributions
from envbuild.system.process import Finished
from tests.support.foreign_images import (
    ANSWER,
    IMAGE,
    PYTHON,
    SITE,
    Answering,
    Tree,
    distribution,
    opened,
    probed,
)

ELF = b"\x7fELF"


def test_each_python_counts_once_and_a_virtual_environment_is_another(tmp_path: Path) -> None:
    tree: Tree = {
        "/usr/bin/python3": ("python3.11",),
        "/usr/bin/python3.11": ELF,
        "/bin": ("usr/bin",),
        "/usr/local/bin/python3": ("/opt/conda/bin/python3",),
        "/opt/conda/bin/python3": ("python3.12",),
        "/opt/conda/bin/python3.12": ELF,
        "/opt/conda/envs/a/bin/python3": ELF,
        "/venv/bin/python3": ("/usr/bin/python3",),
        "/venv/pyvenv.cfg": "home = /usr/bin\n",
        "/opt/gone/bin/python3": ("python3.9",),
        "/opt/round/bin/python3": ("python3",),
        "/opt/host/bin/python3": ("../../../../../../../usr/bin/env-of-the-host",),
    }
    with opened(tmp_path, tree) as image:
        assert find_pythons(image) == (
            "/opt/conda/bin/python3",
            "/opt/conda/envs/a/bin/python3",
            "/usr/bin/python3",
            "/venv/bin/python3",
        )
        with pytest.raises(RequestError, match=r"several Pythons, .*:\n  /opt/conda/bin/python3\n") as caught:
            choose_python(image, None, IMAGE, str)
        assert "--python-executable" in caught.value.hint
        assert choose_python(image, "/usr/bin/python3.11", IMAGE, str) == "/usr/bin/python3.11"
        with pytest.raises(RequestError, match=r"has no program `/usr/bin/python3.9`"):
            choose_python(image, "/usr/bin/python3.9", IMAGE, str)


@pytest.mark.parametrize(
    ("search_path", "chosen"),
    [
        ("/not/there:/opt/conda/bin:/usr/bin", "/opt/conda/bin/python3"),
        ("/bin:/venv/bin", "/usr/bin/python3"),
        ("/data:/venv/bin:/usr/bin", "/venv/bin/python3"),
        # Python 2 is no Python for packages.
        ("/old/bin:/usr/bin", "/usr/bin/python3"),
        # `python` is another one than `python3`.
        ("/usr/local/bin:/usr/bin", None),
        ("/bin:/opt/conda/bin", None),
        # A program that chooses one.
        ("/shims:/usr/bin", None),
        ("usr/bin::.", None),
        ("", None),
    ],
)
def test_of_several_pythons_path_chooses(search_path: str, chosen: str | None, tmp_path: Path) -> None:
    tree: Tree = {
        "/usr/bin/python3": ("python3.11",),
        "/usr/bin/python3.11": ELF,
        "/bin": ("usr/bin",),
        "/opt/conda/bin/python3": ELF,
        "/opt/conda/bin/python": ("python3",),
        "/venv/bin/python3": ("/usr/bin/python3",),
        "/venv/pyvenv.cfg": "home = /usr/bin\n",
        "/usr/local/bin/python": ("/opt/conda/bin/python",),
        "/old/bin/python": ("python2.7",),
        "/old/bin/python2.7": ELF,
        "/shims/python3": "#!/bin/sh\n",
        "/data/python3": "not a program",
    }
    with opened(tmp_path, tree) as image:
        if chosen is not None:
            assert choose_python(image, None, IMAGE, lambda: search_path) == chosen
            return
        with pytest.raises(RequestError, match="its PATH does not choose one"):
            choose_python(image, None, IMAGE, lambda: search_path)


def test_an_image_without_python_says_so(tmp_path: Path) -> None:
    with opened(tmp_path, {"/bin/sh": ELF}) as image, pytest.raises(RequestError, match="has no Python"):
        choose_python(image, None, IMAGE, str)


def test_what_is_installed_is_read_in_the_order_of_python(tmp_path: Path) -> None:
    debian = "/usr/lib/python3/dist-packages"
    trees = (
        PYTHON,
        distribution("numpy", "1.26.4", 'pytest; extra == "test"'),
        distribution("numpy", "1.24.2", site=debian),
        {
            f"{debian}/six-1.16.0.egg-info": "Metadata-Version: 1.1\nName: six\nVersion: 1.16.0\n",
            f"{debian}/PyYAML-6.0.egg-info/PKG-INFO": "Metadata-Version: 1.1\nName: PyYAML\nVersion: 6.0\n",
            f"{debian}/old-1.egg-info/PKG-INFO": "Name: old\nVersion: 1\n",
            f"{debian}/old-1.egg-info/requires.txt": "six\n\n[all]\nPyYAML>=5\n",
        },
    )
    with opened(tmp_path, *trees) as image:
        python = probed(image, sites=[SITE, debian, "/not/there"])
    assert (python.executable, python.version, python.abi) == ("/usr/local/bin/python3", "3.11", "cp311")
    assert {name: one.version for name, one in python.installed.items()} == {
        "numpy": "1.26.4",
        "six": "1.16.0",
        "pyyaml": "6.0",
        "old": "1",
    }
    assert python.installed["old"].requires == ("six", 'PyYAML>=5; extra == "all"')
    assert python.installed["numpy"].site == SITE


def test_what_lies_elsewhere_on_the_search_path_is_installed(tmp_path: Path) -> None:
    """Spack and EasyBuild set PYTHONPATH, setuptools' develop and eggs have `.pth` files."""
    spack, project, egg = "/opt/spack/lib/python3.11/site-packages", "/src/tool", f"{SITE}/egg-3.0-py3.11.egg"
    trees = (
        PYTHON,
        distribution("numpy", "1.26.4", site=spack),
        distribution("numpy", "2.1.0"),
        {
            f"{SITE}/easy-install.pth": f"./egg-3.0-py3.11.egg\n{project}\n",
            f"{SITE}/tool.egg-link": f"{project}\n.",
            f"{project}/tool.egg-info/PKG-INFO": "Metadata-Version: 1.1\nName: tool\nVersion: 4\n",
            f"{egg}/EGG-INFO/PKG-INFO": "Metadata-Version: 1.1\nName: egg\nVersion: 3.0\n",
            f"{egg}/EGG-INFO/requires.txt": "numpy\n",
            f"{SITE}/idle-1.0-py3.11.egg/EGG-INFO/PKG-INFO": "Name: idle\nVersion: 1.0\n",
        },
    )
    with opened(tmp_path, *trees) as image:
        python = probed(image, sites=[SITE], path=[spack, "/usr/lib/python311.zip", SITE, egg, project])
    found = {name: (package.version, package.site) for name, package in python.installed.items()}
    assert found == {
        "numpy": ("1.26.4", spack),
        "egg": ("3.0", egg),
        "tool": ("4", project),
    }
    assert python.installed["egg"].requires == ("numpy",)
    assert python.search_path == (spack, "/usr/lib/python311.zip", SITE, egg, project)
    assert [name for name in ("numpy", "egg", "tool", "absent") if python.is_covered(name)] == ["numpy"]


def test_a_directory_that_is_not_there_yet_has_its_place_in_the_search_path(tmp_path: Path) -> None:
    """Debian's below /usr/local comes before that of its packages."""
    debian = "/usr/lib/python3/dist-packages"
    with opened(tmp_path, PYTHON, distribution("six", "1.16.0", site=debian)) as image:
        python = probed(image, sites=[SITE, debian], path=["/opt/spack", debian])
    assert python.search_path == ("/opt/spack", SITE, debian)
    assert not python.is_covered("six")


def test_what_only_conda_records_is_installed(tmp_path: Path) -> None:
    site = "/opt/conda/lib/python3.11/site-packages"

    def record(*files: str) -> str:
        return json.dumps({"files": ["bin/x", *files]})

    meta = "/opt/conda/conda-meta"
    below = "lib/python3.11/site-packages"
    trees = (
        {"/opt/conda/bin/python3": ELF},
        distribution("numpy", "1.26.4", site=site),
        {
            f"{meta}/numpy-1.26.3-py311h64a7726_0.json": record(f"{below}/numpy/__init__.py"),
            f"{meta}/py-Open_CV-4.9.0-py311h1_1.json": record(f"{below}/cv2/__init__.py"),
            f"{meta}/zlib-1.3-h1.json": record("lib/libz.so"),
            f"{meta}/outside-1.3-h1.json": record(f"{below}/../../../../../etc/x"),
            f"{meta}/broken-1.3-h1.json": "[" * 100_000,
            f"{meta}/other-1.3-h1.json": "[]",
            f"{meta}/odd-1.3-h1.json": json.dumps({"files": [1]}),
            f"{meta}/history": "",
        },
    )
    with opened(tmp_path, *trees) as image:
        python = probed(image, sites=[site])
        assert owned_files(image, python.installed["py-open-cv"]) == ()
    found = {name: package.version for name, package in python.installed.items()}
    assert found == {"numpy": "1.26.4", "py-open-cv": "4.9.0"}


def test_a_python_says_where_it_looks_with_the_environment_of_the_image(tmp_path: Path) -> None:
    """As users start it: PYTHONPATH, PYTHONUSERBASE, `.pth` files and what these run count."""
    venv = tmp_path / "venv"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", venv], check=True
    )
    site = next((venv / "lib").glob("python3*/site-packages"))
    version = site.parent.name
    user = tmp_path / f"user/lib/{version}/site-packages"
    for name in ("spack", "listed", "run", "spaced out"):
        (tmp_path / name).mkdir()
    user.mkdir(parents=True)
    code = f"import sys; sys.path.append({str(tmp_path / 'run')!r}); print('noise')"
    (site / "a.pth").write_text(f"{tmp_path}/listed\n{code}\n")
    paths = f"{tmp_path}/spack:{tmp_path}/spaced out"
    env = {"PYTHONPATH": paths, "PYTHONUSERBASE": str(tmp_path / "user"), "PATH": "/usr/bin"}

    class Started:
        def run(self, argv: Sequence[str], **options: Any) -> Finished:
            done = subprocess.run(argv, env=env, cwd="/", stdout=subprocess.PIPE, text=True, check=True)
            return Finished(argv=tuple(argv), code=0, stdout=done.stdout, stderr="")

    tree: Tree = {f"{venv}/bin/python3": ELF, f"{venv}/pyvenv.cfg": (venv / "pyvenv.cfg").read_text()}
    sandbox: Any = Started()
    with opened(tmp_path, tree) as image:
        python = probe_python(image, f"{venv}/bin/python3", sandbox=sandbox, log=tmp_path / "log", at=IMAGE)
    assert python.site_packages == str(site)
    own = [path for path in python.search_path if path.startswith(f"{tmp_path}/") and Path(path).is_dir()]
    assert own == [
        *(f"{tmp_path}/spack", f"{tmp_path}/spaced out", str(site), f"{tmp_path}/listed", f"{tmp_path}/run"),
        str(user),
    ]


def test_packages_go_where_links_lead_and_never_outside(tmp_path: Path) -> None:
    tree: Tree = {
        "/usr/local": ("../../../../opt/local",),
        "/opt/local/bin/python3": ELF,
        "/opt/local/lib": ("lib64",),
        "/opt/local/lib64/python3.11/": "",
    }
    with opened(tmp_path, tree) as image:
        python = probed(image)
    assert python.site_packages == "/opt/local/lib64/python3.11/site-packages"
    assert python.scheme["scripts"] == "/opt/local/bin"


def test_a_python_is_started_without_its_packages(tmp_path: Path) -> None:
    tree: Tree = {
        "/venv/bin/python3": ELF,
        "/venv/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = true\n",
    }
    sandbox: Any = Answering("welcome to the image\n" + json.dumps(ANSWER))
    with opened(tmp_path, tree) as image:
        probe_python(image, "/venv/bin/python3", sandbox=sandbox, log=tmp_path / "log", at=IMAGE)
    assert sandbox.argv[:4] == ["/venv/bin/python3", "-I", "-S", "-c"]
    assert sandbox.argv[5:] == ["/venv", "yes"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"version": [2, 7, 18]}, "CPython 3.7 or newer is needed"),
        ({"implementation": "pypy"}, "is pypy 3.11"),
        ({"flags": "t"}, "special build"),
        ({"libc": ""}, "another C library than glibc"),
        ({"libc": "glibc 2.36; rm"}, "does not answer as a Python would"),
        ({"machine": "riscv64"}, "does not answer"),
        ({"version": [3, 11]}, "does not answer"),
        ({"sites": []}, "does not answer"),
        ({"sites": ["usr/lib"]}, "does not answer"),
        ({"sites": ["/usr/lib/python3.11/site-packages\n"]}, "does not answer"),
        ({"sites": ["/etc"]}, "not a directory for packages"),
        ({"sites": ["/a/../../etc/lib/python3.11/../python3.11"]}, "not a directory for packages"),
        ({"more": 1}, "does not answer"),
    ],
)
def test_an_answer_that_no_python_gives_is_refused(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with opened(tmp_path, PYTHON) as image, pytest.raises(RequestError, match=problem):
        probed(image, **changes)


@pytest.mark.parametrize("text", ["", "no json", "[" * 100_000, "null"])
def test_what_is_no_answer_is_refused(text: str, tmp_path: Path) -> None:
    sandbox: Any = Answering(text)
    with opened(tmp_path, PYTHON) as image, pytest.raises(RequestError, match="does not answer"):
        probe_python(image, "/usr/local/bin/python3", sandbox=sandbox, log=tmp_path / "log", at=IMAGE)


def test_a_record_owns_what_it_lists_and_exists(tmp_path: Path) -> None:
    plain = dict(distribution("demo", "1.0"))
    info = f"{SITE}/demo-1.0.dist-info"
    plain[f"{info}/RECORD"] = (
        "demo/__init__.py,,\n../../../bin/demo,,\n../../../../../etc/passwd,,\n/etc/passwd,,\n"
        "demo/gone.py,,\nlinked/a.py,,\n../../../../../../../../etc/passwd,,\ndemo,,\n"
    )
    tree: Tree = {
        "/usr/local/bin/demo": "",
        "/etc/passwd": "root\n",
        "/opt/linked/a.py": "",
        f"{SITE}/linked": ("/opt/linked",),
    }
    with opened(tmp_path, PYTHON, plain, tree) as image:
        python = probed(image)
        owned = owned_files(image, python.installed["demo"])
    assert owned == (
        "/usr/local/bin/demo",
        f"{info}/INSTALLER",
        f"{info}/METADATA",
        f"{info}/RECORD",
        f"{SITE}/demo/__init__.py",
        f"{SITE}/demo/__pycache__/__init__.cpython-311.pyc",
    )


def test_older_records_and_none(tmp_path: Path) -> None:
    tree: Tree = {
        f"{SITE}/old-1.egg-info/PKG-INFO": "Metadata-Version: 1.1\nName: old\nVersion: 1\n",
        f"{SITE}/old-1.egg-info/installed-files.txt": "../old.py\nPKG-INFO\n",
        f"{SITE}/old.py": "",
        f"{SITE}/bare-1.egg-info": "Metadata-Version: 1.1\nName: bare\nVersion: 1\n",
    }
    with opened(tmp_path, PYTHON, tree) as image:
        python = probed(image)
        assert owned_files(image, python.installed["old"]) == (
            f"{SITE}/old-1.egg-info/PKG-INFO",
            f"{SITE}/old-1.egg-info/installed-files.txt",
            f"{SITE}/old.py",
        )
        assert owned_files(image, python.installed["bare"]) == ()


@pytest.mark.redteam
def test_a_bomb_of_metadata_is_refused_unparsed(tmp_path: Path) -> None:
    """54,000 requirements are just below 1 MiB, and take a second to parse."""
    bomb = distribution("bomb", "1.0", *["b>1"] * 54_000)
    problem = r"/bomb-1\.0\.dist-info/METADATA` has more than 10000 lines"
    with opened(tmp_path, PYTHON, bomb) as image, pytest.raises(ValueError, match=problem):
        probed(image)


@pytest.mark.parametrize(
    ("limit", "value", "problem"),
    [
        ("MAX_FILES", 2, "more than 2 files with metadata"),
        ("MAX_REQUIREMENTS", 20, "more than 20 requirements"),
        ("MAX_BYTES", 3 << 20, "is more than 3 MiB"),
    ],
)
def test_the_metadata_of_all_packages_is_bounded(
    limit: str, value: int, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = []
    for name in ("one", "two", "three", "four"):
        tree = dict(distribution(name, "1.0", *[f"p{number}" for number in range(10)]))
        # The description after the header is read, too.
        tree[f"{SITE}/{name}-1.0.dist-info/METADATA"] = (
            str(tree[f"{SITE}/{name}-1.0.dist-info/METADATA"]) + "\n" + "x" * 900_000
        )
        trees.append(tree)
    with opened(tmp_path, PYTHON, *trees) as image:
        assert len(probed(image).installed) == 4
        monkeypatch.setattr(distributions, limit, value)
        with pytest.raises(ValueError, match=problem):
            probed(image)


def test_lines_that_repeat_count_once(tmp_path: Path) -> None:
    with opened(tmp_path, PYTHON, distribution("demo", "1.0", *["b>1"] * 5000, "c")) as image:
        assert probed(image).installed["demo"].requires == ("b>1", "c")


def test_a_record_of_very_many_lines_lists_nothing(tmp_path: Path) -> None:
    tree = dict(distribution("demo", "1.0"))
    tree[f"{SITE}/demo-1.0.dist-info/RECORD"] = "demo/__init__.py\n" + "a\n" * 500_000
    with opened(tmp_path, PYTHON, tree) as image:
        assert owned_files(image, probed(image).installed["demo"]) == ()


def test_the_bytecode_of_a_directory_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"m{number}" for number in range(40)] + ["a.b"]
    files = {f"{name}.py": b"" for name in names} | {
        f"__pycache__/{name}.cpython-311.pyc": b"" for name in [*names, "other"]
    }
    tree = dict(distribution("demo", "1.0", files=files))
    tree[f"{SITE}/demo-1.0.dist-info/RECORD"] = "".join(f"demo/{name}.py,,\n" for name in names * 3)
    with opened(tmp_path, PYTHON, tree) as image:
        python = probed(image)
        asked: list[str] = []
        below = image.below
        monkeypatch.setattr(image, "below", lambda path: asked.append(path) or below(path))  # type: ignore[func-returns-value]
        owned = owned_files(image, python.installed["demo"])
    assert {path.rpartition("/")[2] for path in owned if path.endswith(".pyc")} == {
        f"{name}.cpython-311.pyc" for name in names
    }
    assert asked.count(f"{SITE}/demo/__pycache__") == 1

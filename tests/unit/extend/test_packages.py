"""Choosing packages beside what an image has, and laying them out; uv sees the wheels of one directory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from envbuild.build import run
from envbuild.build.run import BuildContext
from envbuild.errors import BuildError, EnvbuildError, ManyErrors, RequestError, render
from envbuild.events import ignore
from envbuild.extend.layers import request_on
from envbuild.extend.packages import (
    Addition,
    fetch_packages,
    read_request,
    resolve_packages,
)
from envbuild.extend.python import PythonInstallation
from envbuild.image.file import ImageFile
from envbuild.image.files import ImageFiles
from envbuild.image.runnable import identity_of
from envbuild.resolve.files import FileCache
from envbuild.spec.load import load_spec
from envbuild.store.store import Store
from envbuild.store.tree import scan
from envbuild.system.apptainer import Apptainer
from envbuild.system.process import Finished
from envbuild.workflows.make import make_image
from envbuild.workflows.settings import Settings
from tests.support.foreign_images import (
    IMAGE,
    PYTHON,
    SITE,
    Tree,
    distribution,
    offline_context,
    opened,
    probed,
)
from tests.support.lustre import lustre
from tests.support.squashfs_images import extract
from tests.support.wheels import make_wheel

SITE_BELOW = SITE.removeprefix("/")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A directory with wheels: numpy 1 and 2, and what needs which."""
    directory = tmp_path / "wheels"

    def wheel(name: str, version: str, *requires: str, **files: str) -> None:
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        text = head + "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        files = {f"{name}-{version}.dist-info/METADATA": text, **files}
        make_wheel(directory, f"{name}-{version}-py3-none-any.whl", **files)

    wheel("numpy", "1.26.4")
    wheel("numpy", "2.1.0")
    wheel("tabulate", "0.9.0")
    wheel("modern", "1.0", "numpy>=2")
    wheel("plain", "1.0", "numpy", "tabulate")
    wheel("extra", "1.0", "six")
    wheel("six", "1.16.0")
    wheel("six", "1.17.0")
    wheel("nested", "1.0", "demo[all]")
    wheel("clash", "1.0", **{"tests/__init__.py": "# clash\n"})
    wheel("sharing", "1.0", **{"shared.py": "#! shared\n"})
    return directory


def resolve(image: ImageFiles, tmp_path: Path, index: Path, *names: str, **options: Any) -> Addition:
    """Return the addition of a request, with its wheels; all happens in `tmp_path`."""
    return resolve_for(probed(image), tmp_path, index, *names, **options)


def resolve_for(
    python: PythonInstallation, tmp_path: Path, index: Path, *names: str, **options: Any
) -> Addition:
    """Return the addition of a request for a Python."""
    stage = tmp_path / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    request = read_request(names, **options)
    context = offline_context(tmp_path, index)
    addition = resolve_packages(python, request, image=IMAGE, site=None, context=context, stage=stage)
    fetch_packages(addition, request, image=IMAGE, site=None, context=context)
    return addition


def versions(addition: Addition) -> dict[str, str]:
    return {pin.name: pin.version for pin in addition.pins}


@pytest.mark.parametrize(
    "version",
    ["1.24.4+nv23.11", "2.0.0a0+f70bd71a48.nv24.06", "1!2.0", "2.0.dev1", "1.0.0.0", "1.0-1", "v1.0"],
)
def test_what_is_installed_stays_whatever_its_version(version: str, tmp_path: Path, wheels: Path) -> None:
    """NVIDIA's local versions and Debian's are in no index; what they require is not judged."""
    trees = (
        PYTHON,
        distribution("numpy", version, "no-such-package>=3", "six @ file:///six.whl", "=bad="),
        distribution("tabulate", "0.8.10"),
    )
    with opened(tmp_path, *trees) as image:
        addition = resolve(image, tmp_path, wheels, "plain")
    assert versions(addition) == {"plain": "1.0"}
    assert addition.pins[0].requires == ("numpy", "tabulate")
    assert (addition.replaced, addition.pins[0].origin) == ((), "find-links")


def test_a_release_is_not_taken_only_because_newer_ones_have_no_wheel(tmp_path: Path, wheels: Path) -> None:
    text = "Metadata-Version: 2.1\nName: deep\nVersion: 0.3.1.dev5\n"
    make_wheel(wheels, "deep-0.3.1.dev5-py3-none-any.whl", **{"deep-0.3.1.dev5.dist-info/METADATA": text})
    (wheels / "deep-0.19.tar.gz").write_bytes(b"an archive")
    with opened(tmp_path, PYTHON) as image:
        with pytest.raises(RequestError) as caught:
            resolve(image, tmp_path, wheels, "deep")
        assert ": 0.19 has no wheel, and 0.3.1.dev5 is a pre-release" in caught.value.problem
        assert "`--wheel FILE`" in str(caught.value.hint)
        assert versions(resolve(image, tmp_path, wheels, "deep==0.3.1.dev5")) == {"deep": "0.3.1.dev5"}


def test_what_is_there_already_is_not_added(tmp_path: Path, wheels: Path) -> None:
    with opened(tmp_path, PYTHON, distribution("tabulate", "0.8.10")) as image:
        addition = resolve(image, tmp_path, wheels, "tabulate>=0.8", "plain")
    assert versions(addition) == {"plain": "1.0", "numpy": "2.1.0"}
    assert addition.present == ("tabulate>=0.8",)


def test_a_conflict_with_what_is_installed_names_it(tmp_path: Path, wheels: Path) -> None:
    with opened(tmp_path, PYTHON, distribution("numpy", "1.26.4")) as image:
        with pytest.raises(RequestError) as caught:
            resolve(image, tmp_path, wheels, "modern")
        assert "numpy>=2" in str(caught.value)
        assert "the image has numpy 1.26.4" in str(caught.value)
        assert "--upgrade numpy" in caught.value.hint
        with pytest.raises(RequestError, match=r"numpy 1.26.4 is installed .* `numpy>=2` would replace it"):
            resolve(image, tmp_path, wheels, "numpy>=2")
        addition = resolve(image, tmp_path, wheels, "modern", upgrade=["NumPy"])
    assert versions(addition) == {"modern": "1.0", "numpy": "2.1.0"}
    assert [one.version for one in addition.replaced] == ["1.26.4"]


@pytest.mark.parametrize("file", ["newer-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", "newer-1.0.tar.gz"])
def test_a_package_without_a_wheel_for_the_image_says_how_to_get_one(
    file: str, tmp_path: Path, wheels: Path
) -> None:
    (wheels / file).touch()
    with opened(tmp_path, PYTHON) as image, pytest.raises(RequestError, match="newer") as caught:
        resolve(image, tmp_path, wheels, "newer")
    assert "--wheel FILE" in caught.value.hint


SPACK = "/opt/spack/lib/python3.11/site-packages"


def test_what_the_images_pythonpath_has_stays(tmp_path: Path, wheels: Path) -> None:
    """Another version would never be found beside it."""
    with opened(tmp_path, PYTHON, distribution("numpy", "1.26.4", site=SPACK)) as image:
        python = probed(image, path=[SPACK, SITE])

        def asked(stage: str, *names: str, upgrade: Sequence[str] = ()) -> Addition:
            (tmp_path / stage).mkdir()
            request = read_request(names, upgrade=upgrade)
            context = offline_context(tmp_path, wheels)
            return resolve_packages(
                python, request, image=IMAGE, site=None, context=context, stage=tmp_path / stage
            )

        plain = asked("plain", "plain")
        assert versions(plain) == {"plain": "1.0", "tabulate": "0.9.0"}
        assert asked("numpy", "numpy").present == ("numpy",)
        with pytest.raises(RequestError, match=r"the image has numpy 1\.26\.4") as caught:
            asked("modern", "modern")
        assert caught.value.hint == "ask for an older version"
        for stage, names, upgrade in (("newer", ["numpy>=2"], []), ("upgrade", [], ["numpy"])):
            with pytest.raises(RequestError, match=rf"installed in `{SPACK}`.* looks first") as caught:
                asked(stage, *names, upgrade=upgrade)
            assert "PYTHONPATH" in caught.value.hint
            assert "--upgrade" not in caught.value.hint


def test_an_upgrade_respects_what_stays(tmp_path: Path, wheels: Path) -> None:
    trees = (PYTHON, distribution("numpy", "1.26.0"), distribution("scipy", "1.11", "numpy<2"))
    with opened(tmp_path, *trees) as image:
        addition = resolve(image, tmp_path, wheels, upgrade=["numpy"])
        assert versions(addition) == {"numpy": "1.26.4"}
        with pytest.raises(RequestError, match=r"scipy 1.11, which is installed, needs numpy<2") as caught:
            resolve(image, tmp_path, wheels, "modern", upgrade=["numpy"])
        assert "--upgrade scipy" in caught.value.hint


def test_what_is_added_respects_what_is_there(tmp_path: Path, wheels: Path) -> None:
    with opened(tmp_path, PYTHON, distribution("old", "1", "six<1.17", 'numpy<1; extra == "a"')) as image:
        addition = resolve(image, tmp_path, wheels, "extra", "plain")
    assert versions(addition) == {
        "extra": "1.0",
        "six": "1.16.0",
        "plain": "1.0",
        "numpy": "2.1.0",
        "tabulate": "0.9.0",
    }


def test_a_companion_of_torch_is_the_build_that_the_image_has(tmp_path: Path, wheels: Path) -> None:
    for version in ("0.19.0", "0.19.0+cpu"):
        text = f"Metadata-Version: 2.1\nName: torchvision\nVersion: {version}\nRequires-Dist: torch==2.4.0\n"
        files = {f"torchvision-{version}.dist-info/METADATA": text}
        make_wheel(wheels, f"torchvision-{version}-py3-none-any.whl", **files)
    with opened(tmp_path, PYTHON, distribution("torch", "2.4.0+cpu")) as image:
        assert versions(resolve(image, tmp_path, wheels, "torchvision")) == {"torchvision": "0.19.0+cpu"}


def test_extras_of_what_is_installed_are_met(tmp_path: Path, wheels: Path) -> None:
    with opened(tmp_path, PYTHON, distribution("demo", "3.0", 'six<1.17; extra == "all"')) as image:
        addition = resolve(image, tmp_path, wheels, "nested")
        assert versions(addition) == {"nested": "1.0", "six": "1.16.0"}
        assert versions(resolve(image, tmp_path, wheels, "demo[all]")) == {"six": "1.16.0"}


def test_a_version_that_cannot_be_compared_is_not_replaced_by_the_way(tmp_path: Path, wheels: Path) -> None:
    with opened(tmp_path, PYTHON, distribution("numpy", "unknown")) as image:
        with pytest.raises(RequestError, match="numpy unknown is installed"):
            resolve(image, tmp_path, wheels, "plain")
        assert versions(resolve(image, tmp_path, wheels, "plain", upgrade=["numpy"]))["numpy"] == "2.1.0"


def test_an_upgrade_of_what_is_not_there_is_refused(tmp_path: Path, wheels: Path) -> None:
    with opened(tmp_path, PYTHON) as image, pytest.raises(RequestError, match="`six` is not installed"):
        resolve(image, tmp_path, wheels, upgrade=["six"])


def test_a_wheel_of_the_user_is_taken_with_what_it_needs(tmp_path: Path, wheels: Path) -> None:
    mine = make_wheel(tmp_path / "mine", "mine-5.0+site-py3-none-any.whl")
    with opened(tmp_path, PYTHON) as image:
        addition = resolve(image, tmp_path, wheels, wheels=[mine])
    assert versions(addition) == {"mine": "5.0+site"}
    assert addition.pins[0].size_bytes == mine.stat().st_size


def test_a_wheel_of_the_user_is_taken_though_an_index_has_the_version(tmp_path: Path, wheels: Path) -> None:
    """In a file that fits better."""
    make_wheel(wheels, "mine-1.0-cp311-cp311-manylinux_2_17_x86_64.whl")
    own = make_wheel(tmp_path / "own", "mine-1.0-py3-none-any.whl")
    with opened(tmp_path, PYTHON) as image:
        (pin,) = resolve(image, tmp_path, wheels, wheels=[own]).pins
    assert pin.file == own.name
    assert pin.sha256 == hashlib.sha256(own.read_bytes()).hexdigest()


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path, wheels: Path) -> None:
    bad = tmp_path / "mine-1.0-py3-none-any.whl"
    bad.write_text("no archive")
    with opened(tmp_path, PYTHON) as image, pytest.raises(RequestError, match="is not a wheel"):
        resolve(image, tmp_path, wheels, wheels=[bad])


ODD_WHEELS = [
    *("good-1-py3-none-any .whl", "good-1-py3-none-\nany.whl", " good-1-py3-none-any.whl", "good.whl"),
    *("good-1-py3-none-any.WHL", "g,ood-1-py3-none-any.whl", "gööd-1-py3-none-any.whl"),
    *(f"good-{'9' * 150}-py3-none-any.whl", f"good-1-1{'4' * 100}-py3-none-any.whl"),
    *(f"good-{'1.' * 70}1-py3-none-any.whl", f"{'g' * 250}-1-py3-none-any.whl"),
    *("good-1-py3-none-any.whl'", "_-1-py3-none-any.whl", "good-1%2Blocal-py3-none-any .whl"),
]


@pytest.mark.parametrize("name", ODD_WHEELS)
def test_an_odd_name_of_a_wheel_is_an_error_with_its_place(name: str, tmp_path: Path) -> None:
    """One rule for specs, requirements files and `--wheel`: what a lock and all installers take."""
    with pytest.raises(RequestError, match="does not name a wheel: ") as caught:
        read_request(wheels=[tmp_path / name])
    assert len(caught.value.problem) < 400
    text = f'name: s\nversion: "1"\nbase: debian-12\npackages: {{python: [{{wheel: {json.dumps(name)}}}]}}\n'
    with pytest.raises(EnvbuildError) as refused:
        load_spec(text.encode(), Path("spec.yaml"))
    problem = "holds a control character" if "\n" in name else "does not name a wheel"
    assert problem in render(refused.value)
    assert "spec.yaml:4:29" in render(refused.value)


def test_a_quoted_name_of_a_wheel_says_how_to_rename_it(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(wheels=[tmp_path / "torch-2.1.0%2Bcpu-py3-none-any.whl"])
    assert caught.value.hint == "rename it to `torch-2.1.0+cpu-py3-none-any.whl`"


def test_an_archive_without_metadata_says_so(tmp_path: Path, wheels: Path) -> None:
    empty = tmp_path / "mine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(empty, "w"):
        pass
    with opened(tmp_path, PYTHON) as image, pytest.raises(RequestError, match="it has no METADATA"):
        resolve(image, tmp_path, wheels, wheels=[empty])


def test_a_request_is_checked_as_a_whole(tmp_path: Path) -> None:
    listed = tmp_path / "requirements.txt"
    listed.write_text("# ours\nsix>=1 # why\n-e .\nfoo @ https://user:secret@example.org/foo.whl\n")
    with pytest.raises(ManyErrors) as caught:
        read_request(["a b"], files=[listed], wheels=[tmp_path / "x.whl", tmp_path / "a-1-py3-none-any.whl"])
    shown = render(caught.value)
    assert "secret" not in shown
    for text in (
        "`a b` is not a Python requirement",
        f"{listed}:3:1",
        "(`-e`) cannot be in an image",
        f"{listed}:4:1",
        "does not name a wheel",
        "there is no file",
    ):
        assert text in shown
    listed.write_text(f"six>=1 \\\n  --hash=sha256:{'0' * 64}\nsix>=1\n")
    assert read_request(files=[listed]).requirements == ("six>=1",)


def test_files_with_other_hashes_than_those_of_the_request_are_refused(tmp_path: Path, wheels: Path) -> None:
    listed = tmp_path / "requirements.txt"
    digest = hashlib.sha256((wheels / "tabulate-0.9.0-py3-none-any.whl").read_bytes()).hexdigest()
    listed.write_text(f"tabulate==0.9.0 \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{digest}\n")
    with opened(tmp_path, PYTHON) as image:
        assert versions(resolve(image, tmp_path, wheels, files=[listed])) == {"tabulate": "0.9.0"}
        with pytest.raises(RequestError, match=r"six-1.17.0-py3-none-any.whl` has the sha256"):
            resolve(image, tmp_path, wheels, "six", files=[listed])


def test_a_wheel_that_is_missing_offline_is_named_with_what_helps(tmp_path: Path, wheels: Path) -> None:
    with opened(tmp_path, PYTHON) as image:
        python = probed(image)
    request = read_request(["tabulate"])
    context = replace(offline_context(tmp_path, wheels), offline=True)
    (tmp_path / "stage").mkdir()
    addition = resolve_packages(
        python, request, image=IMAGE, site=None, context=context, stage=tmp_path / "stage"
    )
    shutil.rmtree(wheels)
    with pytest.raises(RequestError, match=r"tabulate-0.9.0-py3-none-any.whl") as caught:
        fetch_packages(addition, request, image=IMAGE, site=None, context=context)
    assert "once with a network" in caught.value.hint


class Here:
    """Takes the place of a sandbox: the tests' own Python compiles what it would see."""

    def run(
        self,
        argv: Sequence[str],
        *,
        binds: Sequence[Any],
        stdin: bytes,
        receive: Callable[[bytes], None],
        **options: Any,
    ) -> Finished:
        words = [sys.executable, *argv[1:]]
        here = stdin.replace(b"/mnt/", os.fsencode(f"{binds[0].source.resolve()}/"))
        receive(subprocess.run(words, input=here, stdout=subprocess.PIPE, check=True).stdout)
        return Finished(argv=tuple(words), code=0, stdout="", stderr="")


def laid(addition: Addition, tmp_path: Path) -> tuple[Path, set[str], tuple[str, ...]]:
    """Put an addition on the image of `opened`.

    Returns the new image's files, the paths that it has and the old one lacks, and of the paths that it lacks
    those that are in no other.
    """
    stage = tmp_path / "laid"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    store, files = Store(stage / "store"), FileCache(tmp_path / "files")
    pins = {pin.sha256: pin for pin in addition.pins}
    new = stage / "new.sqfs"
    with patch.object(run, "Sandbox", lambda **_: Here()), ImageFile.open(tmp_path / "image.sqfs") as image:
        context = BuildContext(
            store=store,
            apptainer=Apptainer(program=Path("apptainer"), version="1.4.5"),
            locate=lambda file: files.path(pins[file.sha256]),
            emit=ignore,
            image=image.program_path,
        )
        request = request_on(image, addition, [], [], identity_of(image, store))
        make_image(new, request, store, Settings(store=store), context=context)
        before = set(image.files.entries)
    with ImageFile.open(new) as image:
        after = set(image.files.entries)
    gone = before - after
    return (
        extract(new, stage / "tree"),
        {path.lstrip("/") for path in after - before},
        tuple(sorted(path for path in gone if path.rpartition("/")[0] not in gone)),
    )


def test_the_image_gets_the_stripes_of_the_site(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, PYTHON) as image:
        addition = resolve(image, tmp_path, wheels, "plain")
    log = lustre(tmp_path, monkeypatch)
    (tmp_path / "config/envbuild").mkdir(parents=True)
    (tmp_path / "config/envbuild/site.yaml").write_text("name: here\nstorage: {stripe_count: 8}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    laid(addition, tmp_path)
    assert log.read_text().startswith(f"setstripe -c 8 -- {tmp_path}/laid/.new.sqfs.")


def test_the_tree_lies_as_in_the_image_and_is_the_same_each_time(tmp_path: Path, wheels: Path) -> None:
    with opened(tmp_path, PYTHON) as image:
        addition = resolve(image, tmp_path, wheels, "plain")
    tree, new, hidden = laid(addition, tmp_path)
    before = scan(tree)
    tree, *_ = laid(addition, tmp_path)
    assert scan(tree) == before
    assert hidden == ()
    assert (tree / "usr/local/bin/plain").read_text().startswith("#!/usr/local/bin/python3\n")
    cached = [path for path in new if path.endswith(".pyc")]
    assert {path.rpartition("/__pycache__/")[0] for path in cached} == {
        f"{SITE_BELOW}/{name}" for name in ("plain", "numpy", "tabulate")
    }
    assert {path.split("/")[0] for path in new} == {"usr"}


def test_what_is_replaced_is_hidden_and_nothing_else(tmp_path: Path, wheels: Path) -> None:
    listed = ("core/__init__.py", "sub/b.py", "a.py")
    old = distribution("numpy", "1.26.4", files=dict.fromkeys(listed, b"old"))
    others: Tree = {f"{SITE}/numpy/of-another.txt": "", "/usr/local/bin/numpy": "of conda"}
    with opened(tmp_path, PYTHON, old, others) as image:
        addition = resolve(image, tmp_path, wheels, upgrade=["numpy"])
    tree, _, hidden = laid(addition, tmp_path)
    assert hidden == (
        f"{SITE}/numpy-1.26.4.dist-info",
        f"{SITE}/numpy/__init__.py",
        f"{SITE}/numpy/__pycache__/__init__.cpython-311.pyc",
        f"{SITE}/numpy/core",
        f"{SITE}/numpy/sub",
    )
    assert (tree / SITE_BELOW / "numpy/a.py").read_text() == "print('a')\n"
    assert (tree / "usr/local/bin/numpy").read_text().startswith("#!/usr/local/bin/python3\n")


def test_what_debian_owns_stays_and_is_covered(tmp_path: Path, wheels: Path) -> None:
    debian = "/usr/lib/python3/dist-packages"
    with opened(tmp_path, PYTHON, distribution("numpy", "1.24.2", site=debian)) as image:
        python = probed(image, sites=[SITE, debian])
        addition = resolve_for(python, tmp_path, wheels, upgrade=["numpy"])
    tree, _, hidden = laid(addition, tmp_path)
    assert (hidden, versions(addition)) == ((), {"numpy": "2.1.0"})
    assert (tree / SITE_BELOW / "numpy/a.py").is_file()


@pytest.mark.parametrize(
    ("tree", "shown"),
    [
        ({f"{SITE}/tests/__init__.py": "# another\n"}, "tests/__init__.py: the image and wheel:clash"),
        ({f"{SITE}/clash": ("/opt/elsewhere",)}, "/clash: the image and wheel:clash"),
        ({f"{SITE}/clash": "a file"}, "/clash: the image and wheel:clash"),
        ({"/usr/local/bin/clash": "a program"}, "/usr/local/bin/clash: the image and wheel:clash"),
    ],
)
def test_a_path_that_the_image_has_differently_is_refused(
    tree: Mapping[str, Any], shown: str, tmp_path: Path, wheels: Path
) -> None:
    with opened(tmp_path, PYTHON, tree) as image:
        addition = resolve(image, tmp_path, wheels, "clash")
    with pytest.raises(BuildError) as caught:
        laid(addition, tmp_path)
    assert shown in str(caught.value)


def test_a_file_that_the_image_has_just_so_stays_its_own(tmp_path: Path, wheels: Path) -> None:
    shared: Tree = {
        f"{SITE}/shared.py": "#! shared\n",
        f"{SITE}/__pycache__/shared.cpython-311.pyc": "its own",
    }
    with opened(tmp_path, PYTHON, shared) as image:
        addition = resolve(image, tmp_path, wheels, "sharing")
    tree, new, hidden = laid(addition, tmp_path)
    site = tree / SITE_BELOW
    # The wheel's is not executable, and its bytecode is another.
    assert stat.S_IMODE((site / "shared.py").stat().st_mode) == 0o755
    assert (site / "__pycache__/shared.cpython-311.pyc").read_bytes() == b"its own"
    assert hidden == ()
    assert f"{SITE_BELOW}/sharing/a.py" in new

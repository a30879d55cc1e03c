"""The imports of an image's packages, and those that go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.jobs import imports
from envbuild.jobs.judge import Package, judge_imports, modules_to_import
from envbuild.jobs.report import CheckResult

LIMIT_S = 60.0


def path_with_python(directory: Path) -> str:
    """Make a directory whose `python` is this one, as an image has it; return a search path."""
    (directory / "bin").mkdir(exist_ok=True)
    if not (directory / "bin/python").exists():
        (directory / "bin/python").symlink_to(sys.executable)
    return f"{directory}/bin:/usr/bin:/bin"


def install(site: Path, name: str, files: Mapping[str, str | bytes], version: str = "1.0") -> None:
    """Install a distribution with a record, as installers do."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    contents = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    for file, content in contents.items():
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    lines = [f'"{file}",,' if "," in file else f"{file},," for file in contents]
    (site / info / "RECORD").write_text("\n".join([*lines, f"{info}/RECORD,,"]) + "\n")


def tried(
    directory: Path,
    packages: Mapping[str, Sequence[str] | None] | None = None,
    modules: Sequence[str] = (),
    scripts: Sequence[str] = (),
    limit_s: float = LIMIT_S,
    path: Sequence[Path] = (),
) -> dict[str, dict[str, Any]]:
    """Try imports with a site directory below `directory` alone."""
    site = directory / "site"
    site.mkdir(exist_ok=True)
    env = {
        "PATH": path_with_python(directory),
        "PYTHONPATH": ":".join(map(str, path or [site])),
        "TMPDIR": str(directory),
    }
    return imports.try_imports(imports.request(packages or {}, modules, scripts, limit_s=limit_s), env=env)


def judged(directory: Path, *packages: Package, path: Sequence[Path] = ()) -> list[CheckResult]:
    """Try and judge the imports of packages whose site directory is below `directory`."""
    results = tried(directory, modules_to_import(packages), path=path)
    return judge_imports(packages, (), (), results)


def told(checks: Sequence[CheckResult]) -> list[tuple[str, str, str]]:
    return [(check.status, check.expected, check.observed) for check in checks]


def package(directory: Path, name: str = "demo", **changes: Any) -> Package:
    return Package(**{"name": name, "version": "1.0", "sites": [str(directory / "site")], **changes})


# Writes the answer of a good import wherever it can.
FORGES = """\
import os
for descriptor in range(1, 20):
    try:
        os.write(descriptor, b'{"error": null, "file": "", "word": ""}')
    except OSError:
        pass
os._exit(0)
"""


def test_imports_each_in_a_process_of_its_own(tmp_path: Path) -> None:
    modules = {
        "good": "x = 1",
        "noisy": "print('words on standard output', flush=True)",
        "broken": "import nothing_of_this_name",
        "leaves": "import sys; sys.exit(0)",
        "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "quits": "import os; os._exit(3)",
        "forges": "import os; os.write(1, b'{}'); os._exit(0)",
        "forges_all": FORGES,
        "writes": "open('here', 'w'); import os; open(os.path.expanduser('~/there'), 'w')",
    }
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    text = json.dumps(imports.request({}, list(modules), limit_s=LIMIT_S))
    done = subprocess.run(
        [sys.executable, "-I", "-", text[:50], text[50:]],
        input=Path(imports.__file__).read_bytes(),
        env={"PYTHONPATH": str(tmp_path), "PATH": path_with_python(tmp_path)},
        capture_output=True,
        check=True,
    )
    answer = json.loads(done.stdout)["modules"]
    assert {name: facts["error"] for name, facts in answer.items()} == {
        "good": None,
        "noisy": None,
        "broken": "ModuleNotFoundError: No module named 'nothing_of_this_name'",
        "leaves": "SystemExit: 0",
        "crashes": "ended by signal 11",
        "quits": "exit code 3",
        "forges": "exit code 0",
        "forges_all": "exit code 0",
        "writes": None,
    }
    assert answer["good"]["file"] == str(tmp_path / "good.py")


def test_modules_beside_the_working_directory_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shadow_of_the_image.py").write_text("")
    monkeypatch.chdir(tmp_path)
    answer = tried(tmp_path, modules=["shadow_of_the_image"])
    assert "ModuleNotFoundError" in answer["modules"]["shadow_of_the_image"]["error"]


def test_a_script_runs_as_users_do(tmp_path: Path) -> None:
    """It has a home and a directory to write in, which vanish; its last line says what failed."""
    scripts = {
        "good.py": "from pathlib import Path; Path('out').write_text(''); Path('~/x').expanduser().touch()",
        "broken.py": "print('first'); import nothing_of_this_name",
        "chatty.py": "print('x' * 5_000_000)",
        "quits.py": "raise SystemExit(3)",
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    paths = [str(tmp_path / name) for name in scripts]
    assert tried(tmp_path, scripts=paths)["scripts"] == {
        paths[0]: None,
        paths[1]: "ModuleNotFoundError: No module named 'nothing_of_this_name'",
        paths[2]: None,
        paths[3]: "exit code 3",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["bin", "site", *scripts])


def test_what_never_ends_is_ended_and_the_rest_is_not_tried(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    for number in range(8):
        (tmp_path / f"site/hangs{number}.py").write_text("import time; time.sleep(600)")
    answer = tried(tmp_path, modules=[f"hangs{number}" for number in range(8)], limit_s=1.5)
    reasons = [facts["error"] for facts in answer["modules"].values()]
    assert reasons[0] == "ended after 1.5 s"
    assert reasons[-1] == "not tried: the time of 1.5 s was over"


def test_output_without_end_is_ended(tmp_path: Path) -> None:
    """A Python that only prints takes neither the time that imports have nor memory."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text("#!/bin/sh\nexec yes\n")
    (tmp_path / "bin/python").chmod(0o755)
    answer = tried(tmp_path, {"demo": None}, ["numpy"])
    assert "more than 1048576 bytes of output" in answer["search_path"]["error"]
    assert "more than 1048576 bytes of output" in answer["modules"]["numpy"]["error"]
    assert len(json.dumps(answer)) < 4096


def test_a_long_reason_is_cut_in_its_middle(tmp_path: Path) -> None:
    install(tmp_path / "site", "demo", {"demo.py": "raise ImportError('begin ' + 'x' * 10**6 + ' end')"})
    (check,) = judged(tmp_path, package(tmp_path))
    assert check.status == "FAIL"
    assert check.observed.startswith("ImportError: begin ")
    assert check.observed.endswith(" end")
    assert len(check.observed) < 1000


def test_an_import_gets_no_more_memory_than_the_machine_can_do_without(tmp_path: Path) -> None:
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size_bytes = max(machine_bytes // 2, 4 << 30) + (1 << 30)
    (tmp_path / "large.py").write_text(f"import mmap; mmap.mmap(-1, {size_bytes}, flags=mmap.MAP_PRIVATE)")
    done = subprocess.run(
        [sys.executable, "-I", "-", json.dumps(imports.request({}, ["large"], limit_s=LIMIT_S))],
        input=Path(imports.__file__).read_bytes(),
        env={"PYTHONPATH": str(tmp_path), "PATH": path_with_python(tmp_path)},
        capture_output=True,
        check=True,
    )
    assert "Cannot allocate memory" in json.loads(done.stdout)["modules"]["large"]["error"]


# Counts how often a directory is listed, and lists the libraries that are opened.
WATCHED = """\
import json, sys
from envbuild.jobs import imports
listed, opened = [], []
def note(event, arguments):
    if event in ("os.listdir", "os.scandir"):
        listed.append(str(arguments[0]))
    elif event == "open" and str(arguments[0]).endswith(".so"):
        opened.append(str(arguments[0]))
sys.addaudithook(note)
imports.try_imports(json.loads(sys.argv[1]))
print(listed.count(sys.argv[2]), [path for path in opened if path.startswith(sys.argv[2])])
"""


def test_the_work_grows_with_packages_and_files_and_not_with_their_product(tmp_path: Path) -> None:
    """A directory is listed once, and what lies in a package is not opened."""
    site = tmp_path / "site"
    names = [f"demo-{number}" for number in range(50)]
    for name in names:
        install(site, name, {f"{name.replace('-', '')}/__init__.py": ""})
    install(site, "big", {"big/__init__.py": "", **{f"big/lib/lib{one}.so": b"" for one in range(50)}})
    asked = imports.request({name: [] for name in (*names, "big")}, limit_s=LIMIT_S)
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, json.dumps(asked), str(site)],
        env={"PYTHONPATH": str(site), "PATH": path_with_python(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1 []\n"


SPLIT = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"


@pytest.mark.parametrize(
    ("files", "modules"),
    [
        ({"demo/__init__.py": "", "demo/inner.py": "raise SystemExit"}, "demo"),
        ({"one.py": "", "two/__init__.py": "", "_hidden.py": ""}, "one,two,_hidden"),
        ({"one.py": "", "space/other.py": "", "space/sub/mod.py": ""}, "one,space.other,space.sub.mod"),
        ({"space/__init__.py": SPLIT}, "space"),
        ({"space/__init__.py": SPLIT, "one.py": ""}, "one,space"),
        ({"space/__init__.py": SPLIT, "space/note.py": ""}, "space.note"),
        ({"space/part/__init__.py": "", "space/other/mod.py": ""}, "space.other.mod,space.part"),
        ({"one.py": "", "share/one/run.py": "raise SystemExit", "bin/tool.py": "raise SystemExit"}, "one"),
        ({"_one.py": "", "_two.py": ""}, "_one,_two"),
        ({"space/part/__init__.py": "", "space/note.py": "raise SystemExit"}, "space.part"),
        ({"space/__init__.py": SPLIT, "space/part/__init__.py": ""}, "space.part"),
        ({"space/deep/note.py": ""}, "space.deep.note"),
        ({"_only.py": ""}, "_only"),
        ({"tests/__init__.py": "raise SystemExit", "demo.py": ""}, "demo"),
        ({"tests/__init__.py": ""}, "tests"),
        ({"with,comma.txt": "", "demo.py": ""}, "demo"),
        ({"libdemo.so": b"\x7fELF without a function of a module", "demo.py": ""}, "demo"),
    ],
)
def test_the_files_of_a_package_show_its_modules(
    files: dict[str, str | bytes], modules: str, tmp_path: Path
) -> None:
    install(tmp_path / "site", "other-name", files)
    (check,) = judged(tmp_path, package(tmp_path, "other-name"))
    assert (check.status, check.id, check.expected) == ("PASS", "image.imports", modules)


@pytest.mark.parametrize(
    ("files", "module"),
    [
        ({"demo/__init__.py": "import gone"}, "demo"),
        ({"./demo/__init__.py": "import gone"}, "demo"),
        ({"_only.py": "import gone"}, "_only"),
        ({"space/part/__init__.py": "import gone"}, "space.part"),
        ({"space/__init__.py": SPLIT, "space/part/__init__.py": "import gone"}, "space.part"),
        ({"space/note.py": "import gone"}, "space.note"),
        ({"one.py": "", "two.py": "import gone"}, "two"),
        ({"space/__init__.py": f"{SPLIT}import gone"}, "space"),
        ({"space/__init__.py": "# no extend_path\nimport gone", "space/sub.py": ""}, "space.sub"),
        ({"space/__init__.py": "# no declare_namespace\nimport gone", "one.py": ""}, "space"),
        ({"one.py": "", "space/sub/mod.py": "import gone"}, "space.sub.mod"),
        ({"_one.py": "", "_two.py": "import gone"}, "_two"),
    ],
)
def test_a_requested_module_that_does_not_import_fails(
    files: dict[str, str | bytes], module: str, tmp_path: Path
) -> None:
    install(tmp_path / "site", "demo", files)
    checks = judged(tmp_path, package(tmp_path))
    reason = "ModuleNotFoundError: No module named 'gone'"
    failed = [line for line in told(checks) if line[0] == "FAIL"]
    assert failed == [("FAIL", f"`import {module}` (demo 1.0)", reason)]
    assert all("`imports: {PACKAGE: [MODULE]}`" in check.hint for check in checks if check.status == "FAIL")


def test_a_private_module_that_does_not_import_is_reported(tmp_path: Path) -> None:
    files = {"demo.py": "", "_one.py": "import gone", "_two.py": ""}
    install(tmp_path / "site", "demo", files)
    reason = "ModuleNotFoundError: No module named 'gone'"
    assert told(judged(tmp_path, package(tmp_path))) == [
        ("PASS", "demo,_two", "all import"),
        ("SKIP", "`import _one` (demo 1.0)", reason),
    ]
    named = judged(tmp_path, package(tmp_path, modules=["demo", "_one"]))
    assert [check.status for check in named] == ["PASS", "FAIL"]


def test_a_plugin_of_a_program_that_is_not_there_is_reported(tmp_path: Path) -> None:
    files = {
        "demo.py": "",
        "plugins/__init__.py": SPLIT,
        "plugins/extensions/__init__.py": SPLIT,
        "plugins/extensions/demo_plugin.py": "import gone",
    }
    install(tmp_path / "site", "demo", files)
    name, reason = "plugins.extensions.demo_plugin", "ModuleNotFoundError: No module named 'gone'"
    checks = judged(tmp_path, package(tmp_path))
    assert told(checks) == [
        ("PASS", "demo", "all import"),
        ("SKIP", f"`import {name}` (demo 1.0)", reason),
    ]
    assert "a plug-in" in checks[1].hint
    named = judged(tmp_path, package(tmp_path, modules=["demo", name]))
    assert [check.status for check in named] == ["PASS", "FAIL"]
    # A fault of its own is one, too.
    (tmp_path / "site/plugins/extensions/demo_plugin.py").write_text("1 / 0")
    assert [check.status for check in judged(tmp_path, package(tmp_path))] == ["PASS", "FAIL"]


def test_a_shared_object_with_the_tag_of_a_module_is_one(tmp_path: Path) -> None:
    install(tmp_path / "site", "demo", {"demo.abi3.so": b"\x7fELF"})
    (check,) = judged(tmp_path, package(tmp_path))
    assert check.status == "FAIL"


def test_a_package_without_a_record_shows_its_modules_as_well(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("listed", "topped", "egg"):
        (site / f"{name}_package").mkdir(parents=True)
        (site / f"{name}_package/__init__.py").write_text("import gone")
    for name, file, text in (
        ("listed", "installed-files.txt", "../listed_package/__init__.py\nPKG-INFO\n"),
        ("topped", "top_level.txt", "topped_package\nnot_there\n"),
    ):
        info = site / f"{name}-1.0.egg-info"
        info.mkdir()
        (info / "PKG-INFO").write_text(f"Metadata-Version: 1.1\nName: {name}\nVersion: 1.0\n")
        (info / file).write_text(text)
    egg = tmp_path / "egg-1.0-py3.11.egg"
    (egg / "EGG-INFO").mkdir(parents=True)
    (egg / "EGG-INFO/PKG-INFO").write_text("Metadata-Version: 1.1\nName: egg\nVersion: 1.0\n")
    (egg / "EGG-INFO/top_level.txt").write_text("egg_package\n")
    (site / "egg_package").rename(egg / "egg_package")
    names = ("listed", "topped", "egg")
    checks = judged(tmp_path, *(Package(name=name, version="1.0") for name in names), path=[site, egg])
    assert [(check.status, check.expected) for check in checks] == [
        ("FAIL", f"`import {name}_package` ({name} 1.0)") for name in names
    ]


def test_a_package_without_modules_is_skipped_and_never_passes(tmp_path: Path) -> None:
    install(tmp_path / "site", "scripts-alone", {"../bin/tool": "#!python\n", "data/values.txt": "1"})
    checks = judged(tmp_path, package(tmp_path, "scripts-alone"))
    assert told(checks) == [("SKIP", "a module of scripts-alone 1.0", "it has no Python modules")]


def test_nothing_requested_is_skipped() -> None:
    (check,) = judge_imports((), (), (), {})
    assert (check.status, check.hint) == ("SKIP", "no Python package was requested")


def test_a_spec_names_what_to_import_instead(tmp_path: Path) -> None:
    install(tmp_path / "site", "demo", {"demo/__init__.py": "", "demo/part.py": "", "demod.py": "1/0"})
    assert told(judged(tmp_path, package(tmp_path, modules=["demo", "demo.part"]))) == [
        ("PASS", "demo,demo.part", "all import")
    ]
    (check,) = judged(tmp_path, package(tmp_path, modules=[]))
    assert (check.status, check.observed) == ("SKIP", "none")
    assert check.hint == "nothing to import, as recipe or spec says: demo"
    install(tmp_path / "site", "other", {"other.py": ""})
    checks = judged(tmp_path, package(tmp_path, modules=[]), package(tmp_path, "other"))
    assert told(checks) == [("PASS", "other", "all import; nothing to import, as recipe or spec says: demo")]
    (check,) = judged(tmp_path, package(tmp_path, modules=["demo.gone"]))
    assert check.status == "FAIL"


def test_what_only_the_resolver_chose_is_no_failure(tmp_path: Path) -> None:
    install(tmp_path / "site", "demo", {"demo.py": ""})
    install(tmp_path / "site", "broken", {"broken.py": "import gone"})
    install(tmp_path / "site", "fine", {"fine.py": ""})
    others = [package(tmp_path, name, requested=False) for name in ("broken", "fine")]
    assert told(judged(tmp_path, package(tmp_path), *others)) == [
        ("PASS", "demo", "all import"),
        ("PASS", "what the requested packages need: fine", "all import"),
        ("SKIP", "`import broken` (broken 1.0)", "ModuleNotFoundError: No module named 'gone'"),
    ]


@pytest.mark.parametrize(
    ("library", "status"), [("libcuda.so.1", "SKIP"), ("libGL.so.1", "SKIP"), ("libgone.so.3", "FAIL")]
)
def test_a_library_of_a_hosts_driver_may_be_absent(library: str, status: str, tmp_path: Path) -> None:
    text = f"raise ImportError('{library}: cannot open shared object file: No such file or directory')"
    install(tmp_path / "site", "demo", {"demo.py": text})
    (check,) = judged(tmp_path, package(tmp_path))
    assert check.status == status
    assert library in check.observed


def test_a_second_library_that_no_driver_brings_is_a_failure(tmp_path: Path) -> None:
    lacks = ": cannot open shared object file: No such file or directory"
    text = f"raise ImportError('libcuda.so.1{lacks}; libgone.so.3{lacks}')"
    install(tmp_path / "site", "demo", {"demo.py": text})
    assert [check.status for check in judged(tmp_path, package(tmp_path))] == ["FAIL"]


def test_of_many_modules_some_are_tried_and_the_rest_is_counted(tmp_path: Path) -> None:
    install(tmp_path / "site", "demo", {f"demo{number:03}.py": "" for number in range(70)})
    passed, rest = judged(tmp_path, package(tmp_path))
    assert passed.status == "PASS"
    assert (rest.status, rest.observed) == ("SKIP", "6 were not tried")


def test_another_version_that_comes_first_fails(tmp_path: Path) -> None:
    install(tmp_path / "site", "demo", {"demo.py": ""}, "2.0")
    first = tmp_path / "spack"
    install(first, "demo", {"demo.py": ""}, "1.26")
    (check,) = judged(tmp_path, package(tmp_path, version="2.0"), path=[first, tmp_path / "site"])
    assert told([check]) == [("FAIL", f"demo 2.0 in {tmp_path}/site", f"Python finds demo 1.26 in {first}")]
    assert "PYTHONPATH" in check.hint


def test_the_same_version_elsewhere_fails(tmp_path: Path) -> None:
    first = tmp_path / "spack"
    for site in (first, tmp_path / "site"):
        install(site, "demo", {"demo.py": ""})
    (check,) = judged(tmp_path, package(tmp_path), path=[first, tmp_path / "site"])
    assert check.status == "FAIL"


def test_a_module_without_metadata_that_comes_first_fails(tmp_path: Path) -> None:
    install(tmp_path / "site", "demo", {"demo/__init__.py": ""})
    (tmp_path / "user").mkdir()
    (tmp_path / "user/demo.py").write_text("")
    (check,) = judged(tmp_path, package(tmp_path), path=[tmp_path / "user", tmp_path / "site"])
    assert told([check]) == [
        ("FAIL", f"`import demo` (demo 1.0) from {tmp_path}/site", f"{tmp_path}/user/demo.py")
    ]


def test_programs_may_lie_where_python_does_not_look(tmp_path: Path) -> None:
    """Modules may not."""
    install(tmp_path / "mpi", "mpich", {"../bin/mpiexec": ""})
    install(tmp_path / "mpi", "lost", {"lost.py": ""})
    asked = imports.request({"mpich": [], "lost": None}, sites=[str(tmp_path / "mpi")], limit_s=LIMIT_S)
    results = imports.try_imports(asked, env={"PATH": path_with_python(tmp_path)})
    sites = [str(tmp_path / "mpi")]
    packages = [
        Package(name="mpich", version="1.0", modules=[], sites=sites),
        Package(name="lost", version="1.0", sites=sites),
    ]
    failed, none = judge_imports(packages, (), (), results)
    assert (failed.status, failed.observed) == ("FAIL", "ModuleNotFoundError: No module named 'lost'")
    assert (none.status, none.hint) == ("SKIP", "nothing to import, as recipe or spec says: mpich")


def test_a_package_that_is_gone_fails(tmp_path: Path) -> None:
    assert told(judged(tmp_path, package(tmp_path))) == [("FAIL", "demo 1.0", "Python does not find it")]


def test_a_module_of_the_standard_library_comes_first_without_harm(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "dataclasses", {"dataclasses.py": "raise ImportError"})
    # As in an image: a directory of packages comes after the standard library.
    (tmp_path / "first").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text(
        f'#!{sys.executable} -s\nimport os, sys\nos.environ["PYTHONPATH"] = ""\n'
        f'code = "import sys; sys.path.append({str(site)!r})\\n" + sys.argv[3]\n'
        "os.execv(sys.executable, [sys.executable, '-s', '-c', code, *sys.argv[4:]])\n"
    )
    (tmp_path / "bin/python").chmod(0o755)
    (check,) = judged(tmp_path, package(tmp_path, "dataclasses"), path=[tmp_path / "first"])
    assert check.status == "SKIP"
    assert "Python has a module of this name itself" in check.observed


@pytest.mark.parametrize(
    ("pinned", "written", "status"),
    [
        ("2023.7.22", "2023.07.22", "PASS"),
        ("1.0", "1.0.0", "PASS"),
        ("2.0rc1", "2.0-RC.1", "PASS"),
        ("1.0.post1", "1.0-1", "PASS"),
        ("2.13.0+cpu", "2.13.0+cpu", "PASS"),
        ("2.13.0+cpu", "2.13.0", "FAIL"),
        ("1.10", "1.1", "FAIL"),
        ("1.0", "10", "FAIL"),
    ],
)
def test_versions_are_compared_as_such(pinned: str, written: str, status: str, tmp_path: Path) -> None:
    install(tmp_path / "site", "demo", {"demo.py": ""}, written)
    assert [check.status for check in judged(tmp_path, package(tmp_path, version=pinned))] == [status]


@pytest.mark.parametrize(
    "results",
    [
        {},
        {"packages": [], "modules": 3, "search_path": "x"},
        {"packages": {"demo": {"version": 1, "site": None, "modules": "demo"}}, "modules": {}},
        {
            "packages": {
                "demo": {"version": "1.0", "site": "/s", "modules": ["demo", 3], "own": 4, "more": "x" * 9999}
            },
            "modules": {"demo": {"error": 5}},
        },
    ],
)
def test_an_answer_that_is_none_never_passes(results: dict[str, object]) -> None:
    checks = judge_imports([Package(name="demo", version="1.0")], ["numpy"], ["jax"], results)
    assert {check.status for check in checks} <= {"FAIL", "SKIP"}
    assert {"image.imports", "image.tutorials"} == {check.id for check in checks if check.status == "FAIL"}

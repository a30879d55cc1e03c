"""Virtual environments on top of an image, made by `python -m venv` through the wrapper."""

import shutil
import sys
import venv as venv_module
import zipfile
from pathlib import Path

import pytest

from envbuild.activate import make_venv

WHERE = (
    "import os, sys, framework; "
    "print(sys.executable, sys.prefix, framework.VERSION, os.environ['VIRTUAL_ENV'])"
)


@pytest.fixture(params=["linked", pytest.param("copied", marks=pytest.mark.slow)])
def active(request, activate):
    """An environment names the wrapper, which alone knows where the image lies."""
    return activate(linked=request.param == "linked")


@pytest.fixture
def work(place):
    return place.directory("work dir")


@pytest.fixture
def venv(active, place, work):
    done = place.run(
        active.home / "bin/python",
        "-m",
        "venv",
        "--system-site-packages",
        "--without-pip",
        "own",
        cwd=work,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    return work / "own"


def test_its_python_runs_inside_the_image_and_sees_both(venv, place):
    packages = venv / "lib/python3.11/site-packages"
    (packages / "mine.py").write_text("WORD = 'own'\n")
    done = place.run(venv / "bin/python", "-c", f"{WHERE}; import mine; print(mine.WORD)")
    assert done.stdout == f"{venv}/bin/python {venv} 2.13.0 {venv}\nown\n"


def test_its_own_packages_come_before_the_images(venv, place):
    (venv / "lib/python3.11/site-packages/framework.py").write_text("VERSION = 'newer'\n")
    assert (
        place.run(venv / "bin/python3.11", "-c", "import framework; print(framework.VERSION)").stdout
        == "newer\n"
    )


def test_activated_it_is_what_python_means_outside_and_inside(venv, place):
    inner = "import subprocess; subprocess.run(['python', '-c', 'import sys; print(sys.prefix)'])"
    script = (
        f". '{venv}/bin/activate'; cd /; python -c 'import sys; print(sys.prefix)'; python -c \"{inner}\""
    )
    assert place.run("/bin/bash", "-c", script).stdout == f"{venv}\n{venv}\n"


def test_activated_it_serves_what_other_commands_of_the_image_start(venv, active, place):
    inner = "python -c 'import sys; print(sys.prefix)'"
    script = f". '{venv}/bin/activate'; cd /; '{active.home}/bin/envbuild-exec' {inner}"
    assert place.run("/bin/bash", "-c", script).stdout == f"{venv}\n"
    refused = place.run("/bin/bash", "-c", f". '{venv}/bin/activate'; '{active.home}/bin/pip' install x")
    assert f"uv pip install --python {venv}/bin/python NAME" in refused.stderr


def test_it_finds_the_libraries_of_the_image(venv, active, place):
    show = "import os; print(os.environ.get('LD_LIBRARY_PATH'))"
    of_image = place.run(active.home / "bin/python", "-c", show).stdout
    assert of_image != "None\n"
    assert place.run(venv / "bin/python", "-c", show).stdout == of_image


def test_its_python_starts_itself_inside(venv, place):
    program = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', 'exit(9)']).returncode)"
    assert place.run(venv / "bin/python", "-c", program).returncode == 9


def test_a_relative_name_and_a_link_to_it_work(venv, place, work):
    (work / "link").symlink_to(venv)
    for name in ("own/bin/python", "./link/bin/python", "../work dir/own/bin/python"):
        done = place.run(
            work / name if name.startswith("own") else name, "-c", "import sys; print(sys.prefix)", cwd=work
        )
        assert done.stdout.strip() in (f"{work}/own", f"{work}/link"), (name, done.stderr)


def test_without_the_system_packages_it_is_alone(active, place, work):
    place.run(active.home / "bin/python", "-m", "venv", "--without-pip", "alone", cwd=work)
    done = place.run(work / "alone/bin/python", "-c", "import framework")
    assert "ModuleNotFoundError" in done.stderr


def test_it_is_seen_where_only_the_working_directory_would_be(venv, place):
    done = place.run(venv / "bin/python", "-c", WHERE, env={"APPTAINER_NO_MOUNT": "tmp"})
    assert done.stdout.startswith(f"{venv}/bin/python {venv} ")


def test_pip_is_installed_for_it_and_its_scripts_run(active, place):
    # The image's `ensurepip` is a stand-in that writes one script, as pip does; a
    # directory without spaces, since the kernel splits a script's first line.
    own = place.directory("plain") / "own"
    done = place.run(active.home / "bin/python", "-m", "venv", own)
    assert (done.stderr, done.returncode) == ("", 0)
    script = own / "bin/installed"
    assert script.read_text().startswith(f"#!{own}/bin/python")
    assert place.run(script, "a", "b c").stdout == f"script {own} a b c\n"


def test_packages_are_installed_from_outside_with_uv(venv, place):
    wheel = place.path / "mine-1.0-py3-none-any.whl"
    info = "mine-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("mine.py", "import framework\ndef main(): print(__name__, framework.VERSION)\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    uv = shutil.copy(Path(sys.executable).parent / "uv", place.path)
    install = [uv, "pip", "install", "--no-config", "--no-cache", "--offline", "--no-index", "--no-deps"]
    done = place.run(*install, "--python", venv / "bin/python", wheel)
    assert done.returncode == 0, done.stderr
    assert place.run(venv / "bin/python", "-c", "import mine; mine.main()").stdout == "mine 2.13.0\n"


def test_an_image_without_pip_makes_one_without_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(make_venv, "find_spec", lambda name: None)
    monkeypatch.setattr(venv_module, "EnvBuilder", venv_module.EnvBuilder)  # put back afterwards
    make_venv.main(["/w/bin/python3", "sha256:1", str(tmp_path / "own")])
    assert "uv pip install --python DIR/bin/python NAME" in capsys.readouterr().err
    assert (tmp_path / "own/bin/python3").readlink() == Path("/w/bin/python3")


def test_the_pip_of_the_image_serves_an_environment_that_sees_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(make_venv, "find_spec", lambda name: None if name == "ensurepip" else name)
    for words, hint in (
        (["--system-site-packages"], "DIR/bin/python -m pip install NAME"),
        ([], "uv pip install --python DIR/bin/python NAME"),
    ):
        monkeypatch.setattr(venv_module, "EnvBuilder", venv_module.EnvBuilder)  # put back afterwards
        make_venv.main(["/w/bin/python3", "sha256:1", *words, str(tmp_path / "own")])
        assert hint in capsys.readouterr().err


def test_another_image_is_refused(activate, venv, place, active):
    launcher = active.home / "bin/launcher"
    launcher.write_text(launcher.read_text().replace("_eb_digest=sha256:", "_eb_digest=sha256:0"))
    done = place.run(venv / "bin/python", "-c", "print(1)")
    assert done.returncode == 122
    assert f"the virtual environment {venv} was made with another image than small/1.0" in done.stderr


def test_it_outlives_a_module_that_is_installed_again(activate, place, work):
    home = activate().home
    place.run(home / "bin/python", "-m", "venv", "--system-site-packages", "--without-pip", "own", cwd=work)
    activate()
    assert place.run(work / "own/bin/python", "-c", "print(1)").stdout == "1\n"

"""The contract of the wrappers, with real images and the real Apptainer."""

import json
import os
import signal
import subprocess

import pytest

from envbuild.spec.site import SiteBind
from tests.integration.activate.conftest import CHANGES, image_of
from tests.support.images import read_manifest
from tests.support.users import as_root

SHOW = "import os, sys; print([os.environ.get(name) for name in sys.argv[1:]])"


def test_runs_inside_the_image_with_its_packages(active, place):
    done = place.run(
        active.home / "bin/python", "-c", "import sys, framework; print(sys.prefix, framework.VERSION)"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("/opt/env 2.13.0\n", "", 0)


def test_of_a_file_in_two_layers_the_upper_is_seen(active, place):
    assert place.run(active.home / "bin/tool-cat", "/opt/env/layer").stdout == "upper\n"


@pytest.mark.parametrize("code", [0, 7, 139])
def test_exit_codes_arrive(active, place, code):
    assert place.run(active.home / "bin/tool-bash", "-c", f"exit {code}").returncode == code


def test_a_crash_is_told_as_one(activate, place):
    done = place.run(activate().home / "bin/tool-bash", "-c", "kill -SEGV $$")
    assert done.returncode in (139, -signal.SIGSEGV)


def test_arguments_arrive_untouched(active, place):
    odd = ["", "a b", "  ", "*", "$HOME", "it's", '"', "\\", "-x", "--", "line\nbreak", "ü"]
    done = place.run(active.home / "bin/python", "-c", "import sys; print(sys.argv[1:])", *odd)
    assert done.stdout == f"{odd}\n"


def test_standard_input_passes(active, place):
    assert place.run(active.home / "bin/tool-cat", stdin="some\nlines").stdout == "some\nlines"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_program_and_its_own_code_comes_back(active, place, number):
    program = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(42))\n"
        "print('ready', flush=True)\n"
        # Short sleeps: Python looks for signals before it sleeps, and one may fall in between.
        "for _ in range(3000): time.sleep(0.02)\n"
    )
    argv = [active.home / "bin/python", "-c", program]
    with subprocess.Popen(
        argv, env=place.env(), cwd=place.work, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(timeout=30) == 42


def test_descriptors_of_a_process_manager_stay_open(activate, place):
    reader, writer = os.pipe()
    argv = [activate().home / "bin/tool-bash", "-c", f"echo rank >&{writer}"]
    subprocess.run(
        argv, env=place.env({"PMI_FD": str(writer)}), cwd=place.work, pass_fds=[writer], check=True
    )
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == "rank\n"


def test_settings_of_the_host_that_would_mislead_are_dropped_and_the_rest_is_kept(active, place):
    misleading = {
        "LD_LIBRARY_PATH": "/host/lib",
        "LD_PRELOAD": "",
        "PYTHONPATH": "/host/python",
        "PYTHONHOME": "/host",
        "BASH_ENV": "/host/profile",
        "CUDA_HOME": "/host/cuda",
        "BASH_FUNC_which%%": "() { echo host; }",
    }
    kept = {"OMP_NUM_THREADS": "3", "SLURM_CPUS_PER_TASK": "8", "PMI_RANK": "1", "image": "mine"}
    program = "import json, os, sys; json.dump(dict(os.environ), sys.stdout)"
    done = place.run(active.home / "bin/python", "-c", program, env={**misleading, **kept})
    seen = json.loads(done.stdout)
    assert {name: seen.get(name) for name in kept} == kept
    assert "/host" not in done.stdout
    assert "BASH_FUNC" not in done.stdout
    assert seen["PYTHONNOUSERSITE"] == "1"


def test_functions_of_the_host_stay_out_where_sh_is_bash(activate, place):
    (place.path / "sh").symlink_to("/bin/bash")
    launcher = activate().home / "bin/tool-env"
    done = place.run(
        place.path / "sh", launcher, env={"BASH_FUNC_which%%": "() { echo host; }", "KEPT": "yes"}
    )
    assert "KEPT=yes" in done.stdout
    assert "host" not in done.stdout.replace(str(place.path), "")


@pytest.mark.parametrize(("user", "expected"), [({}, "4"), ({"OMP_NUM_THREADS": "2"}, "2")])
def test_threads_follow_the_user_then_the_task(activate, place, user, expected):
    done = place.run(
        activate().home / "bin/python",
        "-c",
        SHOW,
        "OMP_NUM_THREADS",
        env={"SLURM_CPUS_PER_TASK": "4", **user},
    )
    assert done.stdout == f"['{expected}']\n"


def test_works_from_a_path_with_spaces_and_through_links(activate, place):
    active = activate(root="my modules, (new)")
    (place.path / "link").symlink_to(active.home.parent)
    (place.path / "py").symlink_to(place.path / "link/1.0/bin/python3")
    for command in (active.home / "bin/python", place.path / "link/1.0/bin/python", place.path / "py"):
        assert place.run(command, "-c", "print(6 * 7)").stdout == "42\n", command
    relative = place.run("../link/1.0/bin/tool", "x", cwd=place.work)
    assert relative.stdout == "tool of 1.0: x\n"


def test_a_name_that_is_no_command_is_refused(activate, place):
    home = activate().home
    done = place.run(home / "bin/launcher")
    assert done.returncode == 2
    assert done.stderr.startswith("envbuild: launcher: call one of: python python3 ")


def test_a_missing_image_has_its_own_code(active, place):
    image = image_of(active)
    image.rename(place.path / "away.sif")
    done = place.run(active.home / "bin/python", "-c", "print(1)")
    assert done.returncode == 121
    assert f"the image of small/1.0 is missing: {image}" in done.stderr


@pytest.mark.parametrize("change", CHANGES)
def test_an_image_that_was_changed_is_not_started(active, place, images, change):
    change(image_of(active), images["2.0"])
    done = place.run(active.home / "bin/tool", "x")
    assert (done.stdout, done.returncode) == ("", 121)
    assert done.stderr == (
        f"envbuild: the image of small/1.0 has changed since it was installed: {image_of(active)}\n"
        "envbuild: after a copy, a restore or new permissions, this compares every byte and accepts it:\n"
        f"envbuild:     envbuild module install {image_of(active)} --root {place.path}/modules\n"
    )


def test_no_apptainer_has_its_own_code(activate, place):
    home = activate().home
    env = ["ENVBUILD_APPTAINER=/nonexistent/apptainer", f"PATH={place.work}"]
    done = place.run("env", *env, home / "bin/python")
    assert (done.returncode, done.stderr) == (
        123,
        "envbuild: there is no apptainer or singularity on this machine\n",
    )


def test_the_same_image_inside_runs_directly(active, place):
    tool = active.home / "bin/tool"
    done = place.run(active.home / "bin/envbuild-exec", "bash", "-c", f"'{tool}' 'a b'; exit 5")
    assert (done.stdout, done.returncode) == ("tool of 1.0: a b\n", 5)


def test_inside_with_the_wrappers_first_on_path_it_finds_the_real_one(active, place):
    commands = active.home / "bin"
    done = place.run(
        commands / "tool-bash", "-c", "tool direct", env={"APPTAINERENV_PREPEND_PATH": str(commands)}
    )
    assert (done.stdout, done.stderr) == ("tool of 1.0: direct\n", "")


@pytest.mark.parametrize("linked", [False, True])
def test_another_image_inside_is_refused(activate, place, linked):
    outer, inner = activate("1.0", linked=linked), activate("2.0", linked=linked)
    done = place.run(outer.home / "bin/envbuild-exec", inner.home / "bin/tool")
    assert done.returncode == 122
    assert "tool of small/2.0 was called inside another image" in done.stderr


def test_a_mark_that_was_carried_into_another_image_is_not_believed(activate, place, images):
    # As where a job inherits the environment of the container that submitted it.
    outer, inner = activate("1.0"), activate("2.0")
    mark = f"ENVBUILD_INSIDE={read_manifest(images['2.0']).digest}"
    assert place.run(outer.home / "bin/tool-env", mark, inner.home / "bin/tool").returncode == 122


def test_wrappers_are_known_inside_where_singularityce_names_another_directory(activate, place, images):
    """In a user namespace, it names the directory where it mounted the image."""
    outer, inner = activate("1.0"), activate("2.0")
    inside = ["env", "--unset=APPTAINER_CONTAINER", "SINGULARITY_CONTAINER=/tmp/rootfs-1/root"]
    mark = f"ENVBUILD_INSIDE={read_manifest(images['1.0']).digest}"
    start = ["apptainer", "exec", image_of(outer), *inside]
    assert place.run(*start, mark, outer.home / "bin/tool", "x").stdout == "tool of 1.0: x\n"
    assert place.run(*start, mark, inner.home / "bin/tool").returncode == 122
    assert place.run(*start, outer.home / "bin/tool").returncode == 122


def test_wrappers_are_known_inside_a_copy_on_the_node(activate, place):
    env = {"ENVBUILD_STAGE": str(place.directory("disk"))}
    module = activate("1.0")
    done = place.run(module.home / "bin/tool-env", "sh", "-c", f"{module.home}/bin/tool x", env=env)
    assert done.stdout == "tool of 1.0: x\n", done.stderr
    assert len(list((place.path / "disk").glob("*.sif"))) == 1


def test_the_mark_alone_does_not_make_an_inside(activate, place, images):
    env = {"ENVBUILD_INSIDE": read_manifest(images["1.0"]).digest, "APPTAINER_CONTAINER": "/some/image.sif"}
    assert place.run(activate().home / "bin/tool", "x", env=env).stdout == "tool of 1.0: x\n"


def test_an_image_started_by_hand_knows_its_own_wrappers(active, place):
    done = place.run("apptainer", "exec", image_of(active), active.home / "bin/tool", "x")
    assert done.stdout == "tool of 1.0: x\n", done.stderr


def test_the_working_directory_is_there(active, place):
    work = place.directory("work dir")
    (work / "input").write_text("data")
    env = {"APPTAINER_NO_MOUNT": "tmp"}
    done = place.run(active.home / "bin/tool-bash", "-c", "cat input; echo >output", cwd=work, env=env)
    assert (done.stdout, done.returncode) == ("data", 0)
    assert (work / "output").exists()


def test_scratch_and_the_process_managers_directory_are_bound(active, place):
    # As where the site does not mount /tmp.
    scratch, server = place.directory("scratch, fast"), place.directory("pmix:1")
    env = {"APPTAINER_NO_MOUNT": "tmp", "TMPDIR": str(scratch), "PMIX_SERVER_TMPDIR": str(server)}
    done = place.run(
        active.home / "bin/tool-bash", "-c", 'echo 1 >"$TMPDIR/a"; echo 2 >"$PMIX_SERVER_TMPDIR/b"', env=env
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert (scratch / "a").exists()
    assert (server / "b").exists()


def test_binds_of_the_site_are_made_where_they_exist(activate, place):
    data = place.directory('data, "raw": 1')
    (data / "file").write_text("from the host")
    binds = (
        SiteBind(source=str(data), target="/data", writable=False),
        SiteBind(source=str(data), target="/work"),
        SiteBind(source="/nonexistent/scratch", target="/scratch"),
    )
    home = activate(binds=binds).home
    script = "cat /data/file; echo x >/work/written; echo x >/data/refused; test -e /scratch; echo :$?"
    done = place.run(home / "bin/tool-bash", "-c", script)
    assert done.stdout == "from the host:1\n"
    assert (data / "written").exists()
    assert not (data / "refused").exists()


def test_pip_says_why_it_cannot_and_what_can(activate, place):
    home = activate().home
    done = place.run(home / "bin/pip", "install", "numpy")
    assert done.returncode == 2
    assert "an image does not change" in done.stderr
    assert "python -m venv --system-site-packages DIR\n" in done.stderr
    assert "uv pip install --python DIR/bin/python NAME" in done.stderr
    assert f"envbuild extend {home}/image.sif --python NAME -o NEW.sif" in done.stderr
    assert "-m pip" not in done.stderr  # an image may lack ensurepip, and then so do its environments


def test_the_shell_reads_commands(activate, place):
    done = place.run(activate().home / "bin/envbuild-shell", stdin="echo in $ENVBUILD_INSIDE; exit 3\n")
    assert done.stdout.startswith("in sha256:")
    assert done.returncode == 3


def test_the_prompt_of_the_shell_names_the_environment(activate, place):
    shell = activate().home / "bin/envbuild-shell"
    # Without a terminal bash has no prompt, but it was given one.
    said = 'while IFS= read -r -d "" v; do case $v in PS1=*) echo "$v.";; esac; done </proc/$$/environ\n'
    assert place.run(shell, stdin=said).stdout == "PS1=small/1.0> .\n"
    own = place.run(shell, stdin=said, env={"APPTAINERENV_PS1": "mine> "})
    assert own.stdout == "PS1=mine> .\n"


def test_root_can_start_it(activate, place):
    done = place.run(*as_root([activate().home / "bin/tool", "x"]))
    assert done.stdout == "tool of 1.0: x\n", done.stderr

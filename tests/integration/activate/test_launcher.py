"""What the launcher hands to Apptainer, with a stand-in that shows it: devices, Slurm, processes."""

import os
import subprocess

import pytest

from envbuild.activate.install import install
from envbuild.activate.launcher import stamp_of
from envbuild.activate.model import OWN_COMMANDS, Installation
from envbuild.image.environment import MISLEADING
from envbuild.image.model import ImagePackage
from envbuild.launch import gpus
from envbuild.launch.context import visible_variables
from envbuild.launch.launchers.srun import lone_tasks
from envbuild.system.apptainer import Apptainer
from tests.integration.activate.conftest import as_root_who_owns_all, facts
from tests.support import trees

BY_CDI = ["--device", "nvidia.com/gpu=all"]
SHOW = '#!/bin/sh\nprintf "%s\\n" "$@"\necho "psec=$PMIX_MCA_psec"\n'


@pytest.fixture
def launcher(place):
    """Install an image whose Apptainer is a stand-in; returns a command of it."""

    def make(mpi="mpich", make=True, **changes):
        image = place.path / "image.sif"
        if make:
            image.write_text("")
        stand_in = place.path / "apptainer"
        stand_in.write_text(SHOW)
        stand_in.chmod(0o755)
        start = {"program": stand_in, "version": "1.4.5", **changes.pop("apptainer", {})}
        own = changes.pop("manifest", {})
        fields = {"apptainer": Apptainer(**start), **changes}
        manifest = trees.manifest(file_system=None, **{**facts("1.0"), "mpi": mpi, "mpi_family": mpi, **own})
        installation = Installation(root=place.path / "sw", image=image, runnable=manifest, **fields)
        return install(installation).layout.home / "bin/python"

    return make


def words(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_command_line_of_an_ordinary_user(launcher, place):
    command = launcher()
    image = command.parents[1] / "image.sif"
    expected = ["--silent", "exec", str(image), "python", "a b", "", "psec="]
    assert words(place.run(command, "a b", "")) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("python", ["-c", "1"], ["-c", "1"]),
        ("python3", ["train.py"], ["train.py"]),
        ("pip3", ["list"], ["-m", "pip", "list"]),
    ],
)
def test_a_recorded_python_is_started_by_its_path(launcher, place, name, arguments, expected):
    python = "/opt/a b/bin/python3"
    command = launcher(python=python)
    image = str(command.parents[1] / "image.sif")
    started = words(place.run(command.with_name(name), *arguments))
    assert started == ["--silent", "exec", image, python, *expected, "psec="]


@pytest.mark.parametrize(
    ("version", "own"), [("1.4.5", []), ("singularity-ce 3.11.5", []), ("singularity-ce 4.3.7", ["--no-oci"])]
)
def test_the_oci_mode_of_a_site_is_left_aside(launcher, place, version, own):
    command = launcher(apptainer={"version": version})
    image = str(command.parents[1] / "image.sif")
    assert words(place.run(command, "x")) == ["--silent", "exec", *own, image, "python", "x", "psec="]


def test_a_copy_on_the_node_is_made_once_and_started(launcher, place):
    (place.path / "image.sif").write_text("content")
    command, disk = launcher(make=False), place.directory("a disk")
    env = {"ENVBUILD_STAGE": str(disk)}
    # As the ranks of a node do.
    racing = [
        subprocess.Popen([command, "x"], env={**os.environ, **env}, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    started = {process.communicate()[0] for process in racing}
    (copy,) = disk.glob("*.sif")
    assert started == {f"--silent\nexec\n{copy}\npython\nx\npsec=\n"}
    assert copy.read_text() == "content"
    assert copy.stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in disk.iterdir()) == [copy.name, f"{copy.name}.lock"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("missing", "it is not a directory that you can write to"),
        ("open", "other users could replace the copy (it lacks the sticky bit)"),
        ("link", "the file is of another user"),
        ("lock", "Permission denied"),
        ("full", "File too large"),
    ],
)
def test_without_a_copy_the_image_itself_is_started(launcher, place, kind, why):
    (place.path / "image.sif").write_bytes(bytes(2 << 20))
    command, disk = launcher(make=False), place.directory("disk")
    image = command.parents[1] / "image.sif"
    start: list[object] = [command]
    env = {"ENVBUILD_STAGE": str(disk)}
    if kind == "missing":
        disk.rmdir()
    elif kind == "open":
        disk.chmod(0o777)
    elif kind == "lock":
        place.run(command, "x", env=env)
        (copy,) = disk.glob("*.sif")
        copy.unlink()
        copy.with_name(f"{copy.name}.lock").chmod(0o400)
    elif kind == "link":
        place.run(command, "x", env=env)
        (copy,) = disk.glob("*.sif")
        copy.unlink()
        copy.symlink_to(image)
    else:
        start = ["sh", "-c", 'trap "" XFSZ; ulimit -f 1024 && exec "$@"', "sh", command]
    done = place.run(*start, "x", env=env)
    assert words(done)[2] == str(image)
    assert done.stderr.startswith(f"envbuild: no copy of the image in ENVBUILD_STAGE, `{disk}`: ")
    assert why in done.stderr
    assert kind in ("missing", "link") or not list(disk.glob("*.sif*[!k]")), "a part of a copy is left"


def test_a_recorded_python_makes_virtual_environments(launcher, place):
    command = launcher(python="/opt/bin/python3")
    home = command.parents[1]
    started = words(place.run(command, "-m", "venv", "own"))
    start = started.index("/opt/bin/python3")
    assert started[start + 1 : start + 3] == [f"{home}/make_venv.py", f"{home}/bin/python3"]


def test_a_linked_image_is_started_while_size_and_time_are_those_of_its_stamp(launcher, place):
    image = place.path / "image.sif"
    image.write_text("")
    os.utime(image, (1_600_000_000.5, 1_600_000_000.5))
    command = launcher(linked=True, stamp=stamp_of(image), make=False)
    assert words(place.run(command, "x"))[-4:] == [str(image), "python", "x", "psec="]
    for time_s, content in ((1_600_000_001, ""), (1_600_000_000, "more")):
        image.write_text(content)
        os.utime(image, (time_s, time_s))
        done = place.run(command, "x")
        assert (done.stdout, done.returncode) == ("", 121)
        assert f"the image of small/1.0 has changed since it was installed: {image}" in done.stderr


@pytest.mark.parametrize(("device", "options"), [("nvidiactl", ["--nv"]), ("kfd", ["--rocm"]), ("other", [])])
def test_devices_bring_their_libraries(launcher, place, device, options):
    command = launcher()
    script = f'mount -t tmpfs none /dev && : >/dev/{device} && exec "$0"'
    done = place.run(
        "unshare", "--user", "--map-current-user", "--mount", "--keep-caps", "sh", "-c", script, command
    )
    assert [word for word in words(done) if word in ("--nv", "--rocm")] == options


@pytest.mark.parametrize(
    ("text", "version", "options"),
    [
        ("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n", "1.5.0", BY_CDI),
        ('{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu"}', "1.5.0", BY_CDI),
        ('{"kind":"nvidia.com/gpu","devices":[]}', "2.0", BY_CDI),
        ('{\n  "kind" : "nvidia.com/gpu"\n}', "1.5.0", BY_CDI),
        ("---\nkind: 'nvidia.com/gpu'\n", "1.5.0", BY_CDI),
        ("kind: nvidia.com/gpus\n", "1.5.0", ["--nv"]),
        ("# for nvidia.com/gpu\nkind: example.com/nic\n", "1.5.0", ["--nv"]),
        ("kind: nvidia.com/gpu\n", "1.4.5", ["--nv"]),
        ("kind: nvidia.com/gpu\n", "singularity-ce 4.3.7", ["--nv"]),
        ("", "1.5.0", ["--nv"]),
    ],
)
def test_gpus_come_by_cdi_as_launch_and_test_take_them(launcher, place, monkeypatch, text, version, options):
    """A stand-in says that it is Apptainer 1.5: no such release is installed here."""
    command = launcher(apptainer={"version": version})
    (place.path / "cdi.yaml").write_text(text)
    script = (
        "mount -t tmpfs none /dev && : >/dev/nvidiactl && mount -t tmpfs none /run && mkdir /run/cdi"
        f' && cp {place.path}/cdi.yaml /run/cdi/nvidia.yaml && exec "$0"'
    )
    done = place.run(
        "unshare", "--user", "--map-current-user", "--mount", "--keep-caps", "sh", "-c", script, command
    )
    started = [word for word in words(done) if word != "--no-oci"]
    assert started[1 : 2 + len(options)] == ["exec", *options]
    # As `launch` reads the same file.
    directory = place.directory("cdi")
    (directory / "nvidia.yaml").write_text(text)
    monkeypatch.setattr(gpus, "CDI_DIRECTORIES", (directory,))
    monkeypatch.setattr(gpus, "DEVICES", {"nvidia": str(directory)})
    apptainer = Apptainer(program=place.path / "apptainer", version=version)
    assert gpus.gpu_flags(apptainer, "cpu", None, elsewhere=False) == tuple(options)


def test_another_apptainer_is_not_asked_for_what_it_may_not_know(launcher, place):
    command = launcher(apptainer={"version": "1.5.0"})
    script = (
        "mount -t tmpfs none /dev && : >/dev/nvidiactl && mount -t tmpfs none /run && mkdir /run/cdi"
        ' && echo "kind: nvidia.com/gpu" >/run/cdi/nvidia.yaml && exec "$0"'
    )
    unshare = ("unshare", "--user", "--map-current-user", "--mount", "--keep-caps", "sh", "-c", script)
    done = place.run(*unshare, command, env={"ENVBUILD_APPTAINER": str(place.path / "apptainer")})
    assert words(done)[1:3] == ["exec", "--nv"]


def test_a_site_without_setuid_gets_a_user_namespace(launcher, place):
    assert "--userns" not in words(place.run(launcher()))
    assert words(place.run(launcher(apptainer={"unprivileged": True})))[1:3] == ["exec", "--userns"]


def test_root_gets_a_user_namespace(launcher, place):
    assert "--userns" in words(place.run(*as_root_who_owns_all(place, launcher())))


def test_it_starts_no_program_of_its_own_but_stat(launcher, place):
    command, calls = launcher(), place.path / "calls"
    programs = place.directory("programs")
    (programs / "stat").write_text(f'#!/bin/sh\necho "$@" >>{calls}\nexec /usr/bin/stat "$@"\n')
    (programs / "stat").chmod(0o755)
    env = {"TMPDIR": str(place.work), "LD_LIBRARY_PATH": "/x", "SLURM_CPUS_PER_TASK": "2"}
    assert words(place.run(command, env={**env, "PATH": str(programs)}))[-2] == "python"
    assert calls.read_text().splitlines() == [f"-L -c %s %Y %Z %i {command.parents[1]}/image.sif"]


RANKS = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}


CRAY = {**RANKS, "PALS_RANKID": "0", "PMI_RANK": "0"}
MPICH, OPEN_MPI = ("mpich", "5.0.2", False), ("openmpi", "5.0.11", False)
ALONE = {
    MPICH: "mpich 5.0.2 speaks pmi2",
    OPEN_MPI: "openmpi 5.0.11 speaks pmix, pmix_v3, pmix_v4, pmix_v5",
}


@pytest.mark.parametrize(
    ("env", "mpi", "started_with"),
    [
        (RANKS, MPICH, "none"),
        ({**RANKS, "SLURM_PROCID": "1"}, MPICH, None),
        ({**RANKS, "PMI_RANK": "0"}, MPICH, None),
        ({**RANKS, "PMI_FD": "3"}, MPICH, None),
        ({**RANKS, "PMI_RANK": "0"}, OPEN_MPI, "pmi2"),
        # Our build of MPICH has no PMIx; a host's may.
        ({**RANKS, "PMIX_NAMESPACE": "x"}, MPICH, "pmix"),
        ({**RANKS, "PMIX_NAMESPACE": "x"}, ("mpich", "5.0.2", True), None),
        ({**RANKS, "PMIX_NAMESPACE": "x"}, OPEN_MPI, None),
        ({**RANKS, "PMIX_RANK": "0"}, ("openmpi", "4.1", False), None),
        (CRAY, MPICH, "cray_shasta"),
        (CRAY, ("cray-mpich", "8.1.32", True), None),
        ({**RANKS, "SLURM_STEP_NUM_TASKS": "1"}, MPICH, None),
        (RANKS, ("", "", False), None),
        ({}, MPICH, None),
    ],
)
def test_tasks_without_a_pmi_of_their_mpi_are_warned_of_once(launcher, place, env, mpi, started_with):
    family, version, host = mpi
    done = place.run(launcher(mpi=family, lone_tasks=lone_tasks(family, version, host=host)), env=env)
    assert words(done)[-2] == "python"
    warnings = [line for line in done.stderr.splitlines() if "tasks" in line]
    expected = (
        f"envbuild: 4 tasks: {ALONE.get(mpi)}, and srun started them with {started_with}: each rank would run"
        " as rank 0 of 1 (`srun --mpi=list` shows the types)"
    )
    assert warnings == ([expected] if started_with else [])


@pytest.mark.parametrize(
    ("env", "set_"),
    [
        (RANKS, ["UCX_TLS=^cma"]),
        # What the user has set is the user's decision, be it nothing.
        ({**RANKS, "UCX_TLS": "all"}, ["UCX_TLS=all"]),
        ({**RANKS, "UCX_TLS": ""}, ["UCX_TLS="]),
        # Ranks that the image's mpiexec starts share one container.
        ({**RANKS, "SLURM_STEP_NUM_TASKS": "1"}, []),
        ({}, []),
    ],
)
def test_tasks_in_containers_apart_are_told_so(launcher, place, env, set_):
    stand_in = place.path / "shows-environment"
    stand_in.write_text("#!/bin/sh\nexec env\n")
    stand_in.chmod(0o755)
    done = place.run(launcher(apptainer={"program": stand_in}, rank_environment={"UCX_TLS": "^cma"}), env=env)
    assert [word for word in words(done) if word.startswith("UCX_")] == set_


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"PMIX_SECURITY_MODE": "munge"}, "munge"),
        ({"PMIX_SECURITY_MODE": "munge", "PMIX_MCA_psec": "native"}, "native"),
    ],
)
def test_the_security_of_pmix_is_told_in_the_images_words(launcher, place, env, expected):
    assert words(place.run(launcher(), env=env))[-1] == f"psec={expected}"


def test_apptainer_itself_starts_without_the_hosts_libraries(launcher, place):
    stand_in = place.path / "shows-environment"
    stand_in.write_text("#!/bin/sh\nexec env\n")
    stand_in.chmod(0o755)
    # Some settings of the loader would stop the shell itself.
    dropped = {
        name: "/x" for name in MISLEADING if name not in ("LD_PRELOAD", "LD_AUDIT", "LD_DEBUG", "LD_PROFILE")
    }
    dropped = {name: value for name, value in dropped.items() if not name.startswith("LD_TRACE")}
    seen = words(place.run(launcher(apptainer={"program": stand_in}), env={**dropped, "KEPT": "a  b"}))
    assert "KEPT=a  b" in seen
    names = {line.partition("=")[0] for line in seen}
    assert not names & set(MISLEADING)
    assert not [name for name in names if name.startswith("_eb_")]
    # `launch` drops the same.
    assert visible_variables((*dropped, "KEPT")) == ("KEPT",)


def test_another_apptainer_can_be_named(launcher, place):
    other = place.path / "other"
    other.write_text("#!/bin/sh\necho other\n")
    other.chmod(0o755)
    assert words(place.run(launcher(), env={"ENVBUILD_APPTAINER": str(other)})) == ["other"]


def test_where_it_went_the_one_on_path_is_taken(launcher, place):
    command = launcher(apptainer={"program": place.path / "gone"})
    done = place.run(command, env={"PATH": f"{place.path}:/usr/bin:/bin"})
    assert words(done)[:2] == ["--silent", "exec"]


@pytest.mark.parametrize("scratch", ['with "quotes"', "missing", "relative"])
def test_scratch_that_cannot_be_bound_is_left_out(launcher, place, scratch):
    place.directory('with "quotes"')
    value = "." if scratch == "relative" else str(place.path / scratch)
    assert "--mount" not in words(place.run(launcher(), env={"TMPDIR": value}))


def test_a_kernel_sees_its_connection_file_wherever_it_lies(launcher, place):
    spec, elsewhere = place.directory("spec"), place.directory("of an editor")
    arguments = ("start.py", "-f", f"{elsewhere}/kernel-1.json")
    found = words(place.run(launcher(), *arguments, env={"ENVBUILD_KERNEL": str(spec)}))
    assert f'type=bind,"src={elsewhere}","dst={elsewhere}"' in found
    # Another program's `-f` is not a connection file.
    assert not any(str(elsewhere) in word for word in words(place.run(launcher(), *arguments))[:-3])


MEETING = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500", "train.py")
STEP = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(
    ("name", "arguments", "env", "refused"),
    [
        ("torchrun", ["train.py"], {}, ""),
        ("torchrun", ["train.py"], {**STEP, "SLURM_STEP_NUM_NODES": "1"}, "torchrun"),
        ("torchrun", ["train.py"], {**STEP, "SLURM_STEP_NUM_NODES": "2"}, "torchrun"),
        ("torchrun", MEETING, {**STEP, "SLURM_STEP_NUM_NODES": "1"}, "torchrun"),
        ("torchrun", MEETING, {**STEP, "SLURM_STEP_NUM_NODES": "2"}, ""),
        ("python", ["-m", "torch.distributed.run", "train.py"], STEP, "torchrun"),
        ("envbuild-exec", ["env", "A=b", "accelerate", "launch", "train.py"], STEP, "accelerate"),
        ("mpiexec", ["-n", "4", "python", "train.py"], {**STEP, "SLURM_STEP_NUM_NODES": "2"}, ""),
        # Started by the host's mpiexec.
        ("torchrun", ["train.py"], {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}, "torchrun"),
        ("torchrun", MEETING, {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}, ""),
        (
            "torchrun",
            MEETING,
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "SLURM_STEP_NUM_TASKS": "1"},
            "torchrun",
        ),
        # By the image's own, whose ranks are all on this machine.
        ("mpiexec", ["-n", "2", "torchrun", "train.py"], {}, "torchrun"),
        ("mpiexec", ["-np", "2", "-genv", "A", "b", "torchrun", *MEETING], {}, "torchrun"),
        (
            "mpiexec",
            ["--hostfile", "hosts", "-n", "2", "python", "-m", "torch.distributed.run"],
            {},
            "torchrun",
        ),
        ("mpiexec", ["-n", "2", "env", "A=b", "deepspeed", "train.py"], {}, "deepspeed"),
        ("envbuild-exec", ["mpiexec", "-n", "2", "torchrun", "train.py"], {}, "torchrun"),
        ("mpiexec", ["-n=2", "env", "--chdir", "/tmp", "torchrun", "train.py"], {}, "torchrun"),
        ("mpiexec", ["-n", "1", "torchrun", "a.py", ":", "-n", "1", "torchrun", "b.py"], {}, "torchrun"),
        ("envbuild-exec", ["strace", "-f", "torchrun", "train.py"], STEP, "torchrun"),
        ("mpiexec", ["-n", "1", "torchrun", "train.py"], {}, ""),
        ("mpiexec", ["torchrun", "train.py"], {}, ""),
        ("mpiexec", ["-n", "2", "python", "train.py", "torchrun"], {}, ""),
        ("mpiexec", ["-n", "2", "/bin/echo", "torchrun"], {}, ""),
    ],
)
def test_a_launcher_of_the_user_s_does_not_start_on_several_ranks(
    launcher, place, name, arguments, env, refused
):
    command = launcher(commands=("envbuild-exec", "mpiexec", "python", "python3", "torchrun"))
    done = place.run(command.with_name(name), *arguments, env=env)
    if not refused:
        # The stand-in's `echo` takes `-n` for an option.
        shown = [word for word in arguments if word != "-n"]
        assert words(done)[-1 - len(shown) : -1] == shown
        return
    assert (done.returncode, done.stdout) == (2, "")
    assert f"envbuild: {refused} starts ranks itself: on each of" in done.stderr


def test_one_rank_says_why_a_launcher_does_not_start(launcher, place):
    command = launcher(commands=("python", "python3", "torchrun")).with_name("torchrun")
    done = place.run(command, "train.py", env={**STEP, "SLURM_PROCID": "1"})
    assert (done.returncode, done.stderr) == (2, "")


def test_open_mpi_starts_as_many_ranks_as_there_are_cores(launcher, place):
    command = launcher(mpi="openmpi", commands=("mpiexec", "python", "python3"))
    assert place.run(command.with_name("mpiexec"), "torchrun", "train.py").returncode == 2


TORCH = {"python_packages": (ImagePackage(name="torch", version="2.13.0", requested=True),)}
BY_SCRIPT = ["sh", "/.envbuild/ranks.sh"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["-n", "2", "python", "train.py", "-n", "x"],
            ["-n", "2", *BY_SCRIPT, "python", "train.py", "-n", "x"],
        ),
        (["--allow-run-as-root", "-np", "2", "a"], ["--allow-run-as-root", "-np", "2", *BY_SCRIPT, "a"]),
        (
            ["-n", "1", "a", "b", ":", "-n", "1", "c"],
            ["-n", "1", *BY_SCRIPT, "a", "b", ":", "-n", "1", *BY_SCRIPT, "c"],
        ),
        (["-genv", "A", "b c", "-n", "2", "a", ""], ["-genv", "A", "b c", "-n", "2", *BY_SCRIPT, "a", ""]),
        (["--version"], ["--version"]),
        ([], []),
    ],
)
def test_mpiexec_gives_the_ranks_of_pytorch_their_variables(launcher, place, arguments, expected):
    own = (*OWN_COMMANDS, "mpiexec")
    command = launcher(manifest=TORCH, commands=own)
    image = str(command.parents[1] / "image.sif")
    mpiexec = command.with_name("mpiexec")
    assert words(place.run(mpiexec, *arguments))[2:-1] == [image, "mpiexec", *expected]
    plain = launcher(make=False, commands=own).with_name("mpiexec")
    assert words(place.run(plain, *arguments))[2:-1] == [image, "mpiexec", *arguments]


def test_tasks_of_srun_get_the_variables_of_pytorch(launcher, place):
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "PMI_FD": "3"}
    command = launcher(manifest=TORCH)
    image = str(command.parents[1] / "image.sif")
    assert words(place.run(command, "train.py", env=step))[2:-1] == [image, *BY_SCRIPT, "python", "train.py"]
    assert words(place.run(command, "train.py"))[2:-1] == [image, "python", "train.py"]


OBSERVED = ["/usr/bin/python3", "-I", "/.envbuild/lib/envbuild/jobs/observe.py"]


def test_ranks_of_an_observed_command_start_with_the_recorder(launcher, place):
    command = launcher(manifest=TORCH, commands=(*OWN_COMMANDS, "mpiexec"))
    image, records = str(command.parents[1] / "image.sif"), str(place.path / "records")
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "PMI_FD": "3", "ENVBUILD_OBSERVE": records}
    mount = ["--mount", f'type=bind,"src={records}","dst={records}"']
    alone = words(place.run(command, "train.py", env={"ENVBUILD_OBSERVE": records}))
    assert alone[2:-1] == [*mount, image, *OBSERVED, "python", "train.py"]
    assert words(place.run(command, "a", env=step))[2:-1] == [
        *mount,
        image,
        *OBSERVED,
        *BY_SCRIPT,
        "python",
        "a",
    ]
    ranks = place.run(command.with_name("mpiexec"), "-n", "2", "a b", env={"ENVBUILD_OBSERVE": records})
    assert words(ranks)[2:-1] == [*mount, image, "mpiexec", "-n", "2", *OBSERVED, *BY_SCRIPT, "a b"]


def test_a_command_runs_unobserved_if_the_directory_of_records_cannot_be_made(launcher, place):
    command = launcher()
    (place.path / "file").write_text("")
    records = str(place.path / "file/records")
    done = place.run(command, "train.py", env={"ENVBUILD_OBSERVE": records})
    image = str(command.parents[1] / "image.sif")
    assert words(done)[2:-1] == [image, "python", "train.py"]
    assert f"envbuild: python is not observed: `{records}` cannot be made" in done.stderr

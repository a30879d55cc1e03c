import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.activate.kernel import KernelImage, install_kernel
from envbuild.activate.launcher import launcher_text, stamp_of
from envbuild.activate.model import Installation
from envbuild.image.runnable import DescribedImage
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.spec.site import SiteBind
from envbuild.system.apptainer import Apptainer

ROOT = Path("/sw/a b's $(x)")


@pytest.fixture
def installation(manifest):
    return Installation(
        root=ROOT,
        image=Path("/i.sif"),
        runnable=manifest(),
        apptainer=Apptainer(program=Path("/usr/bin/apptainer"), version="1.4.5"),
        binds=(
            SiteBind(source="/data", writable=False),
            SiteBind(source='/scratch/x,"y":z', target="/s"),
        ),
    )


def settings(installation: Installation) -> dict[str, str]:
    """Read the settings back with a shell."""
    text = launcher_text(installation).split("\n# Every command")[0]
    names = ("label", "home", "image", "stamp", "digest", "binds", "mpi", "host_binds")
    show = "".join(f"printf '%s\\0' \"$_eb_{name}\"\n" for name in names)
    done = subprocess.run(
        ["/bin/sh", "-eu"], input=f"{text}\n{show}", capture_output=True, text=True, check=True
    )
    return dict(zip(names, done.stdout.split("\0"), strict=False))


def test_settings_are_quoted_for_the_shell(installation):
    found = settings(installation)
    home = f"{ROOT}/envs/pytorch-mpi/2026.11"
    assert (found["home"], found["image"], found["stamp"]) == (home, f"{home}/image.sif", "")
    assert (found["digest"], found["mpi"]) == (installation.runnable.digest, "mpich")
    linked = settings(replace(installation, linked=True, stamp="1 2 3 4"))
    assert (linked["image"], linked["stamp"]) == ("/i.sif", "1 2 3 4")


def test_each_bind_is_a_line_with_its_mount_quoted_as_in_csv(installation):
    assert sorted(settings(installation)["binds"].splitlines()) == [
        '/data\t"type=bind","src=/data","dst=/data",ro',
        '/scratch/x,"y":z\t"type=bind","src=/scratch/x,""y"":z","dst=/s"',
    ]


def test_host_libraries_are_bound_from_the_last_to_the_first(installation):
    host_libs = HostLibraryPlan(
        files={"b.so.1": "/h/a b.so.1"}, environment={"LD_LIBRARY_PATH": "/media/x:/opt $(y)"}
    )
    hosted = replace(installation, host_libs=host_libs)
    library, stage = settings(hosted)["host_binds"].splitlines()
    assert library == '/h/a b.so.1\t"type=bind","src=/h/a b.so.1","dst=/media/envbuild/b.so.1",ro'
    assert stage.startswith(f"{ROOT}/envs/pytorch-mpi/2026.11/host\t")
    assert "export APPTAINERENV_LD_LIBRARY_PATH='/media/x:/opt $(y)'\n" in launcher_text(hosted)


def test_a_stamp_is_what_stat_prints(tmp_path):
    (tmp_path / "i.sif").write_bytes(b"image")
    (tmp_path / "link").symlink_to("i.sif")
    done = subprocess.run(
        ["stat", "-L", "-c", "%s %Y %Z %i", tmp_path / "link"], capture_output=True, text=True, check=True
    )
    assert stamp_of(tmp_path / "link") == done.stdout.rstrip()


def test_the_script_is_plain_posix_and_ends_in_exec(installation):
    text = launcher_text(installation)
    assert text.startswith("#!/bin/sh\n")
    assert text.rstrip().splitlines()[-1] == 'exec "$_eb_apptainer" --silent "$_eb_action" "$@"'
    subprocess.run(["/bin/sh", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(("version", "cdi"), [("1.4.5", ""), ("1.5.0", "yes"), ("singularity-ce 4.3.7", "")])
@pytest.mark.parametrize(("unprivileged", "userns"), [(False, ""), (True, "yes")])
def test_the_kernel_of_an_image_starts_as_the_site_says(
    installation, tmp_path, version, cdi, unprivileged, userns
):
    apptainer = Apptainer(program=Path("/a"), version=version, unprivileged=unprivileged)
    image = KernelImage(
        path=Path("/i.sif"), runnable=installation.runnable, apptainer=apptainer, stamp="", repeat=()
    )
    text = install_kernel(tmp_path / "k", title="k", image=image, python=None).read_text()
    module = launcher_text(replace(installation, apptainer=apptainer))
    for setting in (f"_eb_userns={userns or chr(39) * 2}\n", f"_eb_cdi={cdi or chr(39) * 2}\n"):
        assert setting in text
        assert setting in module


def test_the_kernel_of_an_image_has_the_software_of_its_site(installation, tmp_path):
    host_libs = HostLibraryPlan(
        files={"libfast.so.1": "/opt/fast/libfast.so.1"},
        python={"fast": str(tmp_path)},
        environment={"FAST_HOME": "/opt/fast"},
    )
    image = KernelImage(
        path=Path("/i.sif"),
        runnable=installation.runnable,
        apptainer=Apptainer(program=Path("/a"), version="1.4.5"),
        host_libs=host_libs,
        stamp="",
        repeat=(),
    )
    text = install_kernel(tmp_path / "k", title="k", image=image, python=None).read_text()
    assert "export APPTAINERENV_FAST_HOME=/opt/fast\n" in text
    assert "/opt/fast/libfast.so.1" in text
    assert (tmp_path / "k/host/envbuild/libfast.so.1").is_file()
    assert (tmp_path / "k/host/envbuild-python/fast").is_dir()


@pytest.mark.redteam
def test_the_kernel_of_an_image_does_not_start_another_one(installation, tmp_path):
    """As a module's commands do not: the image was compared when the kernelspec was written."""
    path, program = tmp_path / "i.sif", tmp_path / "apptainer"
    path.write_text("tested")
    program.write_text("#!/bin/sh\necho started\n")
    program.chmod(0o755)
    image = KernelImage(
        path=path,
        runnable=installation.runnable,
        apptainer=Apptainer(program=program, version="1.4.5"),
        stamp=stamp_of(path),
        repeat=("envbuild", "kernel", "install", str(path)),
    )
    launcher = install_kernel(tmp_path / "k", title="k", image=image, python=None)

    def start() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [launcher], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
        )

    assert (start().returncode, start().stdout) == (0, "started\n")
    (tmp_path / "other.sif").write_text("other!")
    (tmp_path / "other.sif").replace(path)
    assert (start().returncode, start().stdout) == (121, "")
    assert f"\nenvbuild:     envbuild kernel install {path}\n" in start().stderr


def described(*, locale: str = "") -> DescribedImage:
    """Return an image of another tool, with what is known of it."""
    return DescribedImage(
        name="theirs",
        version="1",
        summary="",
        digest=f"sha256:{'0' * 64}",
        architecture="amd64",
        base="image",
        glibc="2.36",
        python="3.11",
        accelerator="cpu",
        locale=locale,
    )


def shown(installation: Installation, *names: str, **env: str) -> list[str]:
    """Run the settings of a launcher, and return what its commands would get of these variables."""
    show = "".join(f"\nprintf '%s\\n' \"${{{name}:-}}\"" for name in names)
    script = launcher_text(installation).split("\n# Every command")[0] + show
    env = {"PATH": "/usr/bin:/bin", **env}
    return subprocess.run(
        ["/bin/sh", "-eu"], input=script, env=env, capture_output=True, text=True, check=True
    ).stdout.split("\n")[: len(names)]


def test_an_image_of_another_tool_starts_in_the_locale_that_it_has(installation):
    def seen(locale: str) -> list[str]:
        theirs = replace(installation, runnable=described(locale=locale))
        return shown(theirs, "LC_ALL", LC_ALL="de_DE.UTF-8")

    assert seen("C.UTF-8") == ["C.UTF-8"]
    assert seen("") == ["de_DE.UTF-8"]


def test_the_mpiexec_of_an_image_of_another_tool_stays_on_its_host(installation):
    """In a job it would take the job's nodes, which neither srun nor ssh of the image reaches."""
    names = ("HYDRA_LAUNCHER", "I_MPI_HYDRA_BOOTSTRAP", "PRTE_MCA_ras")
    theirs = replace(installation, runnable=described())
    off = "^slurm,pbs,tm,lsf,gridengine"
    assert shown(theirs, *names) == ["fork", "fork", off]
    # The user's own choice stays. An image of envbuild sets them itself.
    assert shown(theirs, *names, HYDRA_LAUNCHER="ssh") == ["ssh", "fork", off]
    assert shown(installation, *names) == ["", "", ""]

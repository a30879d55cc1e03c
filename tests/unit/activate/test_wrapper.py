import subprocess
from dataclasses import replace
from pathlib import Path

from envbuild.activate.wrapper import Launch, launcher_text, mount_text, stamp_of
from envbuild.spec.site import SiteBind
from envbuild.system.apptainer import Bind

LAUNCH = Launch(
    label="a/1", home=Path("/sw/a b's $(x)"), image=Path("/sw/i.sif"), stamp="", digest="sha256:1",
    commands=("python",), mpi="mpich", apptainer=Path("/usr/bin/apptainer"),
    binds=(
        SiteBind(source="/data", target="/data"),
        SiteBind(source="/scratch/x y", target="/s", writable=True),
    ),
)  # fmt: skip


def settings(launch: Launch) -> dict[str, str]:
    """Read the settings back with a shell."""
    head = [
        line for line in launcher_text(launch).split("\n# Every command")[0].splitlines() if line[:1] != "#"
    ]
    names = ("label", "home", "image", "stamp", "digest", "binds", "mpi", "lent")
    show = "".join(f"printf '%s\\0' \"$_eb_{name}\"\n" for name in names)
    done = subprocess.run(
        ["/bin/sh", "-eu"], input="\n".join(head) + "\n" + show, capture_output=True, text=True, check=True
    )
    return dict(zip(names, done.stdout.split("\0"), strict=False))


def test_settings_are_quoted_for_the_shell():
    found = settings(LAUNCH)
    assert found["home"] == "/sw/a b's $(x)"
    assert (found["image"], found["stamp"], found["digest"]) == ("/sw/i.sif", "", "sha256:1")
    assert found["mpi"] == "mpich"


def test_binds_stand_one_a_line():
    lines = settings(LAUNCH)["binds"].splitlines()
    assert sorted(lines) == [
        '/data\t"type=bind","src=/data","dst=/data",ro',
        '/scratch/x y\t"type=bind","src=/scratch/x y","dst=/s"',
    ]


def test_what_the_host_lends_stands_from_the_last_to_the_first():
    lent = (Bind(source="/stage", target="/media"), Bind(source="/h/a b.so.1", target="/media/x/b.so.1"))
    launch = replace(LAUNCH, lent=lent, variables=(("LD_LIBRARY_PATH", "/media/x:/opt $(y)"),))
    assert settings(launch)["lent"].splitlines() == [
        '/h/a b.so.1\t"type=bind","src=/h/a b.so.1","dst=/media/x/b.so.1",ro',
        '/stage\t"type=bind","src=/stage","dst=/media",ro',
    ]
    assert "export APPTAINERENV_LD_LIBRARY_PATH='/media/x:/opt $(y)'\n" in launcher_text(launch)


def test_a_mount_is_quoted_as_in_csv():
    bind = SiteBind(source='/a,"b":c', target="/d")
    assert mount_text(bind) == '"type=bind","src=/a,""b"":c","dst=/d",ro'


def test_a_stamp_is_what_stat_prints(tmp_path):
    (tmp_path / "i.sif").write_bytes(b"image")
    (tmp_path / "link").symlink_to("i.sif")
    done = subprocess.run(
        ["stat", "-L", "-c", "%s %Y", tmp_path / "link"], capture_output=True, text=True, check=True
    )
    stamp = stamp_of(tmp_path / "link")
    assert stamp == done.stdout.rstrip()
    assert settings(replace(LAUNCH, stamp=stamp))["stamp"] == stamp


def test_the_script_is_plain_posix_and_ends_in_exec():
    text = launcher_text(LAUNCH)
    assert text.startswith("#!/bin/sh\n")
    assert text.rstrip().splitlines()[-1] == 'exec "$_eb_apptainer" --silent "$_eb_action" "$@"'
    subprocess.run(["/bin/sh", "-n"], input=text, text=True, check=True)

"""Stock Apptainer with our images: what people expect of any image holds for these."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.image.file import ImageFile
from envbuild.image.layout import write_statements
from envbuild.image.statements import sign_statement
from envbuild.system import host
from envbuild.system.keys import PrivateKey
from envbuild.workflows.sign import make_key
from tests.integration.image.conftest import Sample
from tests.support import trees
from tests.support.images import read_manifest, read_sif, verify_image

GREETING = "it's $HOME `here`"
START = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INNER = f"/opt/env/bin:/opt/mpi/bin:{START}"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def run(program: str) -> Run:
    """Start something in an image."""

    def start(
        action: str,
        image: Path | str,
        *argv: str,
        options: Sequence[str] = (),
        before: Sequence[str] = ("--silent",),
        env: dict[str, str] | None = None,
        stdin: str = "",
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [program, *before, *action.split(), *options, str(image), *argv],
            env=host.environment(extra=env),
            cwd="/",
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return start


def variables(run: Run, image: Path, **settings: object) -> dict[str, str]:
    done = run("exec", image, "env", **settings)
    assert done.returncode == 0, done.stderr
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines())


@pytest.fixture(scope="session")
def image(sample: Sample) -> Path:
    return sample.image


def test_exec(run: Run, image: Path) -> None:
    done = run("exec", image, "hello", "a", "b  c", "", "$d")
    assert (done.returncode, done.stdout) == (0, "hello a b  c  $d\n")
    assert run("exec", image, "sh", "-c", "exit 7").returncode == 7


def test_layers_add_replace_and_hide(run: Run, image: Path) -> None:
    script = "cat /opt/env/lib/one /opt/env/lib64/two; ls /etc/hidden /srv/hidden; ls /srv"
    script += "; ls -ld / /usr/bin/set-id"
    done = run("exec", image, "sh", "-c", script)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["base", "middle"]
    assert [line[:10] for line in lines[2:]] == ["drwxr-xr-x", "-rwsr-xr-x"]
    assert len(re.findall("No such file or directory", done.stderr)) == 2


def test_run(run: Run, image: Path) -> None:
    done = run("run", image, "hello", "x y")
    assert (done.returncode, done.stdout) == (0, "hello x y\n")
    assert run("run", image, "sh", "-c", "exit 9").returncode == 9
    # Without arguments a shell, which reads what it is given.
    done = run("run", image, stdin="echo $VIRTUAL_ENV; exit 3\n")
    assert (done.returncode, done.stdout) == (3, "/opt/env\n")


def test_shell(run: Run, image: Path) -> None:
    done = run("shell", image, stdin="echo $GREETING\n")
    assert done.returncode == 0
    assert GREETING in done.stdout


def test_test_gives_the_verdict(run: Run, image: Path) -> None:
    done = run("test", image, "--ranks", "4")
    assert (done.returncode, done.stdout) == (0, "python3 -I /.envbuild/judge.py test --ranks 4\n")
    assert run("test", image, options=["--env", "VERDICT=4"]).returncode == 4


def test_inspect(program: str, image: Path) -> None:
    """Without a start of the image, hence also for a root that lacks capabilities."""

    def inspect(*options: str) -> str:
        return subprocess.run(
            [program, "inspect", *options, image], capture_output=True, text=True, check=True
        ).stdout

    expected = trees.labels_of(inspect("--json", "--labels"))
    assert expected["org.opencontainers.image.title"] == "demo"
    assert expected["org.example.contact"] == "help@example.org"
    assert "envbuild.recipe.pytorch: 2.13.0\n" in inspect("--labels")
    assert '/judge.py test "$@"' in inspect("--test")
    assert "# Made by envbuild from a lock" in inspect("--deffile")
    assert "a demonstration" in inspect("--helpfile")
    assert "export PYTHONNOUSERSITE" in inspect("--environment")
    assert 'exec "$@"' in inspect("--runscript")


def test_environment(run: Run, image: Path) -> None:
    seen = variables(run, image)
    assert seen["GREETING"] == GREETING
    assert seen["PATH"] == INNER
    assert seen["LD_LIBRARY_PATH"] == "/opt/fabric/lib:/opt/mpi/lib:/.singularity.d/libs"
    assert (seen["VIRTUAL_ENV"], seen["PYTHONNOUSERSITE"]) == ("/opt/env", "1")


def test_the_hosts_python_settings_and_locale_stay_outside(run: Run, image: Path) -> None:
    outside = {
        "PYTHONPATH": "/host",
        "PYTHONHOME": "/host",
        "VIRTUAL_ENV": "/host",
        "LD_LIBRARY_PATH": "/host",
        "LC_ALL": "de_DE.UTF-8",
        "KEPT": "by default",
    }
    seen = variables(run, image, env=outside)
    assert not {"PYTHONPATH", "PYTHONHOME"} & set(seen)
    assert seen["VIRTUAL_ENV"] == "/opt/env"
    assert seen["LC_ALL"] == "C.UTF-8"
    assert "/host" not in seen["LD_LIBRARY_PATH"]
    assert seen["KEPT"] == "by default"


def test_what_is_set_on_purpose_wins(run: Run, image: Path) -> None:
    options = ["--env", "PYTHONPATH=/mine", "--env", "GREETING=moin", "--env", "LD_LIBRARY_PATH=/mine/lib"]
    seen = variables(run, image, options=options, env={"APPTAINERENV_EXTRA": "a b", "PYTHONPATH": "/host"})
    assert (seen["PYTHONPATH"], seen["GREETING"], seen["EXTRA"]) == ("/mine", "moin", "a b")
    assert seen["LD_LIBRARY_PATH"] == "/mine/lib:/.singularity.d/libs"


def test_paths_given_by_the_user(run: Run, image: Path) -> None:
    around = {"APPTAINERENV_PREPEND_PATH": "/front", "APPTAINERENV_APPEND_PATH": "/back"}
    seen = variables(run, image, env=around)
    assert seen["PATH"] == f"/front:{INNER}:/back"
    assert not [name for name in seen if name.startswith("SING_USER_DEFINED")]
    assert variables(run, image, env={"APPTAINERENV_PATH": "/only:/usr/bin"})["PATH"] == "/only:/usr/bin"


def test_contained_and_clean(run: Run, image: Path) -> None:
    options = ["--containall", "--cleanenv", "--no-home"]
    seen = variables(run, image, options=options, env={"LOST": "1"})
    assert "LOST" not in seen
    assert seen["PATH"] == INNER


def test_nv_without_a_gpu_warns_and_runs(run: Run, image: Path) -> None:
    done = run("exec", image, "hello", options=["--nv"], before=())
    assert (done.returncode, done.stdout) == (0, "hello \n")


def test_writable_tmpfs(run: Run, image: Path) -> None:
    done = run("exec", image, "hello", options=["--writable-tmpfs"])
    assert (done.returncode, done.stdout) == (0, "hello \n")


def without_overlay(program: str, directory: Path) -> str:
    """A copy of this Apptainer's configuration, with overlay disabled."""
    told = subprocess.run([program, "buildcfg"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"^APPTAINER_CONF_FILE=(.+)$", told, re.MULTILINE)
    assert found is not None
    text, count = re.subn(r"(?m)^enable overlay = .*$", "enable overlay = no", Path(found[1]).read_text())
    assert count == 1
    path = directory / "no-overlay.conf"
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


@pytest.mark.parametrize("action", ["exec", "run", "shell", "test"])
def test_it_needs_no_overlay(run: Run, program: str, sample: Sample, action: str) -> None:
    """Sites may disable it (`enable overlay = no`): the image is one file system."""
    before = ["--silent", "--config", without_overlay(program, sample.directory)]
    argv, stdin, shown = ["hello", "x"], "", "hello x\n"
    if action == "shell":
        argv, stdin = [], "hello x\n"
    elif action == "test":
        argv, shown = [], "python3 -I /.envbuild/judge.py test\n"
    done = run(action, sample.image, *argv, before=before, stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_overlay_is_disabled_by_that_configuration(run: Run, program: str, sample: Sample) -> None:
    """The tests without it do what they say: there, a layer cannot be laid over another."""
    base, options = sample.layers["base"], ["--overlay", f"{sample.layers['middle']}:ro"]
    words = ["/bin/sh", "/opt/env/bin/hello"]
    assert run("exec", base, *words, options=options).stdout == "hello \n"
    before = ["--silent", "--config", without_overlay(program, sample.directory)]
    assert run("exec", base, *words, options=options, before=before).returncode != 0


def test_underlay(run: Run, image: Path) -> None:
    done = run("exec", image, "hello", "below", options=["--underlay"])
    assert (done.returncode, done.stdout) == (0, "hello below\n")


def test_a_layer_that_is_a_root_starts_alone(run: Run, sample: Sample) -> None:
    """As a build step starts it."""
    done = run("exec", sample.layers["base"], "cat", "/etc/hidden", "/etc/replaced")
    assert (done.returncode, done.stdout) == (0, "base\nbase\n")


def test_instance(run: Run, sample: Sample) -> None:
    name = f"envbuild-test-{os.getpid()}"
    started = run("instance start", sample.image, name)
    assert started.returncode == 0, started.stderr
    try:
        done = run("exec", f"instance://{name}", "hello", "there")
    finally:
        stopped = run("instance stop", name)
    assert (done.stdout, stopped.returncode) == ("hello there\n", 0)


def test_tables_as_apptainer_reads_them(program: str, image: Path) -> None:
    listed = subprocess.run([program, "sif", "list", image], capture_output=True, text=True, check=True)
    kinds = [line.split("|")[-1] for line in listed.stdout.splitlines() if re.match(r"\d", line)]
    assert kinds == [
        "Def.FILE",
        "JSON.Generic",
        "JSON.Labels",
        "JSON.Generic",
        "Generic/Raw",
        "JSON.Generic",
        "SBOM (cyclonedx-json)",
        "FS (Squashfs/*System/amd64)",
    ]
    header = subprocess.run([program, "sif", "header", image], capture_output=True, text=True, check=True)
    facts = dict(re.findall(r"(?m)^([^:]+): +(.*)$", header.stdout))
    assert facts["ID"] == str(read_sif(image).identity)
    assert (facts["Descriptors Free"], facts["Primary Architecture"]) == ("40", "amd64")
    assert facts["Created At"] == "1970-01-01 00:00:00 +0000 UTC"


def test_data_as_apptainer_dumps_it(program: str, sample: Sample) -> None:
    def dump(number: int) -> bytes:
        return subprocess.run(
            [program, "sif", "dump", str(number), sample.image], capture_output=True, check=True
        ).stdout

    assert dump(4).decode() == sample.manifest.to_json()
    assert json.loads(dump(3))["org.opencontainers.image.version"] == "2026.11"
    content, system = dump(8), sample.manifest.file_system
    assert system is not None
    assert len(content) == system.size_bytes
    for layer in system.layers:
        data = content[layer.offset : layer.offset + layer.size_bytes]
        assert "sha256:" + hashlib.sha256(data).hexdigest() == layer.data
        assert data in sample.layers[layer.name].read_bytes()


def test_a_sif_of_apptainers_own(program: str, sample: Sample, tmp_path: Path) -> None:
    """Files that others wrote are read, and told from ours."""
    path, base = tmp_path / "foreign.sif", sample.layers["base"]
    subprocess.run([program, "sif", "new", path], capture_output=True, check=True)
    add = ["--datatype", "4", "--partfs", "1", "--parttype", "2", "--partarch", "2", "--groupid", "1"]
    subprocess.run([program, "sif", "add", *add, path, base], capture_output=True, check=True)
    root = read_sif(path).root
    assert root is not None
    assert path.read_bytes()[root.offset : root.end] == base.read_bytes()
    with pytest.raises(RequestError, match=r"`foreign\.sif` is a SIF that envbuild did not build"):
        read_manifest(path)


@pytest.mark.redteam
@pytest.mark.parametrize(
    "options",
    [
        ["--datatype", "7"],
        ["--datatype", "4", "--parttype", "4", "--partfs", "1", "--partarch", "2", "--groupid", "1"],
        ["--datatype", "4", "--parttype", "3", "--partfs", "1", "--partarch", "2", "--groupid", "1"],
    ],
)
def test_an_object_added_by_apptainer_is_a_change(
    program: str, sample: Sample, tmp_path: Path, options: list[str]
) -> None:
    """An overlay partition changes what runs, and so may other objects in other runtimes."""
    path = tmp_path / "copy.sif"
    path.write_bytes(sample.image.read_bytes())
    words: list[str | Path] = [program, "sif", "add", *options, path, sample.layers["base"]]
    subprocess.run(words, capture_output=True, check=True)
    assert len(read_sif(path).objects) == len(read_sif(sample.image).objects) + 1
    assert read_manifest(path) == sample.manifest
    assert verify_image(path) == ("objects or bytes that were added",)


def test_a_signed_image_is_as_it_was_built(program: str, sample: Sample, tmp_path: Path) -> None:
    path, key = tmp_path / "signed.sif", tmp_path / "key.pem"
    path.write_bytes(sample.image.read_bytes())
    commands: list[list[str | Path]] = [
        ["openssl", "genrsa", "-out", key, "2048"],
        [program, "sign", "--key", key, path],
    ]
    for words in commands:
        subprocess.run(words, capture_output=True, check=True)
    assert path.stat().st_size > sample.image.stat().st_size
    assert verify_image(path) == ()


def test_a_signed_image_runs_and_its_signatures_do_not_disturb_apptainers(
    run: Run, image: Path, tmp_path: Path
) -> None:
    key, other = make_key(tmp_path / "a.key"), make_key(tmp_path / "b.key")
    signed = tmp_path / "signed.sif"
    shutil.copy(image, signed)
    subjects = {"demo": "0" * 64}
    statement = sign_statement("bill", {}, subjects, PrivateKey.read(key.private))
    with ImageFile.open(signed) as opened:
        write_statements(signed, opened, [statement])
    assert run("exec", signed, "hello", "a").stdout == "hello a\n"
    done = run("sign", signed, options=("--key", str(other.private)))
    assert done.returncode == 0, done.stderr
    with ImageFile.open(signed) as opened:
        write_statements(signed, opened, [statement, statement])
    done = run("verify", signed, options=("--key", str(other.public)))
    assert done.returncode == 0, done.stderr
    assert verify_image(signed) == ()
    assert run("exec", signed, "hello", "b").stdout == "hello b\n"
    assert run("sif list", signed).stdout.count("|Signature (SHA-256)") == 3

"""Attacks on stores by another user of the machine. To be run as root of a user namespace.

The owner of the ground is the victim. The attacker is another user, who shares a group with the victim
where this helps.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.torture.ground import BUILT, Ground, Outcome, store_problems
from tests.support.users import OTHER_USER, becoming

GROUP = 54_321
"""A group that victim and attacker share."""

_SWAP = """\
import os, sys, time
store, decoy, aside = sys.argv[1:]
while True:
    try:
        os.rename(store, aside)
        os.rename(decoy, store)
        time.sleep(0.02)
        os.rename(store, decoy)
        os.rename(aside, store)
    except OSError:
        pass
    time.sleep(0.01)
"""


class Field:
    """A victim's desk with a finished store, and what an attacker does to it."""

    def __init__(self, ground: Ground, outcome: Outcome, name: str) -> None:
        self.ground, self.outcome, self.name = ground, outcome, name
        self.desk = ground.desk("attack")
        self.desk.chmod(0o755)
        self.store = self.desk / "store"
        status = ground.place.stat()
        self.victim = (status.st_uid, status.st_gid)

    def hold(self, condition: object, problem: str) -> None:
        self.outcome.hold(condition, f"{self.name}: {problem}")

    def as_victim(
        self, *words: str | Path, store: Path | None = None, group: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run envbuild as the victim."""
        prefix = becoming(self.victim[0], GROUP if group else self.victim[1])
        return self.ground.run(words, self.desk, store=store or self.store, root=True, before=prefix)

    def as_attacker(
        self, *words: str | Path, store: Path | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run envbuild as the attacker, at a desk of theirs."""
        desk = self.attackers("desk")
        prefix = becoming(OTHER_USER, GROUP)
        return self.ground.run(words, desk, store=store or self.store, root=True, before=prefix, env=env)

    def do(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        """Run any command as the attacker."""
        line = [*becoming(OTHER_USER, GROUP), *map(str, argv)]
        return subprocess.run(line, cwd=self.desk, capture_output=True, text=True, timeout=60)

    def attackers(self, name: str) -> Path:
        """Make a directory of the attacker's, with the spec and its lock."""
        path = self.desk / name
        if not path.exists():
            path.mkdir()
            for file in ("tiny.yaml", "tiny.lock.yaml"):
                shutil.copy(self.desk / file, path)
        self.give(path)
        return path

    def give(self, path: Path) -> None:
        """Give a tree to the attacker."""
        for each in (path, *path.rglob("*")):
            os.chown(each, OTHER_USER, GROUP, follow_symlinks=False)

    def finish(self) -> None:
        """Build as the victim."""
        done = self.as_victim(*self.ground.build())
        self.hold(done.returncode == 0, f"the victim cannot build: {done.stderr}")

    def refused(self, done: subprocess.CompletedProcess[str], reason: str) -> None:
        """See that a run was refused, and why."""
        self.hold(done.returncode == 2 and reason in done.stderr, f"{done.returncode} {done.stderr}")


def listing(path: Path) -> list[tuple[str, int, int, int]]:
    """Return names, modes, owners and sizes below a path."""
    rows = []
    for each in (path, *sorted(path.rglob("*"))):
        status = each.lstat()
        rows.append((str(each), status.st_mode, status.st_uid, status.st_size))
    return rows


def _attackers_store(field: Field) -> None:
    """The victim, and root, use a store of the attacker's, full of links to the victim's files."""
    home = field.desk / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    (home / ".profile").write_text("mine\n")
    field.ground.own(home)
    before = listing(home)
    store = field.attackers("trap")
    (store / "envbuild-store-1").touch()
    for name, target in {"logs": ".ssh", "stage": ".ssh", "files": ".", "lock": ".profile"}.items():
        (store / name).symlink_to(home / target)
    store.chmod(0o777)
    field.give(store)
    inside = listing(store)
    for run in (field.as_victim(*field.ground.build(), store=store), _as_root(field, store)):
        field.refused(run, "a store has one owner")
    for words in (["cache", "prune"], ["cache", "verify", "--repair"], ["cache", "ls"]):
        field.refused(field.as_victim(*words, store=store), "a store has one owner")
    field.hold(listing(home) == before, "the victim's home changed")
    field.hold(listing(store) == inside, "something was written to the attacker's store")


def _as_root(field: Field, store: Path) -> subprocess.CompletedProcess[str]:
    return field.ground.run(field.ground.build(), field.desk, store=store, root=True)


def _link_to_a_store(field: Field) -> None:
    """The name of the store leads to a directory of the victim's."""
    private = field.desk / "private"
    private.mkdir(mode=0o700)
    field.ground.own(private)
    place = field.attackers("place")
    (place / "store").symlink_to(private)
    field.refused(field.as_victim(*field.ground.build(), store=place / "store"), "is a link")
    field.hold(listing(private) == [(str(private), private.stat().st_mode, field.victim[0], 4096)], "changed")


def _group_store(field: Field) -> None:
    """A store that the attacker's group can write to, by mode and by an access control list."""
    field.finish()
    (field.desk / "tiny.sif").unlink()
    os.chown(field.store, field.victim[0], GROUP)
    modes = {"by mode": 0o2775, "for everybody": 0o757}
    for how, mode in modes.items():
        field.store.chmod(mode)
        done = field.as_victim(*field.ground.build())
        field.refused(done, "can write to the store")
        field.hold(stat.S_IMODE(field.store.stat().st_mode) == mode, f"{how}: the mode was changed")
        for words in (
            ["cache", "prune"],
            ["plan", "tiny.yaml"],
            ["layer", "export", "tiny.yaml", "--to", "x"],
        ):
            field.refused(field.as_victim(*words), "can write to the store")
    field.store.chmod(0o755)
    try:
        os.setxattr(field.store, "system.posix_acl_access", _acl_for(OTHER_USER))
    except OSError as error:
        field.hold(False, f"no access control lists here: {error}")
    field.hold(field.do("touch", field.store / "planted").returncode == 0, "the list lets nobody write")
    field.refused(field.as_victim(*field.ground.build()), "can write to the store")


def _acl_for(uid: int) -> bytes:
    """Return an access control list that lets a user write (acl(5), linux/posix_acl_xattr.h)."""
    nobody = 0xFFFFFFFF
    entries = [(1, 7, nobody), (2, 7, uid), (4, 5, nobody), (0x10, 7, nobody), (0x20, 5, nobody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def _others_cannot_write(field: Field) -> None:
    """Whatever umask and default access control list, others can write, lock and forge nothing."""
    os.setxattr(field.desk, "system.posix_acl_default", _acl_for(OTHER_USER))
    words = field.ground.build()
    line = [*becoming(*field.victim), str(field.ground.command), *map(str, words)]
    env = field.ground.environment(field.store)
    done = subprocess.run(line, cwd=field.desk, env=env, umask=0, capture_output=True, text=True)
    field.hold(done.returncode == 0, done.stderr)
    open_ones = []
    for path in field.store.rglob("*"):
        private = any((field.store / name) in (path, *path.parents) for name in ("logs", "resolve", "stage"))
        if path.lstat().st_mode & 0o022 and not path.is_symlink() and not private:
            open_ones.append(str(path))
    field.hold(not open_ones, f"others can write to {open_ones}")
    for name in ("logs", "resolve", "stage"):
        if (field.store / name).exists():
            field.hold(field.do("ls", field.store / name).returncode != 0, f"others can list {name}")
    for name in ("roots/x.json", "verdicts/x", "layers/x", "blobs/x", "x"):
        field.hold(field.do("touch", field.store / name).returncode != 0, f"others can write {name}")
    locking = field.do("flock", "--nonblock", field.store / "lock", "true")
    field.hold(locking.returncode != 0, "others can hold the store's lock")


def _prune_of_others(field: Field) -> None:
    """The attacker prunes, repairs and pins in the victim's store."""
    field.finish()
    before = listing(field.store)
    for words in (
        ["cache", "prune", "--older-than", "0s"],
        ["cache", "verify", "--repair"],
        ["cache", "pin", "tiny.lock.yaml"],
        field.ground.build(),
    ):
        field.refused(field.as_attacker(*words), "a store has one owner")
    imported = field.as_attacker("layer", "import", field.store, store=field.attackers("own") / "store")
    field.refused(imported, "belongs to")
    field.hold(listing(field.store) == before, "the victim's store changed")


def _upstreams(field: Field) -> None:
    """The victim reads a service's store; the attacker's is none, and the service's must be closed."""
    field.finish()
    service, config = field.store, field.desk / "config"
    own = Path(field.ground.environment(service)["XDG_CONFIG_HOME"])
    shutil.copytree(own, config)
    store, env = field.attackers("reader") / "store", {"XDG_CONFIG_HOME": str(config)}
    words = [*field.ground.build(), "--json"]

    def layers_built(owner: str) -> int | str:
        upstreams = f"upstreams: [{{path: {service}, owner: '{owner}'}}]\n"
        (config / "envbuild/config.yaml").write_text(upstreams)
        shutil.rmtree(store, ignore_errors=True)
        (field.desk / "desk/tiny.sif").unlink(missing_ok=True)
        done = field.as_attacker(*words, store=store, env=env)
        if done.returncode != 0:
            return done.stderr
        image = field.desk / "desk/tiny.sif"
        field.hold(field.ground.is_reference(image), "the reader's image has other bytes")
        return len(list((store / "layers").glob("*/*")))

    before = listing(service)
    field.hold(layers_built(str(field.victim[0])) == 0, "layers of the upstream were built again")
    field.hold(listing(service) == before, "the reader changed the upstream")
    built = layers_built(str(OTHER_USER))
    field.hold(isinstance(built, int) and built > 0, f"an upstream of another owner was used: {built}")
    (service / "blobs").chmod(0o775)
    built = layers_built(str(field.victim[0]))
    field.hold(isinstance(built, int) and built > 0, f"one that others can write to was used: {built}")
    (service / "blobs").chmod(0o755)
    done = field.as_attacker(*words, "--upstream", service, store=store, env=env)
    field.refused(done, "belongs to")


def _imports(field: Field) -> None:
    """Layers from a directory of the attacker's need --trust, and everything that shows the image says so."""
    field.finish()
    done = field.as_victim("layer", "export", "tiny.yaml", "--to", "layers")
    field.hold(done.returncode == 0, done.stderr)
    layers, store = field.desk / "layers", field.desk / "own-store"
    field.give(layers)
    field.refused(field.as_victim("layer", "import", layers, store=store), "--trust")
    field.hold(not (store / "layers").exists(), "layers were imported")
    done = field.as_victim("layer", "import", layers, "--trust", store=store)
    field.hold(done.returncode == 0, done.stderr)
    done = field.as_victim(*field.ground.build("-o", "theirs.sif"), store=store)
    field.hold(done.returncode == 0 and not BUILT.search(done.stderr), done.stderr)
    shown = json.loads(field.as_victim("inspect", "theirs.sif", "--json", store=store).stdout)
    field.hold(all(layer["imported"] for layer in shown["file_system"]["layers"]), "inspect does not say so")
    bill = field.as_victim("sbom", "theirs.sif", store=store).stdout
    field.hold("envbuild:imported-layers" in bill, "sbom does not say so")
    done = field.as_victim("module", "install", "theirs.sif", "--root", "modules", store=store)
    files = [path.read_bytes() for path in (field.desk / "modules").rglob("*") if path.is_file()]
    field.hold(
        any(b"Imported:" in file for file in files if b"Tested:" in file), f"the module: {done.stderr}"
    )
    tested = field.as_victim("test", "theirs.sif", store=store)
    field.hold("layers of an account that is not trusted" in tested.stderr, f"test: {tested.stderr}")


def _renamed_while_it_is_used(field: Field) -> None:
    """The attacker can write to a directory above the store, and exchanges it during builds."""
    project = field.desk / "project"
    project.mkdir()
    os.chown(project, field.victim[0], GROUP)
    project.chmod(0o2770)
    store, decoy = project / "store", project / "decoy"
    # What opens files by name would open the attacker's.
    field.hold(_programs_naming(field, field.store), "no program is seen to open files of an ordinary store")
    programs = _programs_naming(field, store)
    field.hold(not programs, f"programs open files of the store by name: {programs}")
    done = field.as_victim(*field.ground.build(), store=store, group=True)
    field.hold(done.returncode == 0, done.stderr)
    field.hold(f"others can write to `{project}`" in done.stderr, f"no warning: {done.stderr}")
    shutil.copytree(store, decoy, symlinks=True)
    for blob in (decoy / "blobs/sha256").glob("*/*"):
        blob.chmod(0o644)
        blob.write_bytes(b"forged")
    field.give(decoy)
    swapping = [*becoming(OTHER_USER, GROUP), sys.executable, "-c", _SWAP]
    with subprocess.Popen([*swapping, str(store), str(decoy), str(project / "aside")]) as attacker:
        try:
            for number in range(6):
                image = field.desk / f"raced-{number}.sif"
                words = field.ground.build("-o", image, *(["--rebuild"] if number % 2 else []))
                done = field.as_victim(*words, store=store, group=True)
                built = done.returncode == 0
                field.outcome.count("raced builds that went on" if built else "raced builds that ended")
                field.hold(not built or field.ground.is_reference(image), "other bytes in the image")
        finally:
            attacker.kill()
    places = (store, decoy, project / "aside")
    real = next(path for path in places if path.exists() and path.stat().st_uid == field.victim[0])
    field.outcome.problems += [f"{field.name}: {problem}" for problem in store_problems(real)]


def _programs_naming(field: Field, store: Path) -> set[str]:
    """Build all layers again; return the names of the programs that are given paths below a store."""
    words = [*becoming(field.victim[0], GROUP), str(field.ground.command), *map(str, field.ground.build())]
    build = field.ground.start([*words, "--rebuild"], field.desk, store=store)
    names = set()
    while build.poll() is None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                program, *arguments = path.read_bytes().decode(errors="replace").split("\0")
                if any(str(store) in argument for argument in arguments):
                    names.add(Path(program).name)
    output, _ = build.communicate()
    field.hold(build.returncode == 0, output)
    return names


ATTACKS: dict[str, Callable[[Field], None]] = {
    "a store of the attacker's": _attackers_store,
    "a link in the store's place": _link_to_a_store,
    "a store of a group": _group_store,
    "writing to a store of others": _others_cannot_write,
    "pruning a store of others": _prune_of_others,
    "upstreams": _upstreams,
    "imports": _imports,
    "a store that is renamed": _renamed_while_it_is_used,
}


def attacks(ground: Ground, *, names: Sequence[str] = tuple(ATTACKS)) -> Outcome:
    """Attack stores as another user."""
    outcome = Outcome("attacks by another user")
    for name in names:
        outcome.cases += 1
        ATTACKS[name](Field(ground, outcome, name))
    return outcome

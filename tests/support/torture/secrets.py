"""A secret planted wherever envbuild and its tools look: no byte of it may come out anywhere."""

from __future__ import annotations

import base64
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from tests.support.mirrors import mirror, write_index
from tests.support.torture.ground import Ground, Outcome

SECRET = "s3cr3t-Wq7xKz9Lp2Vb"


def forms() -> dict[str, bytes]:
    """Return the ways in which a secret may be written."""
    plain = SECRET.encode()
    # As basic authorization has it, at each of the three places where base64 may begin.
    encoded = {
        f"base64 at {at}": base64.b64encode(b"x" * at + plain)[4 * (at > 0) + 2 : -4] for at in range(3)
    }
    return {"plain": plain, "reversed": plain[::-1], "hex": plain.hex().encode(), **encoded}


def secrets(ground: Ground) -> Outcome:
    """Lock, build, fetch, inspect and fail with secrets everywhere; then search all that came of it."""
    outcome = Outcome("secrets")
    served = ground.place / "served-secrets"
    write_index(served, sorted((ground.place / "wheels").glob("*.whl")))
    with mirror(served) as server:
        desk = ground.desk("secrets")
        (desk / "tiny.lock.yaml").unlink()
        env = _plant(ground, desk, server.address)
        said = []
        for words, code in (
            (["lock", "tiny.yaml"], 0),
            (["build", "tiny.yaml"], 0),
            (["build", "tiny.yaml", "--rebuild", "--json"], 0),
            (["fetch", "tiny.yaml", "--to", "kept"], 0),
            (["inspect", "tiny.sif", "--json"], 0),
            (["plan", "tiny.yaml", "--json"], 0),
            (["reproduce", "tiny.sif", "--json"], 0),
        ):
            outcome.cases += 1
            done = ground.run(words, desk, env=env)
            said.append((shlex.join(words), done.stdout + done.stderr))
            outcome.hold(
                done.returncode == code, f"{shlex.join(words)}: code {done.returncode}: {done.stderr}"
            )
        # A mirror that fails is when addresses are shown.
        for answer in ("503", "404", "wrong"):
            outcome.cases += 1
            for wheel in (served / "files").iterdir():
                server.script[f"/files/{wheel.name}"] = [answer] * 9
            # An image that is up to date would need no layer.
            words = ["build", "tiny.yaml", "-o", "never.sif"]
            done = ground.run(words, desk, store=desk / f"store-{answer}", env=env)
            said.append((f"a mirror that says {answer}", done.stdout + done.stderr))
            outcome.hold(done.returncode != 0, f"a mirror that says {answer}: it is built all the same")
        outcome.hold(any(server.requests), "the index with the secret was never asked")
    for title, text in said:
        for form, needle in forms().items():
            outcome.hold(needle not in text.encode(), f"`{title}` says it ({form})")
    _search(desk, outcome)
    return outcome


def _plant(ground: Ground, desk: Path, address: str) -> dict[str, str]:
    config = desk / "config"
    shutil.copytree(ground.place / "config/envbuild", config / "envbuild")
    host = address.removeprefix("http://")
    private = f"http://user:{quote(SECRET)}@{host}/simple"
    # A site's file may hold no secret: its index is the user's own, as pip and uv have it.
    (config / "envbuild/site.yaml").write_text("name: here\n")
    (config / "pip").mkdir()
    (config / "pip/pip.conf").write_text(f"[global]\nindex-url = {private}\nextra-index-url = {private}\n")
    (config / "uv").mkdir()
    (config / "uv/uv.toml").write_text(f'[[index]]\nname = "private"\nurl = "{private}"\ndefault = true\n')
    netrc = desk / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login user password {SECRET}\n")
    netrc.chmod(0o600)
    return {
        "XDG_CONFIG_HOME": str(config),
        "NETRC": str(netrc),
        "PIP_INDEX_URL": private,
        "UV_DEFAULT_INDEX": private,
        "UV_INDEX_PRIVATE_PASSWORD": SECRET,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "APPTAINER_DOCKER_PASSWORD": SECRET,
        "APPTAINERENV_TOKEN": SECRET,
        "TOKEN": SECRET,
    }


def _search(desk: Path, outcome: Outcome) -> None:
    """Search every file that came of it, the layers unpacked."""
    planted = [desk / "config", desk / "netrc"]
    unpacked = desk / "unpacked"
    unpacked.mkdir()
    for number, blob in enumerate(sorted((desk / "store/blobs").rglob("*"))):
        if blob.is_file():
            plain = ["unsquashfs", "-quiet", "-no-progress", "-d"]
            subprocess.run([*plain, unpacked / str(number), blob], check=True, capture_output=True)
    searched = 0
    for path in sorted(desk.rglob("*")):
        if path.is_symlink() or not path.is_file() or any(path.is_relative_to(each) for each in planted):
            continue
        searched += path.stat().st_size
        for form in _found(path):
            outcome.problems.append(f"{path.relative_to(desk)} holds it ({form})")
    outcome.facts["MB searched"] = round(searched / 1e6)
    # That the search finds what is there.
    outcome.hold(list(_found(desk / "netrc")) == ["plain"], "the search does not find what is planted")


def _found(path: Path) -> Iterator[str]:
    needles = forms()
    content = path.read_bytes()
    yield from (form for form, needle in needles.items() if needle in content)

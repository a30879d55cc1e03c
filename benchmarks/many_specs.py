"""Measure `plan`, `lock` and `lock --check` of hundreds of specs that share families of packages.

    python -m benchmarks.many_specs                   # 125, 250 and 500 specs of 40 families
    python -m benchmarks.many_specs --specs 50 100

One spec is locked; the other locks are copies with their own names. Those of a family have the same wheels,
whose digests are made up: nothing is fetched or built. Prints a table of seconds and of memory, each of a
process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FAMILIES = 40
SPEC = """\
name: seed
version: "1"
mpi: mpich
frameworks: [jax]
packages: {python: [pandas, scikit-learn, matplotlib, tabulate]}
"""
COMMANDS = (["plan"], ["lock"], ["lock", "--check"])


def envbuild(words: list[str], store: Path) -> tuple[float, float]:
    """Run the command; return its seconds and the largest memory of its process in MB."""
    start = time.monotonic()
    line = [sys.executable, "-m", "envbuild.cli.main", *words, "--json", "--store", str(store)]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if process.stderr is None:
        raise AssertionError("stderr is a pipe")
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(words)} failed: {errors.decode()[-2000:]}")
    return time.monotonic() - start, usage.ru_maxrss / 1024


def write_specs(directory: Path, lock: str, number: int) -> None:
    """Write specs and their locks."""
    directory.mkdir()
    for index in range(number):
        family, name = index % FAMILIES, f"env-{index:04}"

        def renew(match: re.Match[str], family: int = family) -> str:
            # Half of the wheels are the family's own.
            if int(match[2][:2], 16) % 2:
                return match[0]
            return match[1] + hashlib.sha256(f"{family} {match[2]}".encode()).hexdigest()

        own = re.sub(r'(file: "[^"]+\.whl".* sha256: ")([0-9a-f]{64})', renew, lock)
        (directory / f"{name}.yaml").write_text(SPEC.replace("seed", name))
        (directory / f"{name}.lock.yaml").write_text(own.replace('name: "seed"', f'name: "{name}"', 1))


def main() -> None:
    """Measure each command on each number of specs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--specs", nargs="+", type=int, default=[125, 250, 500], metavar="N")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        seed, store = top / "seed.yaml", top / "store"
        seed.write_text(SPEC)
        envbuild(["lock", str(seed)], store)
        lock = (top / "seed.lock.yaml").read_text()
        print(f"{'command':<14}{'specs':>6}{'seconds':>9}{'ms/spec':>9}{'MB':>7}")
        for number in options.specs:
            directory = top / f"specs-{number}"
            write_specs(directory, lock, number)
            for command in COMMANDS:
                seconds, megabytes = envbuild([*command, str(directory)], store)
                row = f"{' '.join(command):<14}{number:>6}{seconds:>9.1f}{seconds / number * 1e3:>9.0f}"
                print(f"{row}{megabytes:>7.0f}", flush=True)


if __name__ == "__main__":
    main()

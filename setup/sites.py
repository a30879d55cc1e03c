"""Try envbuild for each machine that has a site file, and write a table of what ran here, and what did not.

    make sites
    make sites ARGS="--only alps-daint --only lumi/g --whole"

For each machine an image of PyTorch for its processor and GPUs is locked; an image of MPI and NumPy for its
processor is built, checked against its site file, and tried here; and the command is shown that would start
it there. With `--whole`, the images of PyTorch are built and checked, too (several GB). No machine is
reached. The table is left in build/sites/sites.md, with the output of each command beside it.

Exit codes: 0 done, 1 a command ended in another way than by success or with a reason.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build/sites"
NOT_MACHINES = ("example", "local")
HERE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
ACCELERATORS = {"nvidia": "cuda", "amd": "rocm"}
SMALL = (
    'name: {name}\nversion: "1"\nmpi: mpich\npackages: {{python: [numpy]}}\narchitectures: [amd64, arm64]\n'
)
PYTORCH = 'name: {name}\nversion: "1"\nmpi: mpich\nframeworks: [pytorch]\naccelerator: {accelerator}\n'
# Exit codes of envbuild: with the others it says why.
DONE, FAILED, REFUSED = 0, 4, (2, 3, 5)
QEMU = ROOT / "build/qemu"
COLUMNS = ("machine", "processor", "accelerator", "runtime", "fabric")
STEPS = ("resolves", "builds", "checks", "starts", "tests")


@dataclass
class Machine:
    """A row of the table."""

    name: str
    site: dict[str, Any]
    cells: dict[str, str] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """Processor of its nodes."""
        return str(self.site.get("architecture") or "amd64")

    @property
    def accelerator(self) -> str:
        """Accelerator as specs name it."""
        return ACCELERATORS.get(self.site.get("gpus", {}).get("vendor", "none"), "cpu")

    def facts(self) -> tuple[str, ...]:
        """Return the first columns, as the site file states them; what it does not state is unknown."""
        gpus = self.site.get("gpus")
        vendor = "unknown" if gpus is None else gpus["vendor"]
        names = " ".join([vendor, *(gpus or {}).get("architectures", ())])
        runtimes = " ".join(each["name"] for each in self.site.get("runtimes", ())) or "unknown"
        return (
            self.name,
            self.architecture,
            names,
            runtimes,
            self.site.get("fabric", {}).get("name", "unknown"),
        )


class Desk:
    """Runs envbuild, keeps what it prints and why it refused, and counts commands that end as none should."""

    def __init__(self) -> None:
        self.faults = 0
        self.reasons: list[str] = []

    def refusal(self, output: str) -> str:
        """Return the cell of a command that was refused: the number of its reason below the table."""
        text = output[output.find("error: ") :].removeprefix("error: ").partition("\nerror: ")[0]
        problem, _, hint = (" ".join(part.split()) for part in text.partition("\nhint: "))
        reason = f"{problem} ({hint})" if hint else problem
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"no [{self.reasons.index(reason) + 1}]"

    def run(self, machine: str, step: str, words: Sequence[str], *, limit_s: int = 3600) -> tuple[int, str]:
        """Return exit code and output of a command, which is shown."""
        print("$", shlex.join(["envbuild", *words]), flush=True)
        line = [str(ROOT / ".venv/bin/envbuild"), *words]
        # A site of this machine's user or administrator must not take part.
        variables = {key: value for key, value in os.environ.items() if key != "ENVBUILD_SITE"}
        variables["PATH"] = f"{QEMU}:{variables['PATH']}"
        done = subprocess.run(
            line,
            cwd=OUTPUT,
            env=variables,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=limit_s,
        )
        (OUTPUT / f"{machine.replace('/', '-')}.{step}.txt").write_text(done.stderr + done.stdout)
        if done.returncode not in (DONE, *REFUSED, FAILED):
            self.faults += 1
            print(f"  this must not end with exit code {done.returncode}:\n{done.stderr}")
        return done.returncode, done.stdout if done.returncode in (DONE, FAILED) else done.stderr


def machines(only: Sequence[str]) -> list[Machine]:
    """Return the machines with a site file; one with partitions is one row for each."""
    found = []
    for entry in json.loads(asked(["site", "ls", "--json"])):
        site = json.loads(asked(["site", "show", entry["name"], "--json"]))["site"]
        has_partitions = bool(site.get("partitions")) and "/" not in entry["name"]
        if entry["name"] not in NOT_MACHINES and not has_partitions and (not only or entry["name"] in only):
            found.append(Machine(entry["name"], site))
    return found


def asked(words: Sequence[str]) -> str:
    """Return what a command of envbuild says that only reads."""
    line = [str(ROOT / ".venv/bin/envbuild"), *words]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def try_machine(desk: Desk, machine: Machine, *, whole: bool) -> None:
    """Fill the cells of a machine."""
    name, cells = machine.name.replace("/", "-"), machine.cells
    site = ["--site", machine.name]
    for kind, text in (("small", SMALL), ("pytorch", PYTORCH)):
        spec = text.format(name=kind, accelerator=machine.accelerator)
        (OUTPUT / f"{name}.{kind}.yaml").write_text(spec)
    code, output = desk.run(machine.name, "lock", ["lock", f"{name}.pytorch.yaml", *site])
    cells["resolves"] = f"ran: PyTorch, {machine.accelerator}" if code == DONE else desk.refusal(output)

    image = f"{name}.small.sif"
    build = ["build", f"{name}.small.yaml", "-o", image, *site, "--architecture", machine.architecture]
    code, output = desk.run(machine.name, "build", build)
    how = "ran" if machine.architecture == HERE else "ran, base by QEMU"
    cells["builds"] = f"{how}: MPI, NumPy" if code == DONE else desk.refusal(output)
    if code == DONE:
        try_image(desk, machine, image)
    if whole and cells["resolves"].startswith("ran"):
        image = f"{name}.pytorch.sif"
        build = ["build", f"{name}.pytorch.yaml", "-o", image, *site]
        code, output = desk.run(machine.name, "build-pytorch", build)
        cells["builds"] += "; PyTorch" if code == DONE else f"; PyTorch {desk.refusal(output)}"
        if code == DONE:
            cells["checks"] += f"; PyTorch: {judged(desk, machine, 'check-pytorch', image)}"


def try_image(desk: Desk, machine: Machine, image: str) -> None:
    """Check an image for a machine, show how it starts there, and try it here."""
    cells, site = machine.cells, ["--site", machine.name]
    cells["checks"] = f"ran: {judged(desk, machine, 'check', image)}"
    launch = ["launch", image, *site, "-n", "2", "--dry-run", "--", "python3", "-c", "import mpi4py.MPI"]
    code, output = desk.run(machine.name, "launch", launch)
    cells["starts"] = "expected text" if code == DONE else desk.refusal(output)
    emulate = [] if machine.architecture == HERE else ["--emulate"]
    code, _ = desk.run(machine.name, "test", ["test", image, *emulate])
    how = "QEMU" if emulate else "ran here"
    cells["tests"] = f"{how}: {'PASS' if code == DONE else 'FAIL'}"


def judged(desk: Desk, machine: Machine, step: str, image: str) -> str:
    """Return the verdict of a check of an image against a machine's site file."""
    code, output = desk.run(machine.name, step, ["check", image, "--site", machine.name, "--json"])
    if code not in (DONE, FAILED):
        return desk.refusal(output)
    counts = json.loads(output)["counts"]
    return (
        f"{'PASS' if code == DONE else 'FAIL'}, {counts['PASS']} of {sum(counts.values())} could be decided"
    )


def table(rows: Sequence[Machine], reasons: Sequence[str]) -> str:
    """Return the table as Markdown, and below it the numbered reasons."""
    lines = [[*COLUMNS, *STEPS], ["---"] * (len(COLUMNS) + len(STEPS))]
    lines += [[*row.facts(), *(row.cells.get(step, "") for step in STEPS)] for row in rows]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    notes = [f"[{number}] {reason}\n" for number, reason in enumerate(reasons, start=1)]
    return "\n".join([text + "\n", *notes])


def main() -> int:
    """Try the machines, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="SITE", help="a name of `site ls`")
    parser.add_argument("--whole", action="store_true", help="build and check the images of PyTorch")
    options = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    rows, desk = machines(options.only), Desk()
    if not rows:
        sys.exit(f"there is no machine of these names: {', '.join(options.only)}")
    for machine in rows:
        print(f"\n--- {machine.name}", flush=True)
        try_machine(desk, machine, whole=options.whole)
    text = table(rows, desk.reasons)
    (OUTPUT / "sites.md").write_text(text)
    print(f"\n{text}")
    return 1 if desk.faults else 0


if __name__ == "__main__":
    sys.exit(main())

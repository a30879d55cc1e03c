"""Try envbuild for each machine that has a site file, and write a table of what ran here, and what did not.

    make sites
    make sites ARGS="--only alps-daint --only lumi/g --whole"

For each machine an image of PyTorch for its processor and GPUs is locked; an image of MPI and NumPy for its
processor is built, checked against its site file, and tested here; and the batch script is written that would
start it there. With `--whole`, the images of PyTorch are built and checked, too (several GB). No machine is
reached. The store is empty at first, so all layers are built, each once, unless `--store` names one with
layers. The table is left in build/sites/sites.md, with the output of each command beside it.

Exit codes: 0 done, 1 a command ended in another way than by success or with a reason.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build/sites"
NOT_MACHINES = ("example", "local")
HERE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
ACCELERATORS = {"nvidia": "cuda", "amd": "rocm"}
SMALL = 'name: small\nversion: "1"\nmpi: mpich\npackages: {python: [numpy]}\narchitectures: [amd64, arm64]\n'
PYTORCH = 'name: pytorch\nversion: "1"\nmpi: mpich\nframeworks: [pytorch]\naccelerator: {accelerator}\n'
# Exit codes of envbuild: with the others it says why.
DONE, FAILED, REFUSED = 0, 4, (2, 3, 5)
LIMIT_S = 3600
QEMU = ROOT / "build/qemu"
COLUMNS = ("machine", "processor", "accelerator", "runtime", "fabric")
STEPS = ("resolves", "builds", "checks", "starts", "tests")


@dataclass
class Machine:
    """A row of the table."""

    name: str
    site: dict[str, Any]
    cells: dict[str, str] = field(default_factory=dict)
    start: str = ""
    """The command of a batch job that starts the ranks there, if one can be written."""

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

    def __init__(self, store: Path) -> None:
        self.store = store
        self.faults = 0
        self.reasons: list[str] = []
        self.tested: dict[str, str] = {}
        """Cells of tests by the digest of their image: machines with the same processor have one image."""

    def refusal(self, machine: Machine, output: str) -> str:
        """Return the cell of a command that was refused: the number of its reason below the table.

        The reason is the first error without its facts, which name files of this machine, and is the same for
        all machines that it holds for.
        """
        text = output[output.find("error: ") :].removeprefix("error: ").partition("\nerror: ")[0]
        text, _, hint = text.partition("\nhint: ")
        problem, hint = text.partition("\n")[0], " ".join(hint.split())
        reason = (f"{problem} ({hint})" if hint else problem).replace(f"`{machine.name}`", "`SITE`")
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"refused [{self.reasons.index(reason) + 1}]"

    def run(self, machine: str, step: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command, which is shown, and return how it ended; its output is kept in a file."""
        print("$", shlex.join(["envbuild", *words]), flush=True)
        line = [str(ROOT / ".venv/bin/envbuild"), *words]
        # A site of this machine's user or administrator must not take part.
        variables = {key: value for key, value in os.environ.items() if key != "ENVBUILD_SITE"}
        variables |= {"PATH": f"{QEMU}:{variables['PATH']}", "ENVBUILD_STORE": str(self.store)}
        done = subprocess.run(
            line,
            cwd=OUTPUT,
            env=variables,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        (OUTPUT / f"{machine.replace('/', '-')}.{step}.txt").write_text(done.stderr + done.stdout)
        if done.returncode not in (DONE, *REFUSED, FAILED):
            self.faults += 1
            print(f"  this must not end with exit code {done.returncode}:\n{done.stderr}")
        return done


def machines(only: Sequence[str]) -> list[Machine]:
    """Return the machines with a site file; one with partitions is one row for each.

    `only` names sites or partitions; a name that none has ends the program.
    """
    found, unknown = [], {*only}
    for entry in json.loads(asked(["site", "ls", "--json"])):
        name = entry["name"]
        named = {name, name.partition("/")[0]} & {*only}
        unknown -= named
        if name in NOT_MACHINES or (only and not named):
            continue
        site = json.loads(asked(["site", "show", name, "--json"]))["site"]
        if not site.get("partitions") or "/" in name:
            found.append(Machine(name, site))
    if unknown:
        sys.exit(f"there is no machine of these names: {', '.join(sorted(unknown))}")
    return found


def asked(words: Sequence[str]) -> str:
    """Return what a command of envbuild says that only reads."""
    line = [str(ROOT / ".venv/bin/envbuild"), *words]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def try_machine(desk: Desk, machine: Machine, *, whole: bool) -> None:
    """Fill the cells of a machine."""
    name, cells = machine.name.replace("/", "-"), machine.cells
    site = ["--site", machine.name]
    # One lock for all machines, whose images are the same bytes.
    (OUTPUT / "small.yaml").write_text(SMALL)
    (OUTPUT / f"{name}.pytorch.yaml").write_text(PYTORCH.format(accelerator=machine.accelerator))
    done = desk.run(machine.name, "lock", ["lock", f"{name}.pytorch.yaml", *site])
    resolved = done.returncode == DONE
    cells["resolves"] = (
        f"ran: PyTorch, {machine.accelerator}" if resolved else desk.refusal(machine, done.stderr)
    )

    image = f"{name}.small.sif"
    build = ["build", "small.yaml", "-o", image, *site, "--architecture", machine.architecture]
    done = desk.run(machine.name, "build", build)
    if done.returncode == DONE:
        cells["builds"] = f"ran: MPI, NumPy{layers(done.stderr)}"
        try_image(desk, machine, image)
    else:
        cells["builds"] = desk.refusal(machine, done.stderr)
    if whole and resolved:
        image = f"{name}.pytorch.sif"
        build = ["build", f"{name}.pytorch.yaml", "-o", image, *site]
        done = desk.run(machine.name, "build-pytorch", build)
        if done.returncode == DONE:
            cells["builds"] += f"; PyTorch{layers(done.stderr)}"
            small, pytorch = cells.get("checks", ""), judged(desk, machine, "check-pytorch", image)
            cells["checks"] = f"{small}; PyTorch: {pytorch}".removeprefix("; ")
        else:
            cells["builds"] += f"; PyTorch {desk.refusal(machine, done.stderr)}"


def layers(output: str) -> str:
    """Return how many layers a build made, as it says itself."""
    counts = re.search(r"^layers: ([0-9]+) built, ([0-9]+) reused$", output, re.MULTILINE)
    return f" ({counts[1]} layers built, {counts[2]} reused)" if counts else ""


def try_image(desk: Desk, machine: Machine, image: str) -> None:
    """Check an image for a machine, write the script that starts it there, and test it here."""
    machine.cells["checks"] = f"ran: {judged(desk, machine, 'check', image)}"
    machine.cells["starts"] = started(desk, machine, image)
    with (OUTPUT / image).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest not in desk.tested:
        desk.tested[digest] = tested(desk, machine, image)
    machine.cells["tests"] = desk.tested[digest]


def tested(desk: Desk, machine: Machine, image: str) -> str:
    """Return the cell of the test of an image on this machine."""
    emulate = [] if machine.architecture == HERE else ["--emulate"]
    done = desk.run(machine.name, "test", ["test", image, *emulate])
    how = "ran here under QEMU" if emulate else "ran here"
    verdicts = {DONE: f"{how}: PASS", FAILED: f"{how}: FAIL"}
    return verdicts.get(done.returncode) or desk.refusal(machine, done.stderr)


def started(desk: Desk, machine: Machine, image: str) -> str:
    """Return the cell of the batch script for a machine, and keep the line that starts the ranks."""
    script = OUTPUT / f"{machine.name.replace('/', '-')}.job.sh"
    form = "pbs" if machine.site.get("scheduler", {}).get("name") == "pbs" else "sbatch"
    words = ["export", image, "--format", form, "--site", machine.name, "--image", "IMAGE", "-o", script.name]
    done = desk.run(machine.name, "start", words)
    if done.returncode != DONE:
        return desk.refusal(machine, done.stderr)
    machine.start = script.read_text().rstrip().rpartition("\n")[2].removeprefix("exec ")
    runtimes = machine.site.get("runtimes")
    return f"expected text: {runtimes[0]['name'] if runtimes else 'apptainer (runtime unknown)'}"


def judged(desk: Desk, machine: Machine, step: str, image: str) -> str:
    """Return the verdict of a check of an image against a machine's site file."""
    done = desk.run(machine.name, step, ["check", image, "--site", machine.name, "--json"])
    if done.returncode not in (DONE, FAILED):
        return desk.refusal(machine, done.stderr)
    return judgement(json.loads(done.stdout))


def judgement(report: dict[str, Any]) -> str:
    """Return the cell of a check's report: a rule without its facts is not one that passed."""
    ids: dict[str, list[str]] = {"PASS": [], "FAIL": [], "warned": [], "unknown": []}
    for finding in report["findings"]:
        status = finding["status"]
        if status not in ids:
            status = "unknown" if finding["missing"] else "warned"
        ids[status].append(finding["id"])
    parts = [f"{len(ids['PASS'])} passed"]
    parts += [f"failed {', '.join(ids['FAIL'])}"] if ids["FAIL"] else []
    parts += [f"warned {', '.join(ids['warned'])}"] if ids["warned"] else []
    verdict = "PASS" if report["passed"] else "FAIL"
    parts.append(f"{len(ids['unknown'])} lack facts")
    return f"{verdict} ({'; '.join(parts)})"


def table(rows: Sequence[Machine], reasons: Sequence[str]) -> str:
    """Return as Markdown the table, the commands that start ranks, and the numbered reasons."""
    steps = [[*row.facts(), *(row.cells.get(step, "") for step in STEPS)] for row in rows]
    starts = [[row.name, f"`{row.start}`"] for row in rows if row.start]
    notes = [f"[{number}] {reason}\n" for number, reason in enumerate(reasons, start=1)]
    parts = [markdown([*COLUMNS, *STEPS], steps)]
    if starts:
        parts.append(markdown(["machine", "last line of its batch script"], starts))
    return "\n".join([*parts, *notes])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def main() -> int:
    """Try the machines, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="SITE", help="a name of `site ls`")
    parser.add_argument("--whole", action="store_true", help="build and check the images of PyTorch")
    parser.add_argument("--store", type=Path, metavar="DIR", help="reuse the layers of this store")
    options = parser.parse_args()
    rows = machines(options.only)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="envbuild-sites-", dir="/var/tmp") as empty:
        desk = Desk((options.store or Path(empty)).absolute())
        for machine in rows:
            print(f"\n--- {machine.name}", flush=True)
            try_machine(desk, machine, whole=options.whole)
    text = table(rows, desk.reasons)
    (OUTPUT / "sites.md").write_text(text)
    print(f"\n{text}")
    return 1 if desk.faults else 0


if __name__ == "__main__":
    sys.exit(main())

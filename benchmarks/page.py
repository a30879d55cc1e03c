"""Writes docs/reference/benchmarks.md from the newest results of each row."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.results import Row, newest

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/benchmarks.md"
NONE = "-"

HEAD = """\
# Benchmarks

<!-- Written by benchmarks/page.py -->

Each row shows its newest results, with their date. The results are in `benchmarks/results/`, with the
machine, its load and the versions of the tools. Other programs may have used the machine at the same
time, so compare ratios, not seconds. MB are 10⁶ bytes.
"""
BENCH = """
## Builds and starts

`make bench` measures these: medians, all cases of a row in the same run. The ratio is the time of the
other tool divided by that of envbuild: above 1, envbuild is faster. The second ratio compares CPU time
(wall clock differs if cores are idle). Downloads are not timed. The image has PyTorch, SciPy and MPICH on
Debian 12; that of the centre has the list in `benchmarks/centre.yaml`. All tools install the same
packages from the same local files. envbuild compiles no bytecode of directories named `test` or `tests`.

- *stock*: `apptainer build` with pip, and Apptainer's default compression (gzip).
- *tuned*: `apptainer build` with uv, a warm cache of unpacked wheels, bytecode compiled on all cores, zstd.
- *buildah*: a Containerfile with pip, converted to a SIF.
- *uv + mksquashfs*: the Python packages alone, installed by uv with an empty cache and bytecode, packed
  with zstd.
- An image of another tool is one that `mksquashfs` has packed by gzip, its default. *venv + mksquashfs*: a
  virtual environment with the package, in a squashfs to bind over the image. *Resolving*: `envbuild extend
  --dry-run`.
- *flat*: the same files, packed by `apptainer build` with zstd; *directory*: the same files, unpacked.

"""
TOOLKITS = """
## Toolkits

`make toolkits` builds every example from one store, empty at first and without network, and tests it on 2
and 4 ranks. It then runs each job with deliberate faults, which the test must detect (*controls*; only
once per job, in the first example that has it). *New* is the size of the layers that no earlier example
of the run had. *Exact* counts test results without tolerance. *Difference* is the largest relative
deviation from the result of one rank, and the permitted one.

"""
SCALING = """
## Scaling

`make measure` runs `envbuild bench` in a job of a Slurm of two nodes: words per second of an LSTM language
model (a generated corpus with the vocabulary of the Penn Treebank) in PyTorch on MPICH, and times of an
allreduce over MPI. The two nodes are network namespaces of one machine of two cores, so rows with more than
two threads are oversubscribed and have no efficiency: they show that the commands work together, not how
fast a cluster is. The interval holds the median with 94 %, by order statistics.

"""
MODELS = """
A model of message times, latency and bytes divided by a rate, is fitted to all sizes but one. The error at
that size says how far to trust it.

"""
OBSERVED = """
## Recorded ranks

`python -m benchmarks.observe IMAGE` does the same work on two ranks with and without `launch --observe`,
alternating. CPU time is that of all processes, the recorders' with it. The interval holds the median with
95 %, by order statistics. Other programs used the machine meanwhile.

"""
CELLS = """
## MPI implementations

`make vendor` tests images on 2 ranks, with their own MPI and with each MPI of a host (wheels unpacked
outside of any image), whose `mpiexec` starts one container per rank. A cell shows the seconds of the
test, or the rule that rejects the combination. Intel MPI's wheel and Debian's `openmpi-bin` lack headers,
so Horovod cannot be compiled for them.

"""
SUITE = """
### mpi4py's test suite

On 2 ranks inside an image, with the host's network. `testGetFortranInfo` fails through the MPICH ABI,
once per type: MPICH and Intel MPI report Fortran types as supported that programs cannot find. On Open
MPI the suite spawns no processes (`MPI4PY_TEST_SPAWN=0`).

"""
SPEED = """
### Messages inside and outside of a container

One-way times between two ranks on one node through mpi4py, inside and outside of an image with the same
wheels. Medians over alternating runs.

"""
TRAVEL = """
## Images through registries

`make travel` pushes an image with PyTorch, and the same with one package of 143 kB more, to Debian's
registry on this machine, by TLS and with a login, and pulls them. Each comes back bit for bit. *The older
image here*: pulled beside it, into an empty store. A family of images is pushed one after the other; its
bytes are what the registry holds of them, in parentheses as a multiple of their distinct layers. The build
takes all layers from the registry, signed; the first build above makes them (median of three).

"""
PEERS = """
### Tools of others

`make travel-peers` gives an image that was tested and signed to tools that others wrote, of Debian unstable
and of this machine. Each file that they give back is the image, bit for bit.

"""
LARGE_STORE = """
## Large stores

`python -m benchmarks.large_store` fills stores with synthetic layers of 51 paths, half of them needed by
images that share families; of each 100 layers there is one image. `build` writes an image of Debian 12 whose
layers are in the store; `verify` reads every byte. MB are the peak memory of the command. Compare CPU time:
the seconds of wall clock were measured beside other work.

"""
TORTURE = """
## Robustness

`make torture` builds a tiny image under hostile conditions. Random choices have a fixed seed.

"""

# Row of the results, title, envbuild's case, and the cases to compare it with.
COMPARISONS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("first", "first build, base included", "envbuild", ("stock",)),
    ("build", "build, base in the store", "envbuild", ("stock", "tuned", "buildah")),
    ("more", "one more Python package", "envbuild", ("stock", "tuned")),
    ("mpi", "another MPI", "envbuild", ("stock",)),
    ("variable", "another environment variable", "envbuild", ("stock",)),
    ("system", "one more Debian package", "envbuild", ()),
    ("nothing", "nothing changed", "envbuild", ()),
    ("compose", "finished layers to image", "envbuild", ("cp + sync",)),
    ("compose", "the same on XFS, which shares blocks", "envbuild, XFS", ("cp + sync, XFS",)),
    (
        "extend",
        "one package more in an image of another tool",
        "envbuild",
        ("unpack + uv + mksquashfs", "venv + mksquashfs", "cp + sync", "cp + sync + resolving"),
    ),
    (
        "extend-large",
        "the same, the image 2 GB",
        "envbuild",
        ("unpack + uv + mksquashfs", "venv + mksquashfs", "cp + sync", "cp + sync + resolving"),
    ),
    ("centre", "a centre's 87 requirements", "envbuild", ("uv + mksquashfs",)),
    ("centre", "the same, 9/10 of the layers in the store", "envbuild, 9/10", ("uv + mksquashfs",)),
    ("start", "container start", "image", ("flat",)),
    ("start", "container start, as a module", "module", ("flat",)),
    ("start", "32 starts at once", "32 image", ("32 flat",)),
    ("start", "32 starts at once, as a module", "32 module", ("32 flat",)),
    ("import", "`import torch`", "image", ("flat", "directory")),
    ("memory", "peak memory of a build", "envbuild", ("tuned",)),
)
TRIALS = {
    "killed": "Builds killed at random moments. The store has no incomplete layer, and the next build gives"
    " the same bytes.",
    "full": "Builds on full disks of many sizes. The error names the lack of space; with space, the build"
    " continues.",
    "places": "A read-only store, a store on another file system, protected outputs, an image in use.",
    "crowd": "Simultaneous builds with one store, then builds of another user who reads it while its owner"
    " prunes. Same bytes.",
    "rot": "Files of a store flipped, cut, lost or swapped. Detected before use; the next build repairs it.",
    "mirrors": "Mirrors that are busy, stall, or send wrong or incomplete data. Retried, resumed, verified.",
    "secrets": "Secrets in the environment, netrc, configuration and URLs. None is in an image, store, lock"
    " or log.",
    "matrix": "Users, umasks, time zones, locales, host names, paths, file systems, cores. Same bytes.",
    "fuzz": "Mutated specs, recipes, locks, plans and images. No traceback, no hang, nothing written"
    " outside.",
}


def write() -> None:
    """Write the page."""
    PAGE.write_text(text())


def text() -> str:
    """Return the page."""
    bench, toolkits, vendor, torture, travel, peers, stores, scaling = map(
        newest, ("bench", "toolkits", "vendor", "torture", "travel", "travel-peers", "large-store", "scaling")
    )
    sections = (
        (BENCH, bench_lines(bench)),
        (TOOLKITS, _toolkit_lines(toolkits)),
        (CELLS, _cell_lines(vendor)),
        (SUITE, _suite_lines(vendor)),
        (SPEED, _speed_lines(vendor)),
        (TRAVEL, _travel_lines(travel)),
        (PEERS, _peer_lines(peers)),
        (LARGE_STORE, _store_lines(stores)),
        (SCALING, _scaling_lines(scaling)),
        (MODELS, _model_lines(scaling)),
        (OBSERVED, _observed_lines(newest("observe"))),
        (TORTURE, _torture_lines(torture)),
        ("\n## Problems\n\n", _problem_lines({**toolkits, **vendor, **torture, **travel, **peers})),
    )
    return HEAD + "".join(head + "\n".join(lines) + "\n" for head, lines in sections if lines)


def bench_lines(rows: Mapping[str, Row]) -> list[str]:
    """Return the table of times and memory."""
    table = []
    for name, title, ours, others in COMPARISONS:
        if name not in rows or ours not in rows[name]["cases"]:
            continue
        row = rows[name]
        values = _medians(row["cases"][ours])
        end = (str(values["repeats"]), row["date"])
        compared = [other for other in others if other in row["cases"]]
        for other in compared:
            table.append((title, *_comparison(values, other, _medians(row["cases"][other])), *end))
        if not compared:
            table.append((title, _shown(values), NONE, NONE, NONE, NONE, *end))
        for other in others:
            if other in row["missing"]:
                table.append((title, _shown(values), other, row["missing"][other], NONE, NONE, *end))
    head = (
        "measurement",
        "envbuild",
        "compared with",
        "takes",
        "ratio",
        "ratio, CPU time",
        "repeats",
        "date",
    )
    return _table(head, table)


def absent_figures(name: str, row: Row) -> list[str]:
    """Return the cases of a row that the page compares and that have neither a figure nor a reason."""
    compared = [(ours, *others) for row_name, _, ours, others in COMPARISONS if row_name == name]
    cases = dict.fromkeys(case for group in compared for case in group)
    figures = {
        case: [value for values in row["cases"].get(case, {}).values() for value in values] for case in cases
    }
    return [case for case in cases if case not in row["missing"] and min(figures[case], default=0) <= 0]


def _medians(case: Mapping[str, Sequence[float]]) -> dict[str, float]:
    medians = {quantity: statistics.median(values) for quantity, values in case.items()}
    return {**medians, "repeats": max(map(len, case.values()))}


def _shown(values: Mapping[str, float]) -> str:
    return f"{values['seconds']:.2f} s" if "seconds" in values else f"{values['peak_bytes'] / 1e6:.0f} MB"


def _comparison(ours: Mapping[str, float], other: str, theirs: Mapping[str, float]) -> tuple[str, ...]:
    ratios = [
        f"{theirs[quantity] / ours[quantity]:.2f}" if quantity in ours else NONE
        for quantity in ("peak_bytes" if "peak_bytes" in ours else "seconds", "cpu_seconds")
    ]
    return _shown(ours), other.removeprefix("32 "), _shown(theirs), *ratios


def _toolkit_lines(rows: Mapping[str, Row]) -> list[str]:
    table = []
    for name, row in rows.items():
        recipes = ", ".join(f"{recipe} {version}" for recipe, version in sorted(row["recipes"].items()))
        difference = NONE
        if row["difference"] is not None:
            difference = f"{row['difference']:.1e} (≤ {row['tolerance']:.0e})"
        seconds = [
            f"{row['test_s'][ranks]:.0f}" if ranks in row["test_s"] else "failed" for ranks in ("2", "4")
        ]
        controls = "{} of {}".format(*row["controls"]) if row["controls"][1] else NONE
        sizes = (_mb(row["image_bytes"]), _mb(row["new_bytes"]))
        table.append(
            (
                *(name, recipes, f"{row['build_s']:.0f}", *sizes, str(row["exact"]), difference),
                *(*seconds, controls, row["date"]),
            )
        )
    head = ("example", "recipes", "build s", "image MB", "new MB", "exact", "difference")
    return _table((*head, "2 ranks s", "4 ranks s", "controls", "date"), table)


def _of(rows: Mapping[str, Row], part: str) -> Iterator[tuple[list[str], Row]]:
    """Yield the rows of a part of `make vendor`, with what follows in their names."""
    for name, row in rows.items():
        first, *words = name.split("/")
        if first == part:
            yield words, row


def _cell_lines(rows: Mapping[str, Row]) -> list[str]:
    hosts = ("own", "mpich", "intel-mpi", "openmpi")
    table = []
    for (image, software), row in _of(rows, "test"):
        cells = []
        for host in hosts:
            cell = row["cells"].get(host, {})
            seconds = f"{cell['seconds']:.0f} s" if "seconds" in cell else "failed"
            cells.append(f"rejected: {cell['rejected']}" if "rejected" in cell else seconds)
        table.append((image, software, *cells, row["date"]))
    head = ("image", "with", "its own MPI", *(f"host {host}" for host in hosts[1:]), "date")
    return _table(head, table)


def _suite_lines(rows: Mapping[str, Row]) -> list[str]:
    table = [
        (
            *(image, *(str(row.get(count, NONE)) for count in ("tests", "failures", "errors", "skipped"))),
            *(", ".join(row["failing"]) or NONE, row["date"]),
        )
        for (image,), row in _of(rows, "suite")
    ]
    return _table(("image", "tests", "failed", "errors", "skipped", "failing tests", "date"), table)


def _speed_lines(rows: Mapping[str, Row]) -> list[str]:
    table = []
    for (mpi,), row in _of(rows, "speed"):
        for size, times in row["messages"].items():
            fastest, slowest = times["outside_range_us"]
            medians = (f"{times['inside_us']:.2f}", f"{times['outside_us']:.2f}", f"{times['ratio']:.3f}")
            end = (f"{fastest:.2f} to {slowest:.2f}", str(row["runs"]), row["date"])
            table.append((mpi, f"{size} B", *medians, *end))
    head = (
        "MPI",
        "message",
        "inside µs",
        "outside µs",
        "inside / outside",
        "outside, range µs",
        "runs",
        "date",
    )
    return _table(head, table)


def _travel_lines(rows: Mapping[str, Row]) -> list[str]:
    table = []
    for name, row in rows.items():
        times = f" ({row['of_layers']:.2f} times)" if "of_layers" in row else ""
        title = name.removesuffix(f", {row['tool']}")
        size = f"{row['bytes'] / 1e6:.1f}{times}"
        table.append((title, row["tool"], size, f"{row['seconds']:.1f}", row["date"]))
    return _table(("what", "by", "MB", "seconds", "date"), table)


def _peer_lines(rows: Mapping[str, Row]) -> list[str]:
    table = [
        (
            *(row["tool"], row["version"], name.removesuffix(f", {row['tool']}")),
            *(f"{row['bytes'] / 1e6:.1f}", f"{row['seconds']:.1f}", row["date"]),
        )
        for name, row in rows.items()
    ]
    return _table(("tool", "version", "what it does", "MB", "seconds", "date"), table)


def _store_lines(rows: Mapping[str, Row]) -> list[str]:
    table = [
        (
            *(f"`{row['command']}`", f"{row['layers']:,}", f"{row['layers'] // row['layers_per_image']:,}"),
            *(f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}", _mb(row["peak_bytes"]), row["date"]),
        )
        for row in sorted(rows.values(), key=lambda row: (row["command"], row["layers"]))
    ]
    return _table(("command", "layers", "images", "seconds", "CPU seconds", "MB", "date"), table)


def _scaling_lines(rows: Mapping[str, Row]) -> list[str]:
    """Return the table of the language model: rates in words/s, and shares of a step in percent."""
    table = []
    for name, row in rows.items():
        if name.startswith("model/"):
            continue
        unit = "%" if row["name"] == "communication" else " words/s"
        interval = f"{row['low']:,.0f} to {row['high']:,.0f}" if row["low"] is not None else NONE
        efficiency = "oversubscribed" if row["oversubscribed"] else NONE
        if row["efficiency"] is not None:
            efficiency = f"{row['efficiency']:.0%}"
        table.append(
            (
                *(f"`{row['name']}`", row["nodes"], row["ranks"], row["threads"]),
                *(f"{row['median']:,.0f}{unit}", interval, efficiency),
                *(row["network"] or NONE, row["repeats"], row["date"]),
            )
        )
    head = (
        "value",
        "nodes",
        "ranks",
        "threads",
        "median",
        "interval",
        "efficiency",
        "network",
        "runs",
        "date",
    )
    return _table(head, [tuple(map(str, line)) for line in table]) if table else []


def _model_lines(rows: Mapping[str, Row]) -> list[str]:
    table = [
        (
            *(str(row["nodes"]), str(row["ranks"]), f"{1e6 * row['latency_s']:.1f}"),
            f"{_mb(row['bytes_per_s'])} MB/s" if row["bytes_per_s"] else NONE,
            *(f"{row['held_out_bytes']:,} B", f"{row['error']:.0%}", row["date"]),
        )
        for name, row in rows.items()
        if name.startswith("model/")
    ]
    head = ("nodes", "ranks", "latency µs", "rate", "left out of the fit", "error there", "date")
    return _table(head, table) if table else []


def _observed_lines(rows: Mapping[str, Row]) -> list[str]:
    """Return the table of what records cost."""
    table = [
        (
            name,
            f"{row['median']:.2%}",
            f"{row['low']:.2%} to {row['high']:.2%}",
            str(row["runs"]),
            row["date"],
        )
        for name, row in rows.items()
    ]
    head = ("added by records", "median", "interval", "runs", "date")
    return _table(head, table) if table else []


def _torture_lines(rows: Mapping[str, Row]) -> list[str]:
    table = [
        (name, conditions, str(row["cases"]), str(len(row["problems"])), f"{row['seconds']:.0f}", row["date"])
        for name, conditions in TRIALS.items()
        if (row := rows.get(name))
    ]
    return _table(
        ("trial", "conditions and expected behaviour", "cases", "problems", "seconds", "date"), table
    )


def _problem_lines(rows: Mapping[str, Row]) -> list[str]:
    return [
        f"- {row['date']}, {name}: {problem}" for name, row in rows.items() for problem in row["problems"]
    ]


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.0f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]

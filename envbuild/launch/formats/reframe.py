"""Checks of ReFrame, which run an image's own test, its program and its benchmarks by `envbuild`. Pure."""

from __future__ import annotations

import re
import shlex

from envbuild.errors import RequestError
from envbuild.launch.formats import TextFormat
from envbuild.launch.runtimes import WRITTEN, SiteLaunch, head_lines
from envbuild.launch.schedulers import Work, work_for

_BY_APPTAINER = ("apptainer", "singularityce")
_RESULT = "bench.json"
# In the stage directory of the check, where its program ran.
_VALUES = f'''
    @run_before("performance")
    def take_values(self):
        with open(os.path.join(self.stagedir, "{_RESULT}")) as file:
            points = json.load(file)["points"]
        for point in points:
            name = "{{benchmark}}.{{name}}_{{nodes}}_nodes_{{ranks}}_ranks".format(**point)
            value = sn.defer(point["median"])
            self.perf_variables[name] = sn.make_performance_function(value, point["unit"])
'''


def _render(launch: SiteLaunch) -> str:
    """Return the check, in Python. RequestError: envbuild does not start images by the site's runtime."""
    if launch.runtime.name not in _BY_APPTAINER:
        raise RequestError(
            f"a check of ReFrame starts images by Apptainer, not by {launch.runtime.name}",
            hint="--runtime apptainer, if the site has it",
        )
    manifest = launch.manifest
    work = work_for(launch.site, for_gpus=launch.for_gpus, launch=manifest.launch)
    options = ["--site", launch.site_argument]
    # A test that sees no GPU must not pass.
    gpus = ["--require-gpu"] if launch.for_gpus else []
    name = "".join(part.title() for part in re.split(r"[^A-Za-z0-9]+", manifest.name))
    name = name if name[0].isalpha() else f"Image{name}"
    test = Work(name="", head=(), body=(), ranks=manifest.ranks)
    beside = bool(work.command and manifest.launch and manifest.launch.relative_files)
    imports = ["import json", "import os"] if launch.has_benchmarks else []
    imports += ["import shlex"] if beside else []
    lines = [
        *head_lines(launch),
        "# reframe -c FILE -r",
        "",
        *([*imports, ""] if imports else []),
        "import reframe as rfm",
        "import reframe.utility.sanity as sn",
        "from reframe.core.backends import getlauncher",
        "",
        "",
        "class OfEnvbuild(rfm.RunOnlyRegressionTest):",
        '    valid_systems = ["*"]',
        '    valid_prog_environs = ["*"]',
        "    sourcesdir = None",
        '    executable = "envbuild"',
        "    postrun_cmds = ['echo \"exit code: $?\"']",
        "",
        '    @run_before("run")',
        "    def start_once(self):",
        "        # envbuild starts the ranks itself, by the launcher of the site.",
        '        self.job.launcher = getlauncher("local")()',
        "",
        "    def exits_with_0(self):",
        '        return sn.assert_found(r"^exit code: 0$", self.stdout)',
        "",
        *_check_lines(
            f"{name}Test",
            f"the jobs of {manifest.name}/{manifest.version} give right results",
            ["test", *options, *gpus, launch.image],
            test,
            # Not one whose GPUs went untested, or that has no jobs.
            r'self.exits_with_0(), sn.assert_found(r"^\S+/\S+ \(\w+\) on .*: passed(:| on )", self.stderr)',
        ),
    ]
    if work.command:
        lines += _check_lines(
            f"{name}Launch",
            f"the program of {manifest.name}/{manifest.version} ends without an error",
            ["launch", *options, launch.image],
            work,
            r'self.exits_with_0(), sn.assert_not_found(r"^error: ", self.stderr)',
            beside=beside,
        )
    if launch.has_benchmarks:
        lines += _check_lines(
            f"{name}Bench",
            f"the speed of {manifest.name}/{manifest.version}, in ReFrame's performance report",
            ["bench", *options, "--report", _RESULT, launch.image],
            test,
            "self.exits_with_0()",
        )
        lines += _VALUES.splitlines()[1:]
    return "\n".join(lines) + "\n"


def _check_lines(
    name: str, title: str, words: list[str], work: Work, sanity: str, *, beside: bool = False
) -> list[str]:
    """Return the class of a check; one that needs files `beside` it runs there, not in ReFrame's stage."""
    settings = {
        "num_tasks": work.ranks or (work.nodes or 1) * (work.ranks_per_node or 1),
        "num_tasks_per_node": work.ranks_per_node,
        "num_gpus_per_node": work.gpus_per_node,
    }
    return [
        "",
        "@rfm.simple_test",
        f"class {name}(OfEnvbuild):",
        f"    descr = {title!r}",
        # ReFrame writes them into a script as they are.
        f"    executable_opts = {[shlex.quote(word) for word in words]!r}",
        *(f"    {key} = {count}" for key, count in settings.items() if count),
        *([f'    time_limit = "{work.time_min}m"'] if work.time_min else []),
        "",
        *(
            [
                '    @run_before("run")',
                "    def run_beside_this_file(self):",
                '        self.prerun_cmds = [f"cd {shlex.quote(self.prefix)}"]',
                "",
            ]
            if beside
            else []
        ),
        "    @sanity_function",
        "    def is_right(self):",
        f"        return sn.all([{sanity}])",
        "",
    ]


FORMAT = TextFormat(
    title="a check of ReFrame",
    first_lines=WRITTEN,
    render=_render,
    runtimes=None,
    image_format=lambda _: "",
    scheduler="",
    directory="the directory of the check",
)

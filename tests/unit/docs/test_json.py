"""The page of the JSON documents lists their keys, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from envbuild.cli.check import finish_fits
from envbuild.cli.members import finish_members
from envbuild.cli.output import print_json
from envbuild.cli.status import finish_packages, status_data
from envbuild.errors import Location, RequestError
from envbuild.image.runnable import Runnable
from envbuild.jobs.report import CheckResult, LoadedBlas, Measured
from envbuild.observe.records import read_record
from envbuild.observe.screening import screen
from envbuild.preflight.problems import mismatch
from envbuild.preflight.report import PreflightReport
from envbuild.rules.facts import Fact
from envbuild.rules.judge import RuleResult
from envbuild.rules.needs import Need, UndecidedNeed
from envbuild.rules.package_query import Package
from envbuild.rules.repair import Repair
from envbuild.spec.model import Excuse
from envbuild.store.report import Report
from envbuild.workflows.check import CheckedImage, PartitionFit
from envbuild.workflows.explain import Explanation
from envbuild.workflows.fit import PartitionVerdict, SiteFit
from envbuild.workflows.forecast import Forecast, KnownImage, Needs, Outlook
from envbuild.workflows.members import Member, Members
from envbuild.workflows.observe import Observed
from envbuild.workflows.packages import PackageAnswer
from envbuild.workflows.status import Status

PAGE = (Path(__file__).resolve().parents[3] / "docs/reference/json.md").read_text()
# Keys of the documents that are names: page and document are compared without them.
NAMES = re.compile(r"^(host\.facts|submitted_from|outputs)\.\w+$")
PROBLEM = mismatch("loader.libraries", file="/usr/bin/a", need="libz.so.1", winner="nothing", hint="add it")


def test_the_keys_of_several_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    at = Location(path=Path("a.yaml"), line=1, column=1)
    error = RequestError("p", hint="h", at=at)
    failed: Member[None] = Member(name="a", path=Path("a.yaml"), error=error)
    members = Members(items=(failed,), many=True)
    with pytest.raises(typer.Exit):
        finish_members(members, row=lambda _: [], data=lambda _: None, json=True)
    assert keys_of_page("Several at once") == keys(json.loads(capsys.readouterr().out))


def test_the_keys_of_a_status() -> None:
    status = Status(name="a", path=Path("a.sif"), verdict=None, changed=("x",), problems=("p",))
    printed = {**status_data(status), "path": "a.sif", "failed": ["f"], "changed": ["c"]}
    assert keys_of_page("envbuild status --json") == keys(json.loads(json.dumps(printed)))


def test_the_keys_of_packages(capsys: pytest.CaptureFixture[str]) -> None:
    package = Package(ecosystem="deb", name="a", version="1")
    answer = PackageAnswer(found=(package,), undecided=(package,), gaps=("why",))
    answers = Members(items=(Member(name="a", path=Path("a.sif"), result=answer),), many=True)
    with pytest.raises(typer.Exit):
        finish_packages(answers, ["a"], json=True)
    assert keys_of_page("envbuild status --package --json") == keys_of_results(capsys.readouterr().out)


def test_the_keys_of_fits(capsys: pytest.CaptureFixture[str]) -> None:
    rule = RuleResult(
        rule="A.b",
        title="t",
        outcome="incompatible",
        facts={},
        missing=("glibc.host",),
        reason="r",
        hint="h",
        source="s",
    )
    verdict = PartitionVerdict(partition="here", verdict="reject", results=(rule,))
    fit = SiteFit(image=KnownImage(name="a", path=Path("a.sif")), partitions=(verdict,))
    with pytest.raises(typer.Exit):
        finish_fits(Members(items=(Member(name="a", path=Path("a.sif"), result=fit),), many=True), json=True)
    assert keys_of_page("envbuild check --all --json") == keys_of_results(capsys.readouterr().out)


def test_the_keys_of_a_test() -> None:
    report = Report(
        name="a",
        version="1",
        digest="sha256:1",
        ranks=2,
        checks=[CheckResult("PASS", "a/ranks", "2", "2")],
        outputs={"a": "line"},
        facts={"kernel": "6.1"},
        left_out=["b"],
        submitted_from={"kernel": "6.1"},
        measured=[Measured(job="a", name="rate", value=1.0, unit="1/s", higher_is_better=True, ranks=2)],
        blas=[LoadedBlas(job="a", ranks=(0, 1), libraries=("/a.so",))],
    )
    document = json.loads(report.to_json())
    assert keys_of_page("envbuild test --json") == keys(document)
    assert f"| `schema` | `{document['schema']}` |" in section_of_page("envbuild test --json")


def test_the_keys_of_observed_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    first = b'{"format":1,"kind":"rank","rank":0,"size":2,"image":"sha256:1","job":"7"}\n'
    records = (read_record("rank-0.jsonl", first),)
    observed = Observed(
        directory=Path("a"), records=records, unread={"rank-1.jsonl": "why"}, screening=screen(records)
    )
    print_json(observed.document())
    found = {key.replace("rank-1.jsonl", "NAME") for key in keys(json.loads(capsys.readouterr().out))}
    assert keys_of_page("envbuild observe --json") == found


def test_the_keys_of_a_check() -> None:
    rule = RuleResult(
        rule="A.b",
        title="t",
        outcome="unknown",
        facts={"driver.version": Fact("580", "site:a")},
        missing=("glibc.host",),
        reason="r",
        hint="h",
        source="s",
    )
    checked = CheckedImage(
        runnable=cast("Runnable", SimpleNamespace(name="a", version="1", digest="sha256:1")),
        preflight=PreflightReport(
            problems=(PROBLEM,),
            excused=("libcuda.so.1",),
            objects=1,
            processes=1,
            excuses={Excuse(id="loader.libraries", reason="unused"): (PROBLEM,)},
        ),
        rule_results=(rule,),
        others=(),
        partitions=(PartitionFit(name="a/b", reasons=("no",)),),
        seconds=1.0,
    )
    document = json.loads(json.dumps(checked.document()))
    assert keys_of_page("envbuild check --json") == keys(document)
    assert f"| `schema` | `{document['schema']}` |" in section_of_page("envbuild check --json")


def test_the_keys_of_an_explanation() -> None:
    rule = RuleResult(
        rule="A.b",
        title="t",
        outcome="unknown",
        facts={"driver.version": Fact("580", "site:a")},
        missing=("glibc.host",),
        reason="r",
        hint="h",
        source="s",
    )
    explained = Explanation(
        subject="a.yaml", sites=("a",), results=(rule,), silenced={"A.b": "why"}, unread=("x",)
    )
    document = json.loads(json.dumps(explained.document()))
    found = {key.replace("silenced.A.b", "silenced.NAME") for key in keys(document)}
    assert keys_of_page("envbuild explain --json") == found
    assert f"| `schema` | `{document['schema']}` |" in section_of_page("envbuild explain --json")


def test_the_keys_of_a_forecast() -> None:
    rule = RuleResult(
        rule="A.b",
        title="t",
        outcome="incompatible",
        facts={},
        missing=("driver.version",),
        reason="r",
        hint="h",
        source="s",
    )
    outlooks = (
        Outlook(partition="a", state="breaks", results=(rule,), repair=Repair(release="", layers=("mpi",))),
        Outlook(partition="b", state="breaks", results=(rule,)),
    )
    forecast = Forecast(
        site="a",
        changes={"driver.version": ("1", "2")},
        images=((KnownImage(name="a", path=Path("a.sif"), facts={}), outlooks),),
    )
    document = json.loads(json.dumps(forecast.document()))
    assert keys_of_page("envbuild forecast --json") == keys(document)
    needs = Needs(
        listed=((Need(need="n", rule="A.b", reason="r", source="s", severity="error"), ("a",)),),
        undecided=((UndecidedNeed(rule="A.b", missing="m"), ("a",)),),
        unknown=(KnownImage(name="b", path=Path("b.sif"), problem="p"),),
        silenced={"NAME": "why"},
    )
    document = json.loads(json.dumps(needs.document()))
    assert keys_of_page("envbuild forecast --needs --json") == keys(document)


def keys_of_results(printed: str) -> set[str]:
    """Return the keys of members' results, and those beside the members; "Several at once" has the others."""
    document = json.loads(printed)
    members = [{"result": member["result"]} for member in document.pop("members")]
    return keys({"members": members, **document})


def keys(value: Any, path: str = "") -> set[str]:
    """Return the paths of all values that are neither lists nor objects."""

    def parts() -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            yield from ((f"{path}.{key}".lstrip("."), each) for key, each in value.items())
        else:
            yield from ((f"{path}[]", each) for each in value)

    if not isinstance(value, dict | list):
        return {NAMES.sub(r"\1.NAME", path)}
    assert value, f"{path} is empty, so its keys are not compared"
    return set().union(*(keys(each, name) for name, each in parts()))


def section_of_page(heading: str) -> str:
    heading = f"`{heading}`" if heading.startswith("envbuild") else heading
    return PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def keys_of_page(heading: str) -> set[str]:
    cells = re.findall(r"^\| (`[^|]+`) \|", section_of_page(heading), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}

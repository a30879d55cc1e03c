"""A job's header is read with its places, and a control replaces the lines that are marked for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError
from envbuild.jobs.judge import Job
from envbuild.spec.job_file import marks_of, read_header, with_fault, with_modules
from envbuild.spec.oracles import ORACLES, controls_of, jobs_of

PATH = Path("verify/train.py")


def jobs(header: str) -> list[Job]:
    content = "".join(f"# {line}\n" for line in header.strip().splitlines())
    loaded = read_header(f"# /// job\n{content}# ///\nprint()\n".encode(), PATH)
    assert loaded is not None
    return list(jobs_of(loaded.value, "demo", PATH.name))


def test_a_file_without_a_header_is_a_module() -> None:
    assert read_header(b'"""A module."""\n# /// script\n# ///\n', PATH) is None


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_the_places_are_those_in_the_file(line_end: str) -> None:
    lines = [
        '"""A job."""',
        "",
        "# /// job",
        "# id: demo.sum",
        "#",
        "# title: sums",
        "# expect: {sum: n}",
        "# ///",
    ]
    loaded = read_header(line_end.join(lines).encode(), PATH)
    assert loaded is not None
    place = loaded.at("expect", "sum")
    assert (place.path, place.line, place.column) == (PATH, 7, 17)


def test_text_that_is_not_utf_8_is_refused_with_its_line() -> None:
    with pytest.raises(EnvbuildError) as caught:
        read_header(b"# /// job\n# id: demo.sum\n# title: \xff\n# ///\n", PATH)
    (error,) = caught.value.each()
    assert str(error.at) == "verify/train.py:3:10"


def test_a_job_takes_over_its_oracle_and_adds_to_it() -> None:
    (job,) = jobs("""
id: demo.train
oracle: training
compare_with_single: {losses: 1.0e-10}
same_on_all_ranks: [words]
expect: {sum: n, five: 5}
""")
    assert job.title == ORACLES["training"].title
    assert job.expect == {"steps": "25", "sum": "n", "five": "5"}
    assert job.compare_with_single == {"losses": 1e-10, "parameters": 1e-5}
    assert job.same_on_all_ranks == ("parameter_hash", "words")


def test_a_job_on_both_devices_has_a_twin() -> None:
    cpu, gpu = jobs("{id: demo.sum, title: sums, devices: [cpu, gpu], expect: {sum: n}}")
    assert (cpu.id, cpu.title, cpu.gpus_per_rank) == ("demo.sum", "sums", 0)
    assert (gpu.id, gpu.title, gpu.gpus_per_rank) == ("demo.sum-gpu", "sums, on GPUs", 1)
    (alone,) = jobs("{id: demo.sum, title: sums, devices: [gpu], gpus_per_rank: 2, expect: {sum: n}}")
    assert (alone.id, alone.gpus_per_rank) == ("demo.sum", 2)


def test_controls_are_those_of_the_oracle_and_its_own() -> None:
    header = b"""\
# /// job
# id: demo.mean
# oracle: averaging
# controls:
#   half a step: [weight_first]
#   another transport: {fails: [weight_last], environment: {TRANSPORT: none}}
# ///
"""
    loaded = read_header(header, PATH)
    assert loaded is not None
    controls = controls_of(loaded.value)
    assert {name: control.fails for name, control in controls.items()} == {
        "no averaging": ("weight_first", "weight_last"),
        "half a step": ("weight_first",),
        "another transport": ("weight_last",),
    }
    assert controls["another transport"].environment == {"TRANSPORT": "none"}


TEXT = """\
def main():
    # control no sum: total = 1
    # control another sum: first = 2
    # control another sum: total = first
    # The sum over all ranks.
    total = add(
        1,
        # control no number: 0,
        number,
    )
    # control no sum:
    report(total)
"""


def test_a_control_replaces_the_lines_that_are_marked_for_it() -> None:
    lines = TEXT.splitlines()
    expected = [*lines]
    expected[8] = "        0,"
    assert with_fault(TEXT, "no number").splitlines() == expected
    expected = [*lines[:5], "    first = 2", "    total = first", *lines[6:]]
    assert with_fault(TEXT, "another sum").splitlines() == expected
    expected = [*lines]
    expected[5], expected[11] = "    total = 1", ""
    assert with_fault(TEXT, "no sum").splitlines() == expected
    assert with_fault(TEXT, "other") == TEXT


def test_a_mark_above_no_code_replaces_nothing() -> None:
    text = "print()\n# control no sum: pass\n\n# the end\n"
    assert [(mark.control, mark.line, mark.replaced) for mark in marks_of(text)] == [("no sum", 2, 0)]
    assert with_fault(text, "no sum") == text


def test_a_job_comes_with_the_modules_that_it_imports() -> None:
    texts = {
        "job.py": "import os\nimport first\n",
        "first.py": "    from second import thing\n",
        "second.py": "import job\n",
        "other.py": "import first\n",
    }
    assert with_modules("job.py", texts).keys() == {"job.py", "first.py", "second.py"}

"""What the documentation tells people to type works as it stands, and prints what it says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Desk
from tests.support.pages import Command, File, script, steps, wrong
from tests.support.places import make_place
from tests.support.registry import serving

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if any(isinstance(step, Command) for step in steps(path)))
# Pages that build more than others; in `make test` other tests do what they show.
SLOW = {
    "howto/carry-and-share.md": "tests/integration/main_job/test_layers.py and resolve/test_offline.py",
    "howto/export.md": "tests/integration/image/test_export.py and main_job/test_export.py",
    "howto/cache.md": "tests/integration/main_job/test_cache.py",
    "howto/jupyter.md": "tests/integration/activate/test_kernel.py",
    "howto/reproduce.md": "tests/integration/torture and workflows/test_reproduce.py",
    "howto/write-a-job.md": "tests/integration/recipes/test_newcomer.py",
    "howto/train.md": "tests/integration/slurm/test_torch.py",
    "howto/build-many.md": "tests/integration/build/test_many_specs.py",
    "howto/update.md": "tests/integration/main_job/test_build.py and activate/test_workflow.py",
    "howto/requirements.md": "tests/unit/workflows/test_import_file.py and tests/unit/resolve",
    "howto/operate-many.md": "tests/integration/activate and tests/unit/cli/test_many_images.py",
    "howto/modules.md": "tests/integration/activate/test_workflow.py",
    "tutorials/extend.md": "tests/integration/extend",
    "tutorials/gpu-image.md": "tests/integration/resolve and recipes; its image is `make toolkits`",
    "tutorials/first-image.md": "`make demo` and tests/integration/main_job",
    "tutorials/share-an-image.md": "tests/integration/registry",
    "training/ranks.md": "tests/integration/jobs and tests/unit/workflows/test_launch.py",
    "training/package.md": "tests/integration/extend",
    "training/maintenance.md": "tests/unit/workflows/test_forecast.py and tests/integration/main_job",
}
# What a login shell of a centre has.
LMOD = "source /usr/share/lmod/lmod/init/bash"
# Whoever runs the tests may have it set: each word that a rank prints would be a write of its own, and mix.
BUFFERED = "unset PYTHONUNBUFFERED"


def test_the_pages_that_people_follow_are_run() -> None:
    names = {str(page.relative_to(DOCS)) for page in PAGES}
    assert names >= SLOW.keys()
    assert {
        "tutorials/first-image.md",
        "tutorials/extend.md",
        "tutorials/share-an-image.md",
        "tutorials/add-a-toolkit.md",
        *(
            f"howto/{name}.md"
            for name in ("carry-and-share", "train", "reproduce", "modules", "export", "import")
        ),
        *(f"howto/{name}.md" for name in ("editors", "sites", "write-a-job")),
    } <= names


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for page in PAGES
        for name in [str(page.relative_to(DOCS))]
    ],
)
def test_it_does_what_it_says(desk: Desk, shared: Path, page: Path, request: pytest.FixtureRequest) -> None:
    if str(page.relative_to(DOCS)) in SLOW:  # they build upon its layers
        request.getfixturevalue("image")
    # Its name counts: a proposed spec is called like the directory.
    place = make_place(shared) / page.stem
    place.mkdir()
    program = f'{LMOD}\n{BUFFERED}\nexport PATH="{desk.command.parent}:$PATH"\nexec 2>&1\n{script(page)}'
    # Not by its standard input, which what it starts may read.
    typed = desk.write(f"{page.stem}.sh", program)
    with serving() as registry:
        variables = {"REGISTRY": f"{registry.host}/envs"}
        done = desk.run(["bash", "--noprofile", "--norc", typed], cwd=place, code=None, env=variables)
    assert wrong(page, done.stdout) == []


class TestThatAPageCanFail:
    """The reader of pages sees what is wrong."""

    @pytest.fixture
    def page(self, tmp_path: Path) -> Path:
        return tmp_path / "page.md"

    def run(self, page: Path, text: str) -> list[str]:
        page.write_text(text)
        done = subprocess.run(["bash"], input=script(page), capture_output=True, text=True, cwd=page.parent)
        return wrong(page, done.stdout)

    @pytest.mark.parametrize(
        "body",
        [
            "$ echo one two\none two\n",
            "$ echo one two\n… two\n",
            "$ seq 5\n1\n…\n5\n",
            "$ seq 5\n",
            "$ cd /\n$ pwd\n/\n",
        ],
    )
    def test_a_good_one_passes(self, page: Path, body: str) -> None:
        assert self.run(page, f"# Page\n\n```console\n{body}```\n") == []

    @pytest.mark.parametrize(
        "body",
        [
            "$ echo one two\none\n",
            "$ seq 5\n1\n…\n6\n",
            "$ false\n",
            "$ exit 0\n$ echo never\n",
        ],
    )
    def test_a_bad_one_fails_with_its_line(self, page: Path, body: str) -> None:
        found = self.run(page, f"# Page\n\n```console\n{body}```\n")
        assert found
        assert found[0].startswith("page.md:4: $ ")

    def test_files_are_written(self, page: Path) -> None:
        text = (
            "```yaml\n# a.yaml\nkey: 'it''s'\n```\n\n```console\n$ cat a.yaml\n# a.yaml\nkey: 'it''s'\n```\n"
        )
        assert self.run(page, text) == []
        assert [type(step) for step in steps(page)] == [File, Command]

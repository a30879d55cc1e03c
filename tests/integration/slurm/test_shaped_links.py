"""The model of message times, on links between two nodes whose rate and latency are known."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Desk
from tests.support.places import make_place
from tests.support.shaped_links import shaped_links
from tests.support.slurm import slurm_cluster


@dataclass(frozen=True)
class Link:
    """A link, in both directions."""

    megabits_per_s: int
    latency_s: float

    def fits(self, model: dict[str, Any]) -> bool:
        """Return whether a model has this rate and latency, and predicts the size that was left out.

        Of the rate, 95 % are left without headers and confirmations, and less while TCP looks for it. A small
        allreduce of two ranks takes one or two ways; a large one, which is announced and sent in two parts,
        eight. The model has one latency for all sizes.
        """
        share_of_rate = (model["bytes_per_s"] or 0.0) / (self.megabits_per_s * 1e6 / 8)
        ways = model["latency_s"] / self.latency_s
        return 0.6 <= share_of_rate <= 1.0 and 1.0 <= ways <= 4.0 and bool(model["error"] <= 0.3)


LINKS = (Link(200, 0.005), Link(50, 0.01))


def model_of(desk: Desk, image: Path, directory: Path, link: Link | None) -> dict[str, Any]:
    """Return the model of allreduces between two nodes of a new cluster, whose files go to `directory`."""
    words: list[str | Path] = ["bench", image, "--nodes", "2", "--ranks", "2", "--only", "mpi.allreduce"]
    options = ["--repeats", "1", "--results", "kept-shaped", "--timeout", "9min", "--json"]
    with slurm_cluster(directory) as cluster:
        login = replace(desk, cluster=cluster, env={**desk.env, **cluster.environment})
        with nullcontext() if link is None else shaped_links(cluster, link.megabits_per_s, link.latency_s):
            (model,) = json.loads(login.envbuild(*words, *options).stdout)["models"]
    assert (model["nodes"], model["held_out_bytes"]) == (2, 4 << 20)
    return dict(model)


@pytest.mark.slow  # eight minutes: messages of 16 MiB over slow links
def test_the_model_has_rate_and_latency_of_the_link_between_the_nodes(
    desk: Desk, small_image: Path, shared: Path
) -> None:
    models = [
        model_of(desk, small_image, make_place(shared, "slurm-link"), link)
        # The last is the control: the cluster's own links.
        for link in (*LINKS, None)
    ]
    found = [[link.fits(model) for link in LINKS] for model in models]
    assert found == [[True, False], [False, True], [False, False]], models

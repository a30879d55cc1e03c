"""An image's ranks under Slurm: one container a task, on all nodes of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from envbuild.check.judge import Ended
from envbuild.check.launchers.srun import Srun
from envbuild.check.run import Subject, wait_for_ranks
from envbuild.check.trial import Launch
from envbuild.site.inject import Injection
from envbuild.system.apptainer import Bind

# Every base holds it, empty, so the bind needs no overlay. Not /tmp: what an MPI keeps there belongs
# on the node, and this directory is on all of them.
RESULTS = "/mnt"


def launch_by_srun(
    subject: Subject, launcher: Srun, *, env: Mapping[str, str], lent: tuple[Injection, Path] | None = None
) -> Launch:
    """Return a function that has srun start one container a rank, and waits for them.

    What the ranks of a node share they share with the node: network, /dev/shm,
    /tmp. They see no home, and of the caller's environment what Slurm set.

    Parameters
    ----------
    env : mapping
        The complete environment of srun.
    lent : (Injection, Path), optional
        What the host lends to the image, and the staging directory that `Injection.fill_stage` has
        filled, which all nodes must see.
    """
    binds = lent[0].binds(lent[1]) if lent else []
    chosen = lent[0].environment if lent else {}

    def launch(
        command: Sequence[str], ranks: int, directory: Path, variables: Mapping[str, str], limit_s: float
    ) -> Ended:
        path = {name: chosen[name] for name in ("LD_LIBRARY_PATH",) if name in chosen}
        runtime = subject.apptainer.command(
            subject.image,
            [],
            binds=[Bind(source=directory, target=RESULTS, writable=True), *binds],
            env={**launcher.environment(), **chosen, **variables, **path, "ENVBUILD_RESULTS": RESULTS},
            cwd=RESULTS,
            network=True,
            isolated=False,
            home=False,
        )
        argv = launcher.command(runtime, command, ranks)
        return wait_for_ranks(argv, env=env, directory=directory, limit_s=limit_s)

    return launch

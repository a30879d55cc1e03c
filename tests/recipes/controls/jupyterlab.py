"""jupyterlab: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_notebook = partial(control, "jupyterlab", "notebook")

CONTROLS = (
    _notebook("singletons", "D0/A3.jupyterlab", before=SINGLETONS),
    _notebook(
        "a server that is open to everybody",
        "A3.jupyterlab/without_token",
        ('"--no-browser",', '"--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True",'),
    ),
    _notebook("a page that is not there", "A3.jupyterlab/lab_page", ('"/lab")', '"/laboratory")')),
    _notebook("another cell", "A3.jupyterlab/answer", ("{rank} + 2", "{rank} + 1")),
    _notebook(
        "a kernel that stays",
        "A3.jupyterlab/kernels_left",
        ('status(port, f"/api/kernels/{kernel}", "DELETE")', "pass"),
    ),
    _notebook(
        "a server that is killed",
        "A3.jupyterlab/exit_code",
        ('status(port, "/api/shutdown", "POST")', "pass"),
        ("exit_code = process.wait(60)", "process.kill()\n            exit_code = process.wait(60)"),
    ),
)

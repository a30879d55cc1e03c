"""Negative controls, a file for each recipe: what is spoiled, and which findings must fail then.

Of each job the first control after the singletons leaves the averaging out,
and the suite runs that one. The single run of a comparison is spoiled as
well; what differs with the number of ranks still shows.
"""

from importlib import import_module
from pkgutil import iter_modules

from tests.recipes.spoil import Control

CONTROLS: tuple[Control, ...] = tuple(
    control
    for module in sorted(iter_modules(__path__), key=lambda module: module.name)
    for control in import_module(f"{__name__}.{module.name}").CONTROLS
)

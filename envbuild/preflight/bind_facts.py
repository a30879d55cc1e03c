"""Facts of a site's binds in an image: targets that it lacks, and libraries that they cover. Pure."""

from __future__ import annotations

from envbuild.preflight.components import components
from envbuild.preflight.processes import ImageTree
from envbuild.rules.facts import Fact, Facts
from envbuild.spec.site import Site

# Runtimes that bind to existing targets alone. Apptainer makes others on its underlay, and most engines
# create them in a layer of the container.
_NEED_TARGETS = ("charliecloud", "shifter")


def bind_facts(site: Site, tree: ImageTree) -> Facts:
    """Return the facts of the binds of a site in an image with these files."""
    source = f"site:{site.name}"
    targets = tuple(dict.fromkeys(bind.target for bind in site.binds))
    shadowed = {
        target
        for path, _ in tree.objects()
        if components().is_of_accelerator(path.rpartition("/")[2])
        for target in targets
        if path.startswith(f"{target}/")
    }
    facts = {"injected.shadowed": Fact(tuple(sorted(shadowed)), source)}
    names = {runtime.name for runtime in site.runtimes}
    if names:
        # One that makes them is enough: images start by it.
        needs_targets = names <= set(_NEED_TARGETS)
        absent = tuple(target for target in targets if tree.real(target) is None) if needs_targets else ()
        facts["injected.bind_targets_absent"] = Fact(absent, source)
    return facts

"""The room that building layers needs, from the sizes of their files."""

from __future__ import annotations

from envbuild.plan.model import BaseStep, FilesStep, InputFile, Layer, RootStep
from envbuild.plan.space import needed_space


def base(name: str, *debs: str) -> Layer:
    step = BaseStep(
        suite="bookworm",
        architecture="amd64",
        debs=tuple(InputFile(name=f"{deb}.deb", sha256=deb * 64) for deb in debs),
        texts={},
        tools=(),
    )
    return Layer(name=name, key=f"sha256:{name * 64}", step=step)


def test_the_roots_that_are_unpacked_at_once_need_inodes_in_the_store_and_for_temporary_files() -> None:
    layers = [base("1", "a", "b"), base("2", "c"), base("3", "d")]
    root = RootStep(
        format="oci",
        archives=(InputFile(name="root.tar", sha256="e" * 64),),
        python="3.11",
        texts={},
        tools=(),
    )
    layers.append(Layer(name="root", key="sha256:" + "5" * 64, step=root))
    layers.append(Layer(name="files", key="sha256:" + "4" * 64, step=FilesStep(files=(), tools=())))
    sizes = {
        "a" * 64: 30_000_000,
        "b" * 64: 10_000_000,
        "c" * 64: 8_000_000,
        "d" * 64: 4_000_000,
        "e" * 64: 60_000_000,
    }
    needed = needed_space(layers, sizes, at_once=2)
    # One path for 4,000 bytes of packages: Debian 12 has 8,846 for 42 MB.
    assert needed.temporary_inodes == 48_000_000 // 4000
    # The root that is brought is unpacked in the store alone.
    assert needed.layers_inodes == 100_000_000 // 4000 + 5 * len(layers)
    assert needed_space(layers[3:], sizes).temporary_inodes == 0

"""Make a base root of locked .deb packages with mmdebstrap: what a peer of `bench.py` does first."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from envbuild.build.debian import make_root  # needs the path above
from envbuild.lock.text import load


def main() -> None:
    lock_file, kept, tree = (Path(word) for word in sys.argv[1:])
    lock = load(lock_file.read_bytes(), lock_file)
    debs = {kept.absolute() / "debs" / pin.file_name: pin.sha256 for pin in lock.base_debs}
    make_root(
        debs,
        suite="bookworm",
        architecture=lock.base.architecture,
        texts={},
        tree=tree,
        log=tree.with_suffix(".log"),
    )


if __name__ == "__main__":
    main()

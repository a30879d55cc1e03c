"""Spack package of the bundle, for ``packages/envbuild`` of a repository."""

from spack.package import *


class Envbuild(Package):
    """ML framework images for supercomputers: built from ten lines of YAML, proven across ranks."""

    license("Apache-2.0")

    # From a mirror that holds the bundle: `spack mirror add`.
    manual_download = True
    version(
        "@VERSION@",
        sha256="@BUNDLE_SHA256@",
        url="file:///envbuild-@VERSION@-bundle.tar.gz",
    )

    depends_on("python@3.11:3.14", type=("build", "run"))

    def install(self, spec, prefix):
        """Install the bundle; `python`, `pip` and `uv` of its environment stay off PATH."""
        sh = which("sh", required=True)
        sh("install.sh", prefix.venv, spec["python"].command.path)
        mkdirp(prefix.bin)
        symlink(prefix.venv.bin.envbuild, prefix.bin.envbuild)
        symlink(prefix.venv.share, prefix.share)

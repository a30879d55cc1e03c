"""Has tools of others take what envbuild pushed and signed, and writes docs/reference/benchmarks.md.

    make travel-peers                            # two minutes; the first time ten more, for the root

cosign, oras and skopeo are those of Debian unstable, in a root that the first run writes to build/peers.sqfs.
The registry is go-containerregistry's, compiled there; Debian's stable one is the second. Apptainer and
podman are those of this machine. The exit code is 1 if one of them refuses something, or gives other bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from benchmarks import page, results
from benchmarks.toolkits import ROOT, say
from benchmarks.travel import Road
from envbuild.image.statements import PREDICATES
from tests.support.debian_roots import make_root
from tests.support.distribution import free_port, serving_distribution, wait_for
from tests.support.installed import install
from tests.support.podman import podman, podman_home

PEERS = ROOT / "build/peers.sqfs"
PACKAGES = "ca-certificates,cosign,golang-github-google-go-containerregistry-dev,golang-go,oras,skopeo"
SPEC = 'name: peers\nversion: "1"\nmpi: mpich\npackages: {python: ["rich==13.*"]}\n'


@dataclass
class Peers:
    """Tools of others, which work in the directory of a road."""

    road: Road

    def run(self, *words: str | Path, env: Mapping[str, str] | None = None) -> str:
        """Run a tool, which must succeed, and return its output."""
        return self.road.run(*self._line(words, env or {}))

    def refuses(self, *words: str | Path) -> bool:
        """Run a tool, and return whether it fails."""
        return bool(subprocess.run(self._line(words, {}), capture_output=True, check=False).returncode)

    def _line(self, words: tuple[str | Path, ...], env: Mapping[str, str]) -> list[str | Path]:
        place = self.road.place
        inside = ["--cleanenv", "--contain", "--home", f"{place}:/home/peer", "--pwd", str(place)]
        inside += [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
        return ["apptainer", "--silent", "exec", "--userns", "--bind", str(place), *inside, PEERS, *words]


@contextmanager
def serving_peer_registry(peers: Peers) -> Iterator[str]:
    """Compile the registry written in Go, run it on a free port, and yield its host."""
    place = peers.road.place
    (place / "registry.go").write_bytes((ROOT / "benchmarks/peer_registry.go").read_bytes())
    settings = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "CGO_ENABLED": "0"}
    peers.run("go", "build", "-o", "peer-registry", "registry.go", env=settings)
    port = free_port()
    with (place / "registry.log").open("wb") as log:
        server = subprocess.Popen([place / "peer-registry", str(port)], stdout=log, stderr=log)
        try:
            wait_for(port, server)
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def prepare(road: Road) -> tuple[Path, Path]:
    """Build an image, test it and sign it; return it, and the public key."""
    (road.place / "peers.yaml").write_text(SPEC)
    key = road.place / "peers.key"
    road.envbuild("sign", "--new-key", key, env={"ENVBUILD_KEY_PASSPHRASE": ""})
    road.envbuild("build", "peers.yaml")
    road.envbuild("test", "peers.sif")
    road.envbuild("sign", "peers.sif", "--key", key)
    return road.place / "peers.sif", key.with_name("peers.key.pub")


def keeps(road: Road, name: str, image: Path) -> dict[str, Any]:
    """Push to the registry written in Go and pull from it, by parts and by Apptainer."""
    with road.step("keeps an image, and gives it back by parts", "go-containerregistry") as row:
        pushed = road.envbuild("push", image, name)
        row["bytes"] = pushed["sent_bytes"]
        if road.envbuild("push", image, name)["sent_bytes"]:
            row["problems"].append("a second push sent something again")
        fetch(road, row, name, image)
    with road.step("pulls the file of `push --sif`", "Apptainer") as row:
        both = f"{name}-sif"
        road.envbuild("push", "--sif", image, both)
        own = {"APPTAINER_CACHEDIR": str(road.place / "cache")}
        road.run("apptainer", "pull", "--no-https", "got.sif", f"oras://{both}", env=own)
        row["bytes"] = image.stat().st_size
        road.compare(row, image, road.place / "got.sif")
    return pushed


def fetch(road: Road, row: results.Row, name: str, image: Path) -> None:
    """Pull an image by envbuild into an empty store, and compare it."""
    with tempfile.TemporaryDirectory(dir=road.place) as store:
        road.envbuild("pull", name, "-o", "got.sif", "--store", Path(store) / "store")
    road.compare(row, image, road.place / "got.sif")


def by_oras(peers: Peers, name: str, image: Path, other: str) -> None:
    """Pull the parts, and copy the image with its statements to another registry."""
    road, plain = peers.road, "--plain-http"
    with road.step("pulls the parts, which are the file", "oras") as row:
        peers.run("oras", "pull", plain, "-o", "parts", name)
        manifest = json.loads(peers.run("oras", "manifest", "fetch", plain, name))
        with (road.place / "got.sif").open("wb") as file:
            for layer in manifest["layers"]:
                notes = layer["annotations"]
                content = (road.place / "parts" / notes["org.opencontainers.image.title"]).read_bytes()
                file.seek(int(notes["io.envbuild.offset"]))
                file.write(zstandard.decompress(content) if layer["mediaType"].endswith("+zstd") else content)
        row["bytes"] = image.stat().st_size
        road.compare(row, image, road.place / "got.sif")
    with road.step("copies the image with its statements to Debian's registry", "oras") as row:
        peers.run("oras", "cp", "-r", "--from-plain-http", "--to-plain-http", name, other)
        row["bytes"] = image.stat().st_size
        fetch(road, row, other, image)
        for place in (name, other):
            if len(referrers(peers, place)) != len(PREDICATES):
                row["problems"].append(f"{place} lists other statements than {', '.join(PREDICATES)}")


def referrers(peers: Peers, name: str) -> list[str]:
    """Return the digests of the manifests that oras finds to refer to an image."""
    found = json.loads(peers.run("oras", "discover", "--plain-http", "--format", "json", name))
    return [entry["digest"] for entry in found.get("referrers") or found.get("manifests") or ()]


def by_skopeo(peers: Peers, name: str, image: Path) -> None:
    """Copy the parts and the OCI image to a directory; podman pulls the latter."""
    road, plain = peers.road, "--src-tls-verify=false"
    with road.step("copies the parts, from one name to another", "skopeo") as row:
        copy = f"{name}-copy"
        words = ("skopeo", "--insecure-policy", "copy", plain, "--dest-tls-verify=false")
        peers.run(*words, f"docker://{name}", f"docker://{copy}")
        row["bytes"] = image.stat().st_size
        fetch(road, row, copy, image)
    pushed = road.envbuild("push", "--format", "oci", image, f"{name}-oci")
    with road.step("copies the image of `push --format oci`", "skopeo") as row:
        peers.run("skopeo", "--insecure-policy", "copy", plain, f"docker://{name}-oci", "oci:layout:1")
        row["bytes"] = pushed["size_bytes"]
        (entry,) = json.loads((road.place / "layout/index.json").read_text())["manifests"]
        if entry["digest"] != pushed["digest"]:
            row["problems"].append("skopeo has another digest")
    with (
        podman_home() as home,
        road.step("pulls the image of `push --format oci`", "podman") as row,
    ):
        row["bytes"] = pushed["size_bytes"]
        podman(home, "pull", "--quiet", "--tls-verify=false", f"{name}-oci")
        (shown,) = json.loads(podman(home, "image", "inspect", f"{name}-oci"))
        if shown["Digest"] != pushed["digest"]:
            row["problems"].append("podman sees another digest")


def by_cosign(peers: Peers, name: str, image: Path, key: Path) -> None:
    """Verify the statements, as `verify` writes them and as the registry has them."""
    road = peers.road
    words: list[str | Path] = ["verify", image, "--key", key, "-o", "statements", "--require", "verdict"]
    digest = road.envbuild(*words)["sha256"]
    (road.place / "referrers").mkdir()
    repository = name.rpartition(":")[0]
    for number, entry in enumerate(referrers(peers, name)):
        manifest = peers.run("oras", "manifest", "fetch", "--plain-http", f"{repository}@{entry}")
        (layer,) = json.loads(manifest)["layers"]
        blob = f"{repository}@{layer['digest']}"
        peers.run("oras", "blob", "fetch", "--plain-http", "-o", f"referrers/{number}.json", blob)
    with road.step("verifies the statements, and refuses them for other bytes", "cosign") as row:
        for directory in ("statements", "referrers"):
            bundles = sorted((road.place / directory).glob("*.json"))
            if len(bundles) != len(PREDICATES):
                row["problems"].append(f"{len(bundles)} bundles in {directory}")
            for bundle in bundles:
                payload = json.loads(bundle.read_bytes())["dsseEnvelope"]["payload"]
                kind = json.loads(base64.b64decode(payload))["predicateType"]
                line: list[str | Path] = [
                    "cosign",
                    "verify-blob-attestation",
                    "--key",
                    key,
                    "--insecure-ignore-tlog=true",
                ]
                line += ["--bundle", bundle, "--type", kind, "--digestAlg", "sha256", "--digest"]
                peers.run(*line, digest)
                row["bytes"] += bundle.stat().st_size
                if not peers.refuses(*line, hashlib.sha256(b"other bytes").hexdigest()):
                    row["problems"].append(f"cosign takes {bundle.name} for other bytes")


def versions(peers: Peers) -> dict[str, str]:
    """Return the versions of the tools."""
    shown = peers.run("dpkg-query", "-W", "-f", "${Package} ${Version}\n", *PACKAGES.split(","))
    packages = dict(line.split() for line in shown.splitlines())
    return {
        **packages,
        "go-containerregistry": packages["golang-github-google-go-containerregistry-dev"],
        **{tool: peers.road.run(tool.lower(), "--version").split()[-1] for tool in ("Apptainer", "podman")},
    }


def main() -> int:
    """Show the image to all, record what was found, and write the page."""
    if not PEERS.exists():
        say(f"writing {PEERS.relative_to(ROOT)}: ten minutes")
    make_root(PEERS, PACKAGES, "unstable")
    with tempfile.TemporaryDirectory(prefix="envbuild-peers-", dir="/var/tmp") as directory:
        road = Road(Path(directory), install(Path(directory) / "tool"))
        os.environ["ENVBUILD_STORE"] = f"{directory}/store"
        peers = Peers(road)
        image, key = prepare(road)
        (road.place / "distribution").mkdir()
        with (
            serving_peer_registry(peers) as host,
            serving_distribution(road.place / "distribution", authentication="none", tls=False) as stable,
        ):
            name = f"{host}/team/peers:1"
            keeps(road, name, image)
            by_oras(peers, name, image, f"{stable.host}/team/peers:1")
            by_skopeo(peers, name, image)
            by_cosign(peers, name, image, key)
        found = versions(peers)
    for step, row in road.rows.items():
        results.record("travel-peers", step, {**row, "version": found[row["tool"]]})
        for problem in row["problems"]:
            say(f"{step}: {problem}")
    page.write()
    return int(any(row["problems"] for row in road.rows.values()))


if __name__ == "__main__":
    sys.exit(main())

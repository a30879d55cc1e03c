"""Names of images in registries, and the documents that describe images there.

What requests them is in `registry`, whose HTTP client most commands do not need: it takes long to import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from envbuild.digests import sha256_of
from envbuild.errors import RequestError
from envbuild.system.redaction import redact

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = b"{}"
EMPTY_DESCRIPTOR = {
    "mediaType": "application/vnd.oci.empty.v1+json",
    "digest": sha256_of(EMPTY),
    "size": len(EMPTY),
}
"""The config of what is not an image of containers."""
# What the specification asks registries to take at least.
MANIFEST_LIMIT_BYTES = 4 << 20
# The longest blob that is pushed. Where a registry forgets uploads that break off, its blob begins again.
BLOB_BYTES = 256 << 20

_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<host>{_HOST})/(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
# Docker's own registry: the name in images, and the host.
_HUB, _HUB_SERVER = "docker.io", "registry-1.docker.io"
HINT_REFERENCE = "write HOST/NAME:TAG, as registry.example.org/team/pytorch:2026.11"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The name of an image in a registry."""

    host: str
    """With its port if it has one."""
    repository: str
    tag: str = ""
    digest: str = ""
    """``sha256:…`` of a manifest; empty if the tag alone counts."""

    @staticmethod
    def parse(text: str) -> Reference:
        """Return the reference of ``[docker://|oras://]HOST/NAME[:TAG][@sha256:…]``.

        RequestError: it is not one.
        """
        bare = re.sub(r"^(?:docker|oras)://", "", text)
        match = _REFERENCE.fullmatch(bare) if len(bare) <= 1024 else None
        # `team/pytorch` without a host would be a different registry for each tool.
        if match is None or not re.search(r"[.:\]]|^localhost$", match["host"]):
            problem = f"`{redact(bare[:200])}` does not name an image in a registry"
            raise RequestError(problem, hint=HINT_REFERENCE)
        tag, digest = match["tag"] or "", match["digest"] or ""
        repository = match["repository"]
        if match["host"] == _HUB and "/" not in repository:
            repository = f"library/{repository}"
        return Reference(
            host=match["host"],
            repository=repository,
            tag=tag or ("" if digest else "latest"),
            digest=digest,
        )

    @staticmethod
    def of_repository(text: str) -> Reference:
        """Return the reference of ``HOST/NAME``, without tag or digest; RequestError: it is not one."""
        reference = Reference.parse(text)
        if reference.digest or text.endswith(f":{reference.tag}"):
            problem = f"`{redact(text[:200])}` names an image; a repository is needed"
            raise RequestError(problem, hint="write HOST/NAME, as registry.example.org/team/layers")
        return reference

    @property
    def server(self) -> str:
        """The host that is asked, with its port: Docker's hub has another than its images name."""
        return _HUB_SERVER if self.host == _HUB else self.host

    @property
    def version(self) -> str:
        """The digest, or else the tag: by this the registry finds the manifest."""
        return self.digest or self.tag

    @property
    def short_name(self) -> str:
        """The last part of the repository's name, for files."""
        return self.repository.rpartition("/")[2]

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.host}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A manifest or index."""

    data: Mapping[str, object]
    digest: str
    """``sha256:…`` of its bytes."""
    size_bytes: int

    @property
    def descriptor(self) -> dict[str, object]:
        """Its descriptor in an index."""
        return {"mediaType": self.data["mediaType"], "digest": self.digest, "size": self.size_bytes}

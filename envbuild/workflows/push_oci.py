"""Push for podman, Docker and Kubernetes: an image goes to a registry as an OCI image.

What the store knows how it was packed, and the registry has, is neither packed nor sent.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from envbuild.events import Emit, task
from envbuild.image.file import ImageFile
from envbuild.image.oci import LayerContent, OciLayer, layer_contents, layer_file, oci_image, pack_layer
from envbuild.image.packed import packed_layer, record_packed
from envbuild.image.pushed import record_pushed
from envbuild.image.verify import check_image_is_whole
from envbuild.store.store import Store
from envbuild.system.process import thread_pool
from envbuild.workflows.push import TRANSFERS, Pushed, target_of


def push_oci_image(
    image: Path, text: str, store: Store, emit: Emit, *, source: str = "", plain: bool = False
) -> Pushed:
    """Push an image of ours to `text`, the name of an image in a registry, as an OCI image.

    The tag appears last. The same image gives the same digest. `source` and errors are those of `push_image`;
    RequestError, too: the image is not one that envbuild built. BuildError: it holds a device.
    """
    reference, repository = target_of(text, source, plain=plain)
    with ImageFile.open(image) as opened, repository:
        with task(emit, "read", f"read {image.name}", total_bytes=opened.size_bytes) as reading:
            check_image_is_whole(opened, advanced=reading.advance)
        contents = layer_contents(opened)
        total_bytes = sum(content.size_bytes for content in contents)
        sending: list[Future[int]] = []
        with (
            store.stage() as work,
            task(emit, "push", f"push {reference}", total_bytes=total_bytes) as pushing,
            thread_pool(TRANSFERS) as pool,
        ):

            def send(layer: OciLayer) -> int:
                file = layer_file(work, layer)
                with file.open("rb") as packed:
                    is_new = repository.push_blob(layer.digest, layer.size_bytes, packed, 0, lambda _: None)
                file.unlink(missing_ok=True)
                return layer.size_bytes if is_new else 0

            def pack(content: LayerContent) -> OciLayer:
                known = packed_layer(store, content.key) if content.key else None
                if known is not None and repository.has_blob(known.digest):
                    pushing.advance(content.size_bytes)
                    return known
                layer = pack_layer(opened.root, content, work, advanced=pushing.advance)
                if content.key:
                    record_packed(store, content.key, layer)
                sending.append(pool.submit(send, layer))
                return layer

            layers = [pack(content) for content in contents]
            sent = [future.result() for future in sending]
            converted = oci_image(opened, contents, layers)
            repository.push_bytes(converted.config)
            pushing.detail = f"{sum(sent) / 1e6:.1f} MB sent"
        opened.check_unchanged()
        document = repository.put_manifest(converted.document, reference.tag)
        # `export --format jobset` names the image by it.
        by_digest = f"{reference.host}/{reference.repository}@{document.digest}"
        record_pushed(store, opened.manifest.digest, by_digest)
    return Pushed(
        reference=str(reference),
        digest=document.digest,
        parts=len(layers),
        sent=sum(size_bytes > 0 for size_bytes in sent),
        size_bytes=sum(layer.size_bytes for layer in layers),
        sent_bytes=sum(sent),
    )

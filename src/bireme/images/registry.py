"""Push an image to a registry by the OCI distribution protocol.

Blobs first, the manifest last, so an image appears when it is complete. A blob that the registry has is skipped. An
upload that breaks off resumes at the offset that the registry reports, or from 0 with registries that do not keep a
partial blob. The registry checks each against its digest.
"""

from __future__ import annotations

import io
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from bireme.core.errors import ImageError, NetworkError
from bireme.images.archive import MANIFEST, Image
from bireme.images.layers import blocks, digest_of
from bireme.images.reference import Reference
from bireme.images.transport import Reply, Transport

ATTEMPTS = 4
"""Attempts of an upload before it fails."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that a registry keeps under their digest."""

    digest: str
    nbytes: int
    open: Callable[[], IO[bytes]]


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push."""

    digest: str
    sent: int
    """Bytes that had to be sent."""
    skipped: int
    """Bytes that the registry had."""


class Registry:
    """One repository of a registry, as the target of pushes."""

    def __init__(self, reference: Reference, transport: Transport, pause: Callable[[float], None] = time.sleep) -> None:
        self._reference, self._transport, self._pause = reference, transport, pause

    def push(self, image: Image, on_progress: Callable[[int, int], None] = lambda done, total: None) -> Pushed:
        """Send what the registry lacks of an image, and give it its tag."""
        config = Blob(digest_of(image.config), len(image.config), lambda: io.BytesIO(image.config))
        blobs = {b.digest: b for b in (*(Blob(x.digest, x.nbytes, x.open) for x in image.layers), config)}
        total = sum(blob.nbytes for blob in blobs.values())
        done = sent = 0

        def advance(part: int) -> None:
            on_progress(done + part, total)

        for blob in blobs.values():
            if not self.has_blob(blob.digest):
                self._upload(blob, advance)
                sent += blob.nbytes
            done += blob.nbytes
            advance(0)
        self._put_manifest(image)
        return Pushed(image.digest, sent, total - sent)

    def has_blob(self, digest: str) -> bool:
        """Whether the repository holds a blob."""
        reply = self._transport.ask("HEAD", self._url(f"blobs/{digest}"))
        # Some registries redirect to the storage of their blobs.
        if reply.status in (200, 301, 302, 303, 307, 308):
            return True
        if reply.status != 404:
            self._transport.refuse(reply, f"say whether it has {digest}")
        return False

    def _upload(self, blob: Blob, on_progress: Callable[[int], None]) -> None:
        place = ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                place, at = self._resume(place) if place else (self._begin(), 0)
                place = self._send_rest(place, at, blob, on_progress)
                self._close(place, blob)
                return
            except NetworkError:
                if attempt == ATTEMPTS:
                    raise
                self._pause(2.0 ** (attempt - 1))

    def _close(self, place: str, blob: Blob) -> None:
        url = f"{place}{'&' if '?' in place else '?'}digest={urllib.parse.quote(blob.digest)}"
        done = self._transport.ask("PUT", url, headers={"Content-Length": "0"})
        if done.status != 201:
            self._transport.refuse(done, f"accept {blob.digest}")

    def _begin(self) -> str:
        begun = self._transport.ask("POST", self._url("blobs/uploads/"), headers={"Content-Length": "0"})
        if begun.status != 202:
            self._transport.refuse(begun, "let us begin an upload")
        return self._location(begun)

    def _send_rest(self, place: str, at: int, blob: Blob, on_progress: Callable[[int], None]) -> str:
        if at == blob.nbytes:
            return place

        def parts() -> Iterator[bytes]:
            sent = at
            with blob.open() as f:
                f.seek(f.tell() + at)
                for data in blocks(f, blob.nbytes - at):
                    yield data
                    sent += len(data)
                    on_progress(sent)

        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(blob.nbytes - at),
            "Content-Range": f"{at}-{blob.nbytes - 1}",
        }
        reply = self._transport.ask("PATCH", place, parts, headers)
        if reply.status not in (202, 204):
            self._transport.refuse(reply, "take a layer")
        return self._location(reply)

    def _resume(self, place: str) -> tuple[str, int]:
        """URL and offset to resume an upload at."""
        reply = self._transport.ask("GET", place)
        last = reply.headers.get("Range", "").rpartition("-")[2]
        if reply.status == 204 and last.isdecimal() and int(last):
            return reply.headers.get("Location", place), int(last) + 1
        return self._begin(), 0

    def _put_manifest(self, image: Image) -> None:
        kind = json.loads(image.manifest).get("mediaType", MANIFEST)
        headers = {"Content-Type": kind, "Content-Length": str(len(image.manifest))}
        url = self._url(f"manifests/{self._reference.tag}")
        reply = self._transport.ask("PUT", url, lambda: iter([image.manifest]), headers)
        if reply.status != 201:
            self._transport.refuse(reply, "take the manifest")
        digest = reply.headers.get("Docker-Content-Digest", image.digest)
        if digest != image.digest:
            raise ImageError(f"the registry names the image {digest} instead of {image.digest}", why="it changed it")

    def _url(self, rest: str) -> str:
        return f"/v2/{self._reference.repository}/{rest}"

    def _location(self, reply: Reply) -> str:
        place = reply.headers.get("Location", "")
        if not place:
            raise ImageError(f"{self._reference.host} does not say where to upload to", why="the protocol wants it")
        return str(place)

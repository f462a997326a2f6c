"""Images as files: OCI archives, written and read.

An archive is a tar of `oci-layout`, `index.json` and `blobs/sha256/…`. `ctr images import`, podman, skopeo and
newer dockers take it; the extra `manifest.json` is for `docker load` of older ones. It is written by the same
rules as layers are: equal images are equal files. Reading checks every blob against the digest that
names it.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bireme.core.errors import ImageError
from bireme.core.files import half_of, storage_errors
from bireme.images.layers import EPOCH, TAR, TAR_GZIP, Layer, blocks, digest_of

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
_DOCKER_LAYERS = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": TAR_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar": TAR,
}
_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_SMALL = 8 << 20
"""No index, manifest or config is longer."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its layers from the lowest up, and its start configuration."""

    name: str
    layers: tuple[Layer, ...]
    config: bytes
    manifest: bytes = field(default=b"")

    @property
    def digest(self) -> str:
        """The image's identity in any registry."""
        return digest_of(self.manifest)


def make_image(name: str, layers: tuple[Layer, ...], started: Json, labels: dict[str, str]) -> Image:
    """Put layers and a start configuration together, for this machine's architecture; without time, host or path."""
    machine = platform.machine()
    created = "1980-01-01T00:00:00Z"
    config = encode(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
            "os": "linux",
            "created": created,
            "config": {**started, "Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created": created, "created_by": f"bireme image build: {layer.name}"} for layer in layers],
        }
    )
    manifest = encode(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, digest_of(config), len(config)),
            "layers": [_descriptor(layer.media_type, layer.digest, layer.nbytes) for layer in layers],
        }
    )
    return Image(name, layers, config, manifest)


def encode(value: Json) -> bytes:
    """JSON whose bytes depend on the value alone."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _descriptor(media_type: str, digest: str, nbytes: int) -> Json:
    return {"mediaType": media_type, "digest": digest, "size": nbytes}


def write_archive(image: Image, target: Path) -> None:
    """Write an image to one file, which appears when it is complete."""
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [
            {
                **_descriptor(MANIFEST, image.digest, len(image.manifest)),
                "annotations": {
                    "io.containerd.image.name": image.name,
                    "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
                },
            }
        ],
    }
    paths = [f"blobs/{layer.digest.replace(':', '/')}" for layer in image.layers]
    old = {"Config": _blob(digest_of(image.config)), "RepoTags": [image.name], "Layers": paths}
    half = half_of(target)
    with storage_errors(str(target)):
        try:
            with tarfile.open(half, "w", format=tarfile.GNU_FORMAT) as tar:
                _add(tar, "oci-layout", encode({"imageLayoutVersion": "1.0.0"}))
                _add(tar, "index.json", encode(index))
                _add(tar, "manifest.json", json.dumps([old], separators=(",", ":"), sort_keys=True).encode())
                _add(tar, _blob(digest_of(image.config)), image.config)
                _add(tar, _blob(image.digest), image.manifest)
                for layer in {layer.digest: layer for layer in image.layers}.values():
                    with layer.open() as f:
                        tar.addfile(_file(_blob(layer.digest), layer.nbytes), f)
            half.replace(target)
        finally:
            half.unlink(missing_ok=True)


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _file(name: str, nbytes: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = nbytes, EPOCH, 0o644
    return entry


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_file(name, len(data)), io.BytesIO(data))


def read_archive(path: Path, *, is_checked: bool = True) -> Image:
    """Read an OCI archive with one image in it; its layers stay where they are in the file."""
    try:
        with tarfile.open(path, "r:") as tar:
            return _read(path, tar, is_checked)
    except FileNotFoundError as e:
        raise ImageError(f"there is no file {path}", fix="`bireme image build` makes one") from e
    except (KeyError, TypeError, AttributeError) as e:
        raise ImageError(f"{path} lacks what an image has: {e}", fix="build or export it again") from e
    except (tarfile.TarError, EOFError, OSError) as e:
        why = "an OCI archive is a plain tar file; a torn one lacks its end"
        raise ImageError(f"{path} is not an OCI archive: {e}", why=why, fix="build or export it again") from e


def _read(path: Path, tar: tarfile.TarFile, is_checked: bool) -> Image:
    members = {member.name.removeprefix("./"): member for member in tar}
    if "index.json" not in members:
        fix = "`skopeo copy docker-archive:OLD oci-archive:NEW` converts one" if "manifest.json" in members else ""
        raise ImageError(f"{path} holds no index.json", why="only OCI archives are understood", fix=fix)
    index = _parse(path, _content(tar, members["index.json"]), "index.json")
    head = _one_manifest(path, tar, members, index)
    manifest = _take(path, tar, members, head["digest"])
    parsed = _parse(path, manifest, "the manifest")
    config = _take(path, tar, members, parsed["config"]["digest"])
    diff_ids = _parse(path, config, "the config")["rootfs"]["diff_ids"]
    if len(diff_ids) != len(parsed["layers"]):
        raise ImageError(f"{path}: the manifest has {len(parsed['layers'])} layers, its config {len(diff_ids)}")
    layers = [
        _layer(path, tar, members, descriptor, diff_id)
        for descriptor, diff_id in zip(parsed["layers"], diff_ids, strict=True)
    ]
    if is_checked:
        for layer in layers:
            check_blob(layer)
    names = head.get("annotations", {})
    name = names.get("io.containerd.image.name") or names.get("org.opencontainers.image.ref.name") or ""
    return Image(name, tuple(layers), config, manifest)


def _one_manifest(path: Path, tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], index: Json) -> Json:
    heads: list[Json] = index.get("manifests", [])
    if len(heads) == 1 and heads[0].get("mediaType") == INDEX:
        # Some tools put an index into the index, one entry for each processor.
        return _one_manifest(path, tar, members, _parse(path, _take(path, tar, members, heads[0]["digest"]), "index"))
    if len(heads) != 1 or heads[0].get("mediaType", MANIFEST) not in (MANIFEST, _DOCKER_MANIFEST):
        raise ImageError(f"{path} holds {len(heads)} images", why="one is needed", fix="export a single image")
    return heads[0]


def _layer(
    path: Path, tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], descriptor: Json, diff_id: str
) -> Layer:
    kind = _DOCKER_LAYERS.get(descriptor["mediaType"], descriptor["mediaType"])
    if kind not in (TAR, TAR_GZIP):
        raise ImageError(f"{path}: a layer of type {kind}", why="only plain and gzip layers are understood")
    member = _member(path, members, descriptor["digest"])
    if member.size != descriptor["size"]:
        raise ImageError(
            f"{path}: layer {descriptor['digest']} has {member.size} bytes instead of {descriptor['size']}"
        )
    return Layer("layer", descriptor["digest"], member.size, diff_id, path, member.offset_data, kind)


def _member(path: Path, members: dict[str, tarfile.TarInfo], digest: str) -> tarfile.TarInfo:
    if _blob(digest) not in members:
        raise ImageError(f"{path} lacks the blob {digest}", fix="build or export it again")
    return members[_blob(digest)]


def _take(path: Path, tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], digest: str) -> bytes:
    data = _content(tar, _member(path, members, digest))
    if digest_of(data) != digest:
        raise ImageError(f"{path}: the blob {digest} does not have that digest", fix="build or export it again")
    return data


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.size > _SMALL:
        raise tarfile.ReadError(f"{member.name} has {member.size} bytes")
    f: IO[bytes] | None = tar.extractfile(member)
    return f.read() if f is not None else b""


def _parse(path: Path, data: bytes, what: str) -> Json:
    try:
        value: Json = json.loads(data)
    except ValueError as e:
        raise ImageError(f"{path}: {what} is not JSON", fix="build or export it again") from e
    return value


def check_blob(layer: Layer) -> None:
    """Compare a layer's bytes with its digest."""
    digest = hashlib.sha256()
    with layer.open() as f:
        for data in blocks(f, layer.nbytes):
            digest.update(data)
    if "sha256:" + digest.hexdigest() != layer.digest:
        what = f"{layer.path}: the layer {layer.digest} does not have that digest"
        raise ImageError(what, why="the file was changed or torn", fix="build or export it again")

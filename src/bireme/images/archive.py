"""Images as files: OCI archives, written and read, and loaded into containerd.

An archive is a tar of `oci-layout`, `index.json` and `blobs/sha256/…`. `ctr images import`, podman, skopeo and newer
dockers take it; the extra `manifest.json` is for `docker load` of older ones. It is written by the same rules as layers
are: equal images are equal files. Reading checks every blob against the digest that names it.
"""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from bireme.core.errors import ImageError, MissingError
from bireme.core.files import half_of, storage_errors
from bireme.images.layers import EPOCH, TAR, TAR_GZIP, ImageLayer, digest_of, digest_of_blob

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_LAYER_TYPES = {
    TAR: TAR,
    TAR_GZIP: TAR_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": TAR_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar": TAR,
}
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_SMALL = 8 << 20
"""No index, manifest or config is longer."""
_AGAIN = "build or export it again"
_CREATED = "1980-01-01T00:00:00Z"


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """What names a blob."""

    digest: str
    size: int
    media_type: str = MANIFEST
    annotations: dict[str, str] | None = None


class Index(msgspec.Struct, frozen=True):
    """What an archive holds, or an image for several processors."""

    manifests: list[Descriptor]


class ImageManifest(msgspec.Struct, frozen=True, rename="camel"):
    """What an image is made of."""

    config: Descriptor
    layers: list[Descriptor]
    media_type: str = MANIFEST


class _RootFs(msgspec.Struct, frozen=True):
    diff_ids: list[str]


class _Config(msgspec.Struct, frozen=True):
    rootfs: _RootFs


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its layers from the lowest up, and its start configuration."""

    name: str
    layers: tuple[ImageLayer, ...]
    config: bytes
    manifest: bytes

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)


def make_image(name: str, layers: tuple[ImageLayer, ...], started: dict[str, Any], labels: dict[str, str]) -> Image:
    """Put layers and a start configuration together, for this machine's architecture; without time, host or path."""
    machine = platform.machine()
    config = _encode(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
            "os": "linux",
            "created": _CREATED,
            "config": {**started, "Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created": _CREATED, "created_by": f"bireme image build: {layer.name}"} for layer in layers],
        }
    )
    manifest = _encode(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(_CONFIG, digest_of(config), len(config)),
            "layers": [_descriptor(layer.media_type, layer.digest, layer.nbytes) for layer in layers],
        }
    )
    return Image(name, layers, config, manifest)


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _descriptor(media_type: str, digest: str, nbytes: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": nbytes}


def write_archive(image: Image, target: Path) -> None:
    """Write an image to one file, which appears when it is complete."""
    head = _descriptor(MANIFEST, image.digest, len(image.manifest))
    names = dict(zip(_NAMES, (image.name, image.name.rpartition(":")[2]), strict=True))
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [{**head, "annotations": names}]}
    config = _blob(digest_of(image.config))
    layers = {_blob(layer.digest): layer for layer in image.layers}
    docker = {"Config": config, "RepoTags": [image.name], "Layers": [_blob(layer.digest) for layer in image.layers]}
    small = {
        "oci-layout": _encode({"imageLayoutVersion": "1.0.0"}),
        "index.json": _encode(index),
        "manifest.json": _encode([docker]),
        config: image.config,
        _blob(image.digest): image.manifest,
    }
    half = half_of(target)
    with storage_errors(str(target)):
        try:
            with tarfile.open(half, "w", format=tarfile.GNU_FORMAT) as tar:
                for name, data in small.items():
                    _add(tar, name, len(data), io.BytesIO(data))
                for name, layer in layers.items():
                    with layer.path.open("rb") as f:
                        f.seek(layer.offset)
                        _add(tar, name, layer.nbytes, f)
            half.replace(target)
        finally:
            half.unlink(missing_ok=True)


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add(tar: tarfile.TarFile, name: str, nbytes: int, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = nbytes, EPOCH, 0o644
    tar.addfile(entry, content)


def read_archive(path: Path) -> Image:
    """Read an OCI archive with one image in it; its layers stay where they are in the file."""
    with _naming(path), tarfile.open(path, "r:") as tar:
        members = {member.name.removeprefix("./"): member for member in tar}
        if "index.json" not in members:
            fix = "`skopeo copy docker-archive:OLD oci-archive:NEW` converts one" if "manifest.json" in members else ""
            raise ImageError(f"{path} holds no index.json", why="only OCI archives are understood", fix=fix)
        archive = _Archive(path, tar, members)
        head = archive.only_manifest(msgspec.json.decode(archive.content(members["index.json"]), type=Index))
        raw = archive.read(head.digest)
        manifest = msgspec.json.decode(raw, type=ImageManifest)
        config = archive.read(manifest.config.digest)
        diff_ids = msgspec.json.decode(config, type=_Config).rootfs.diff_ids
        if len(diff_ids) != len(manifest.layers):
            raise ImageError(f"{path}: the manifest has {len(manifest.layers)} layers, its config {len(diff_ids)}")
        layers = tuple(map(archive.layer, manifest.layers, diff_ids))
    annotations = head.annotations or {}
    return Image(next((annotations[name] for name in _NAMES if name in annotations), ""), layers, config, raw)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as e:
        raise ImageError(f"there is no file {path}", fix="`bireme image build` makes one") from e
    except msgspec.MsgspecError as e:
        raise ImageError(f"{path} lacks what an image has: {e}", fix=_AGAIN) from e
    except (tarfile.TarError, EOFError, OSError) as e:
        why = "an OCI archive is a plain tar file; a torn one lacks its end"
        raise ImageError(f"{path} is not an OCI archive: {e}", why=why, fix=_AGAIN) from e


@dataclass(frozen=True, slots=True)
class _Archive:
    """An archive that is open; every blob that it returns has the digest that names it."""

    path: Path
    tar: tarfile.TarFile
    members: dict[str, tarfile.TarInfo]

    def only_manifest(self, index: Index) -> Descriptor:
        heads = index.manifests
        if len(heads) == 1 and heads[0].media_type == INDEX:
            # Some tools put an index into the index, one entry for each processor.
            return self.only_manifest(msgspec.json.decode(self.read(heads[0].digest), type=Index))
        if len(heads) != 1 or heads[0].media_type not in (MANIFEST, _DOCKER_MANIFEST):
            raise ImageError(f"{self.path} holds {len(heads)} images", why="one is needed", fix="export a single image")
        return heads[0]

    def layer(self, descriptor: Descriptor, diff_id: str) -> ImageLayer:
        kind = _LAYER_TYPES.get(descriptor.media_type)
        if kind is None:
            what = f"{self.path}: a layer of type {descriptor.media_type}"
            raise ImageError(what, why="only plain and gzip layers are understood")
        member = self.member(descriptor.digest)
        layer = ImageLayer("layer", descriptor.digest, member.size, diff_id, self.path, member.offset_data, kind)
        if member.size != descriptor.size or digest_of_blob(layer) != layer.digest:
            raise self.torn(layer.digest)
        return layer

    def read(self, digest: str) -> bytes:
        data = self.content(self.member(digest))
        if digest_of(data) != digest:
            raise self.torn(digest)
        return data

    def member(self, digest: str) -> tarfile.TarInfo:
        if _blob(digest) not in self.members:
            raise ImageError(f"{self.path} lacks the blob {digest}", fix=_AGAIN)
        return self.members[_blob(digest)]

    def content(self, member: tarfile.TarInfo) -> bytes:
        f = self.tar.extractfile(member)
        if f is None or member.size > _SMALL:
            raise tarfile.ReadError(f"{member.name} has {member.size} bytes")
        return f.read()

    def torn(self, digest: str) -> ImageError:
        what = f"{self.path}: the blob {digest} does not have that digest"
        return ImageError(what, why="the file was changed or torn", fix=_AGAIN)


def load(archive: Path, address: str, namespace: str) -> None:
    """Import an OCI archive into this machine's containerd; it takes the name over from an older image."""
    if shutil.which("ctr") is None:
        raise MissingError("`ctr` is not installed", fix="it comes with containerd: `apt-get install containerd`")
    if not Path(address).is_socket():
        fix = "start containerd, or name its socket with `--address`; on other machines use `bireme image push`"
        raise ImageError(f"there is no containerd at {address}", fix=fix)
    command = ["ctr", "--address", address, "--namespace", namespace, "images", "import", str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].removeprefix("ctr: ")
        fix = "run as root" if "permission denied" in last else "`ctr version` shows whether containerd answers"
        raise ImageError(f"containerd did not take {archive}: {last}", fix=fix)

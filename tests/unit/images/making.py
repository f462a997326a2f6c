"""Layers for tests, made without a cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bireme.images.layers import TAR_GZIP, ImageLayer, Skip, compress, digest_of_blob, write_tar


def layer_at(path: Path, name: str = "x") -> ImageLayer:
    """The layer in a file, by its own digest."""
    layer = ImageLayer(name, "", path.stat().st_size, "", path)
    return dataclasses.replace(layer, digest=digest_of_blob(layer), diff_id=digest_of_blob(layer))


def write_layer(
    name: str, tree: Path, target: Path, skip: Skip = lambda path: False, *, keeps_modes: bool = False
) -> ImageLayer:
    """Write the tar of a tree; returns the layer that it is."""
    write_tar(tree, target, skip, keeps_modes=keeps_modes)
    return layer_at(target, name)


def compressed(plain: ImageLayer, target: Path) -> ImageLayer:
    """Compress a layer into a file."""
    compress(plain, target)
    return dataclasses.replace(layer_at(target, plain.name), diff_id=plain.diff_id, media_type=TAR_GZIP)

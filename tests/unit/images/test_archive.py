from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from tests.unit.images.making import write_layer

from bireme.core.errors import ImageError
from bireme.images.archive import Image, make_image, read_archive, write_archive


@pytest.fixture
def image(tmp_path: Path) -> Image:
    layers = []
    for name in ("lower", "upper"):
        tree = tmp_path / name
        tree.mkdir()
        (tree / "file").write_text(name)
        layers.append(write_layer(name, tree, tmp_path / f"{name}.tar"))
    return make_image("localhost/x:1", tuple(layers), {"User": "1000:1000"}, {"a": "b"})


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {m.name: f.read() for m in tar if (f := tar.extractfile(m))}


def test_an_archive_is_read_as_it_was_written(image: Image, tmp_path: Path) -> None:
    write_archive(image, tmp_path / "x.tar")
    found = read_archive(tmp_path / "x.tar")
    assert (found.name, found.digest, found.config) == (image.name, image.digest, image.config)
    for mine, theirs in zip(found.layers, image.layers, strict=True):
        assert (mine.digest, mine.diff_id, mine.nbytes) == (theirs.digest, theirs.diff_id, theirs.nbytes)
        assert b"".join(mine.blocks()) == b"".join(theirs.blocks())


def test_equal_images_are_equal_files(image: Image, tmp_path: Path) -> None:
    write_archive(image, tmp_path / "1.tar")
    write_archive(image, tmp_path / "2.tar")
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_the_config_has_the_command_and_a_fixed_time(image: Image) -> None:
    config = json.loads(image.config)
    assert config["config"] == {"User": "1000:1000", "Labels": {"a": "b"}}
    assert config["rootfs"]["diff_ids"] == [layer.diff_id for layer in image.layers]
    assert config["created"] == "1980-01-01T00:00:00Z"


def test_old_dockers_find_their_manifest(image: Image, tmp_path: Path) -> None:
    write_archive(image, tmp_path / "x.tar")
    found = members(tmp_path / "x.tar")
    (old,) = json.loads(found["manifest.json"])
    assert old["RepoTags"] == ["localhost/x:1"]
    assert all(name in found for name in (old["Config"], *old["Layers"]))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="there is no file"):
        read_archive(tmp_path / "none.tar")


def test_a_torn_archive_is_refused(image: Image, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    write_archive(image, path)
    whole = path.read_bytes()
    for size in (0, 100, 3000, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(ImageError):
            read_archive(path)


def test_a_flipped_bit_in_any_blob_is_noticed(image: Image, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    write_archive(image, path)
    whole = path.read_bytes()
    for needle in (b"lower", b"upper", b'"rootfs"', b'"layers":['):
        at = whole.rindex(needle)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ImageError):
            read_archive(path)


def test_a_docker_archive_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"[]"))
    with pytest.raises(ImageError, match="skopeo copy"):
        read_archive(tmp_path / "x.tar")

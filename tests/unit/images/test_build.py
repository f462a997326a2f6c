from __future__ import annotations

from pathlib import Path

from tests.unit.images.making import compressed, write_layer

from bireme.images.build import Builder, Recipe, start_config
from bireme.images.layers import Cache


def environment(recipe: Recipe) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in start_config(recipe)["Env"])


def test_a_container_runs_bireme_unprivileged_from_the_root() -> None:
    config = start_config(Recipe(tag="x"))
    assert (config["User"], config["Entrypoint"], config["WorkingDir"]) == ("1000:1000", ["bireme"], "/")


def test_all_that_is_written_at_run_time_goes_to_tmp() -> None:
    variables = environment(Recipe(tag="x"))
    assert variables["HOME"] == "/tmp"
    assert variables["NUMBA_CACHE_DIR"].startswith("/tmp/")
    assert variables["PYTHONDONTWRITEBYTECODE"] == "1"
    assert variables["PATH"].startswith("/opt/bireme/bin:")


def test_a_processor_asked_for_is_the_one_containers_seek() -> None:
    assert "NUMBA_CPU_NAME" not in environment(Recipe(tag="x"))
    assert environment(Recipe(tag="x", cpu="x86-64-v3"))["NUMBA_CPU_NAME"] == "x86-64-v3"


def test_the_data_image_prepares_the_tutorial_s_data() -> None:
    assert start_config(Recipe(tag="x", role="data"))["Entrypoint"] == ["/root/get_data.sh"]


def test_a_layer_that_came_compressed_is_not_compressed_again(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    plain = write_layer("base", tmp_path / "tree", tmp_path / "base.tar")
    packed = compressed(plain, tmp_path / "base.gz")
    builder = Builder(Recipe(tag="x", is_compressed=True), Cache(tmp_path / "cache"))
    builder._note(plain)
    builder._note(packed)
    assert [step.digest for step in builder.steps] == [packed.digest, packed.digest]

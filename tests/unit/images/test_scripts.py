from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bireme

SCRIPTS = Path(bireme.__file__).parent / "images" / "scripts"
# The real one takes seconds to write reviews; what the script does around it is the same.
STAND_IN = """#!/bin/sh
case $1 in
    demo) mkdir -p "$3/reviews" "$3/quick_start" && echo program >"$3/quick_start/trainer_config.lr.py" ;;
    data)
        for shard in $(seq 0 $(($5 - 1))); do mkdir -p "$7/$shard/data" && echo made >"$7/$shard/data/train.txt"; done
        [ -z "${KILLED:-}" ] || exit 9
        echo >"$7/shards.json"
        ;;
esac
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    program = tmp_path / "bireme"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    script = tmp_path / "get_data.sh"
    script.write_text((SCRIPTS / "get_data.sh").read_text().replace("/opt/bireme/bin/bireme", str(program)))
    return script


def get_data(script: Path, out: Path, *, is_killed: bool = False, shards: int = 3) -> tuple[int, str]:
    environment = {"PATH": os.environ["PATH"], "OUT_DIR": str(out), "SPLIT_COUNT": str(shards)}
    if is_killed:
        environment["KILLED"] = "1"
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def files(out: Path) -> set[str]:
    return {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}


WHOLE = {*(f"{i}/data/train.txt" for i in range(3)), "shards.json", "quick_start/trainer_config.lr.py"}


def test_it_leaves_shards_and_the_program(script: Path, tmp_path: Path) -> None:
    code, said = get_data(script, tmp_path / "out")
    assert (code, files(tmp_path / "out")) == (0, WHOLE), said


def test_a_second_run_leaves_all_as_it_is(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    get_data(script, out)
    (out / "0/data/train.txt").write_text("changed by hand")
    assert get_data(script, out, shards=5) == (0, f"{out} holds 3 shards already\n")
    assert (out / "0/data/train.txt").read_text() == "changed by hand"


def test_a_run_that_was_killed_is_made_good_by_the_next(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert get_data(script, out, is_killed=True, shards=5)[0] != 0
    (out / ".unfinished-1").mkdir()
    (out / "2024 notes" / "data").mkdir(parents=True)
    (out / "2024 notes" / "data" / "mine").write_text("x")
    code, said = get_data(script, out)
    assert (code, files(out)) == (0, {*WHOLE, "2024 notes/data/mine"}), said
    assert not (out / ".unfinished-1").exists()


def test_shards_that_were_there_are_kept(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "0" / "data").mkdir(parents=True)
    (out / "0" / "data" / "train.txt").write_text("theirs")
    code, said = get_data(script, out)
    assert code == 0, said
    assert files(out) == {"0/data/train.txt", "quick_start/trainer_config.lr.py"}
    assert (out / "0/data/train.txt").read_text() == "theirs"


def test_without_a_place_to_fill_it_names_the_missing_variable(script: Path, tmp_path: Path) -> None:
    done = subprocess.run(["bash", str(script)], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert done.returncode != 0
    assert "OUT_DIR" in done.stderr


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """The image's `bireme`, on a place of our own instead of /opt/bireme."""
    home = tmp_path / "opt"
    (home / "bin").mkdir(parents=True)
    (home / "numba-cache").mkdir()
    (home / "numba-cache" / "kernel.nbc").write_text("code")
    (home / "bin" / "python3").symlink_to(sys.executable)
    text = (SCRIPTS / "bireme").read_text().replace("/opt/bireme", str(home)).replace("-m bireme", "-c 'print(1)'")
    launcher = home / "bin" / "bireme"
    launcher.write_text(text)
    launcher.chmod(0o755)
    return launcher


def test_kernels_are_copied_once_to_where_numba_may_write(launcher: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    environment = {"PATH": os.environ["PATH"], "NUMBA_CACHE_DIR": str(copy)}
    subprocess.run([str(launcher)], env=environment, check=True, capture_output=True)
    assert (copy / "kernel.nbc").read_text() == "code"
    (copy / "kernel.nbc").write_text("compiled here")
    subprocess.run([str(launcher)], env=environment, check=True, capture_output=True)
    assert (copy / "kernel.nbc").read_text() == "compiled here"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("copy")] == ["copy"]


def test_where_nothing_can_be_copied_it_runs_all_the_same(launcher: Path, tmp_path: Path) -> None:
    shutil.rmtree(launcher.parents[1] / "numba-cache")
    for place in ("", str(tmp_path / "none" / "copy")):
        done = subprocess.run([str(launcher)], env={"NUMBA_CACHE_DIR": place}, check=True, capture_output=True)
        assert done.stdout == b"1\n"

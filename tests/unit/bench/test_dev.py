"""The front door of the repository: what it lists is there, and what it says of sizes is what the README says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import peers
import pytest

ROOT = Path(__file__).resolve().parents[3]


def dev(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(ROOT / "dev"), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [("bench",), ("bench", "--help")])
def test_every_bench_is_listed_with_one_line(arguments: tuple[str, ...]) -> None:
    done = dev(*arguments)
    assert done.returncode == 0
    lines = done.stdout.splitlines()[1:]
    names = [line.split()[0] for line in lines]
    assert {"demo", "growth", "limits", "peers", "start", "wire"} <= set(names)
    assert "machine" not in names
    assert all(re.fullmatch(r"  [a-z]+ +[A-Z].{8,}", line) and "./dev bench" not in line for line in lines)


@pytest.mark.parametrize("name", ["machine", "nothing"])
def test_a_bench_that_is_none_is_reported_with_those_that_are(name: str) -> None:
    done = dev("bench", name)
    assert done.returncode == 1
    assert f"there is no bench '{name}'" in done.stderr and "  limits " in done.stderr


def test_the_help_lists_every_command() -> None:
    output = dev("help").stdout
    for command in ("demo", "test", "check", "bench", "docs", "bireme"):
        assert f"./dev {command} " in output
    assert "set -euo" not in output


def test_the_help_of_peers_names_its_time_and_installs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.parse(["--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    assert "half an hour" in help_text
    for engine in ("TensorFlow", "Ray", "MXNet", "python3-torch"):
        assert engine in help_text


def test_the_readme_and_dev_agree_on_the_room_that_is_needed() -> None:
    needed = set(re.findall(r'need run "[^"]*" (\d+)', (ROOT / "dev").read_text()))
    assert needed == set(re.findall(r"`./dev demo` needs about (\d+) MB", (ROOT / "README.md").read_text()))


@pytest.mark.parametrize(
    "page", ["README.md", "docs/differences.md", "docs/tutorial/demo.md", "docs/tutorial/own-job.md"]
)
def test_one_way_to_install_paddle_is_named(page: str) -> None:
    named = re.findall(
        r"[^\s`]+ -m pip install paddlepaddle[=.\d]*\d|pip install paddlepaddle", (ROOT / page).read_text()
    )
    assert named == [".venv/bin/python -m pip install paddlepaddle==3.3.1"]

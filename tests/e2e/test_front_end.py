"""A front end of another package makes the program of a whole job."""

from __future__ import annotations

import os
from pathlib import Path

from bireme.job.output.model import model_hash
from tests.e2e.conftest import ONE, Cli, edit

FRONT_END = """
from dataclasses import replace
from pathlib import Path
from bireme.programs.config.load import load_config

def load(spec):
    file = Path(spec.file)
    return load_config(replace(spec, file=str(file.with_name(file.read_text().strip()))))
"""


def install(site: Path) -> None:
    """A package whose front end reads a file with the name of the config."""
    about = site / "links-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "links.py").write_text(FRONT_END)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: links\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[bireme.programs]\nlink = links:load\n")


def test_a_job_is_trained_by_the_front_end_that_it_names(cli: Cli, job: Path, tmp_path: Path) -> None:
    site, output = tmp_path / "site", job.parent / "output"
    install(site)
    assert cli.run("train", job, *ONE, "--passes=1", "--output", tmp_path / "plain").code == 0
    (job.parent / "quick_start" / "link.txt").write_text("trainer_config.lr.py\n")
    edit(job, ("trainer_config.lr.py", "link.txt\n  front_end: link"))

    missing = cli.run("train", job, *ONE, "--passes=1")
    assert missing.code == 3 and "there is no front end 'link' for programs" in missing.err
    assert "use one of trainer_config, or install the package that adds it" in missing.err
    assert not output.exists()

    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    done = cli.run("train", job, *ONE, "--passes=1", PYTHONPATH=path)
    assert done.code == 0, done.err
    assert model_hash(output / "pass-00000") == model_hash(tmp_path / "plain" / "pass-00000")
    tested = cli.run("test", output / "pass-00000", PYTHONPATH=path)
    assert tested.code == 0, tested.err

"""Who imports what when a process starts: the reason why help is fast and pservers are light."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bireme.spec.load import child_environment

HEAVY = {"numpy", "numba", "rich", "paddle", "torch", "msgspec", "safetensors", "ruamel"}
CASES = {
    "from bireme.cli.main import main; main(['--help'])": HEAVY,
    "import bireme.cli.jobs.listing, bireme.api.local": HEAVY - {"msgspec"},
    "import bireme.cli.jobs.train, bireme.api.foreground": {"numba", "rich", "paddle", "torch"},
    "import bireme.cli.processes, bireme.job.node.entry": {"numpy", "numba", "rich", "paddle", "torch"},
    "from bireme.cli.processes import _load_for_children; _load_for_children()": {"paddle", "torch", "rich", "ruamel"},
    "import bireme.job.node.pserver": {"paddle", "torch", "rich", "ruamel"},
    "from bireme.ps.optim.optimizers import SliceOptimizer; import numba": {"paddle", "torch"},
}


@pytest.mark.parametrize("code", CASES)
def test_a_process_does_not_import_what_it_does_not_need(code: str) -> None:
    ask = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.rpartition("MODULES")[2].split()}
    assert not loaded & CASES[code]


def test_a_node_preloads_no_program_and_starts_no_thread() -> None:
    code = (
        "import sys; from bireme.cli.processes import _load_for_children; from bireme.core.forking import can_fork; "
        "_load_for_children(); print(can_fork(), 'numba' in sys.modules, 'bireme.programs' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=child_environment())
    assert done.stdout.split() == ["True", "True", "False"]

from __future__ import annotations

import os
import subprocess
import sys

from bireme.core.processes import is_alive

ORPHAN = """
import os, sys
from bireme.core.processes import die_with
die_with(int(sys.argv[1]))
os.write(1, b"ready")
sys.stdin.read()
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdin=subprocess.PIPE)
child.wait()
"""


def wait_without_reaping(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_this_process_is_alive_and_a_zombie_is_not() -> None:
    assert is_alive(os.getpid())
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        wait_without_reaping(child.pid)
        assert not is_alive(child.pid)


def test_a_reaped_process_is_not_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert not is_alive(child.pid)


def test_a_child_dies_with_a_parent_that_is_killed() -> None:
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", PARENT, ORPHAN], stdout=write, stdin=subprocess.PIPE) as parent:
        os.close(write)
        assert os.read(read, 5) == b"ready"
        parent.kill()
        parent.wait()
        # The grandchild holds the pipe's other end: this returns when it is gone.
        assert os.read(read, 1) == b""
    os.close(read)


def test_a_child_whose_parent_is_gone_already_leaves_at_once() -> None:
    stranger = str(os.getpid() + 1_000_000)
    done = subprocess.run([sys.executable, "-c", ORPHAN, stranger], stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode != 0
    assert b"the process that started this one is gone" in done.stderr
    assert done.stdout == b""

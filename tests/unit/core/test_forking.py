"""Forked children, seen from a parent of one thread: pytest's own processes have more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PARENT = """
import atexit, json, os, signal, sys, threading, time
from bireme.core import forking

directory = sys.argv[1]
COMMAND = [sys.executable, "-m", "platform", "--terse"]

def child(main, name="log"):
    with open(os.path.join(directory, name), "ab") as log:
        return forking.fork(COMMAND, log.fileno(), main)

def result(main):
    return child(main).wait()

def report(what):
    with open(os.path.join(directory, "facts"), "w") as facts:
        json.dump(what, facts)

"""
ENDS = {
    "return": ("lambda _: None", 0, ""),
    "exit": ("lambda _: sys.exit(3)", 3, ""),
    "exit without a code": ("lambda _: sys.exit()", 0, ""),
    "exit with a text": ("lambda _: sys.exit('no space')", 1, "no space\n"),
    "error": ("lambda _: [][0]", 1, "IndexError"),
    "signal": ("lambda _: os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    "default of a signal": ("lambda _: os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
}


def run(directory: Path, code: str) -> Any:
    done = subprocess.run([sys.executable, "-c", PARENT + code, directory], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", ENDS)
def test_a_forked_child_ends_with_the_code_of_its_main(how: str, tmp_path: Path) -> None:
    main, code, text = ENDS[how]
    parent = f"signal.signal(signal.SIGTERM, lambda *_: None); print(json.dumps(result({main})))"
    assert run(tmp_path, parent) == code
    assert text in (tmp_path / "log").read_text()


def test_a_forked_child_has_its_own_command_line(tmp_path: Path) -> None:
    main = "lambda a: report([a, sys.argv[1:], open('/proc/self/cmdline').read().split('\\0')])"
    run(tmp_path, f"print(result({main}))")
    arguments, argv, line = json.loads((tmp_path / "facts").read_text())
    assert (arguments, argv) == (["--terse"], ["--terse"])
    assert line == [sys.executable, "-m", "platform", "--terse", ""]


def test_a_forked_child_has_its_own_session_log_and_files(tmp_path: Path) -> None:
    code = """
secret = open(os.path.join(directory, "secret"), "w")
def main(_):
    print("out"), print("error", file=sys.stderr)
    files = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    report([os.getsid(0) == os.getpid(), sys.stdin.read(), sorted(files)])
print(result(main))
"""
    run(tmp_path, code)
    is_leader, text, files = json.loads((tmp_path / "facts").read_text())
    assert (is_leader, text) == (True, "")
    assert {path for path in files if "/proc" not in path} == {"/dev/null", str(tmp_path / "log")}
    assert sorted((tmp_path / "log").read_text().split()) == ["error", "out"]


def test_a_forked_child_keeps_ignored_signals_and_loses_handlers(tmp_path: Path) -> None:
    code = """
signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGINT, lambda *_: None)
def main(_):
    got = signal.getsignal
    interrupt = got(signal.SIGINT) is signal.default_int_handler
    report([got(signal.SIGHUP) is signal.SIG_IGN, interrupt, not signal.pthread_sigmask(signal.SIG_BLOCK, [])])
print(result(main))
"""
    run(tmp_path, code)
    assert json.loads((tmp_path / "facts").read_text()) == [True, True, True]


def test_a_forked_child_joins_threads_then_calls_exit_functions(tmp_path: Path) -> None:
    code = """
def main(_):
    gate = threading.Event()
    threading.Thread(target=lambda: (gate.wait(), print("thread"))).start()
    atexit.register(print, "exit")
    threading.Thread(target=gate.set, daemon=True).start()
print(result(main))
"""
    assert run(tmp_path, code) == 0
    assert (tmp_path / "log").read_text().split() == ["thread", "exit"]


def test_a_child_without_a_settable_command_line_executes_it(tmp_path: Path) -> None:
    run(tmp_path, "forking.set_command_line = lambda _: False; print(result(None))")
    assert "Linux" in (tmp_path / "log").read_text(), "python -m platform"


def test_a_process_with_a_second_thread_must_not_fork(tmp_path: Path) -> None:
    code = """
alone, gate = forking.can_fork(), threading.Event()
other = threading.Thread(target=gate.wait)
other.start()
print(json.dumps([alone, forking.can_fork()]))
gate.set()
"""
    assert run(tmp_path, code) == [True, False]


def test_waiting_for_a_forked_child_ends_at_the_timeout(tmp_path: Path) -> None:
    code = """
import subprocess
running = child(lambda _: signal.pause())
try:
    running.wait(0.0)
except subprocess.TimeoutExpired:
    before = running.poll()
running.send_signal(signal.SIGKILL)
print(json.dumps([before, running.wait(), running.poll()]))
running.send_signal(signal.SIGKILL)
"""
    assert run(tmp_path, code) == [None, -9, -9]


SERVER = """
import os, socket, sys, threading
from bireme.core import forking

def main(arguments):
    print(os.getppid(), os.getsid(0) == os.getpid(), arguments)
    sys.exit(5)

"""
SERVE = "forking.serve(socket.socket(fileno=0), lambda: main)"
ASK = """
server = forking.ForkServer([sys.executable, "-c", {code!r}], os.environ)
gate = threading.Event()
threading.Thread(target=gate.wait).start()
with open(os.path.join(directory, "log"), "ab") as log:
    made = [server.start(COMMAND, log.fileno()) for _ in range(2)]
print(json.dumps([os.getpid(), [child and child.wait() for child in made]]))
server.close()
gate.set()
"""


def test_a_server_forks_children_for_a_process_with_threads(tmp_path: Path) -> None:
    pid, codes = run(tmp_path, ASK.format(code=SERVER + SERVE))
    assert codes == [5, 5]
    assert (tmp_path / "log").read_text().splitlines() == [f"{pid} True ['--terse']"] * 2


@pytest.mark.parametrize(
    "code",
    ["raise SystemExit(1)", SERVER + "threading.Thread(target=threading.Event().wait, daemon=True).start()\n" + SERVE],
    ids=["it has ended", "it has a second thread"],
)
def test_a_server_that_cannot_fork_is_given_up(code: str, tmp_path: Path) -> None:
    assert run(tmp_path, ASK.format(code=code))[1] == [None, None]


def test_exit_codes_survive_a_parent_that_ignores_its_children(tmp_path: Path) -> None:
    ignoring = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    assert run(tmp_path, ignoring + ASK.format(code=SERVER + SERVE))[1] == [5, 5]


def test_a_server_that_dies_before_it_answers_leaves_no_child(tmp_path: Path) -> None:
    dying = SERVER + "socket.socket.send = lambda *_: os._exit(1)\n" + SERVE
    assert run(tmp_path, ASK.format(code=dying))[1] == [None, None]
    assert (tmp_path / "log").read_text() == ""


def test_what_was_loaded_may_have_started_a_thread(tmp_path: Path) -> None:
    code = """
gate = threading.Event()
def load():
    threading.Thread(target=gate.wait).start()
    return lambda _: None
forker = forking.Forker(load)
with open(os.path.join(directory, "log"), "ab") as log:
    print(json.dumps([forker.start(COMMAND, log.fileno()) for _ in range(2)]))
gate.set()
"""
    assert run(tmp_path, code) == [None, None]

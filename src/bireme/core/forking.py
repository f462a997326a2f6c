"""Children forked from a parent that has imported and compiled what they need: a start without a start-up.

A forked child has a session, a log, signals and a command line of its own, as one started by `exec` has. Forking is
safe only while no other thread runs, whose locks the child would inherit without the thread that releases them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from bireme.core.processes import adopt_orphans, libc, parent_of, stat_of

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_NO_FILE = 0xFFFFFFFF
_STAT_FIELDS = (26, 27, 45, 46, 47, None, 28, None, None, 50, 51)
"""Fields of /proc/self/stat in the order of the kernel's `prctl_mm_map`; None is filled in: brk and the arguments."""
_BRK, _ARGUMENTS_START, _ARGUMENTS_END = 5, 7, 8
POLL_S = 0.01
ADOPTED_S = 0.001
SERVER_S = 60.0  # how long the server may take to load before children are executed instead
ANSWER_S = 5.0  # the same once it has loaded: meanwhile nothing else of a job is looked at, a Ctrl-C neither
MESSAGE_NBYTES = 1 << 16

_arguments: mmap.mmap | None = None
"""The kernel reads this process's command line from here; freed only with the process."""

Main = Callable[[list[str]], object]
"""What a forked child runs, with its arguments; SystemExit carries the exit code."""
Loader = Callable[[], Main]  # loads what children need, once, before the first is forked


def can_fork() -> bool:
    """Whether this process has one thread only, those of C libraries included."""
    return len(list(Path("/proc/self/task").iterdir())) == 1


class Forked:
    """A forked child, with the part of `subprocess.Popen` that a process group uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the child runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # reaped by the kernel or another thread: its code is lost, as for Popen
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and timeout is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Signal the child unless it has exited; its pid is not reused before `poll` has seen that."""
        if self.poll() is None:
            os.kill(self.pid, number)


def fork(command: Sequence[str], output: int, main: Main) -> Forked:
    """Run `python -m PACKAGE ARGUMENTS…` in a forked child, which calls `main(ARGUMENTS)` with `output` as its log."""
    gc.freeze()  # else the child's first collection would write to, and so copy, every object it shares with us
    sys.stdout.flush()
    # A signal that arrives before the child has reset its handlers must wait: ours would take it for the parent's.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(command, output, main, blocked)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return Forked(pid)


class Forker:
    """Forks children of this process, while it has no other thread."""

    def __init__(self, load: Loader) -> None:
        self._load = load
        self._main: Main | None = None

    def start(self, command: Sequence[str], output: int) -> Forked | None:
        if self._main is None and can_fork():
            keep_exit_codes()
            self._main = self._load()
        # Asked again: what was loaded may have started a thread.
        return fork(command, output, self._main) if self._main is not None and can_fork() else None


class ForkServer:
    """A process that has loaded what children need and forks them for this one, which may not: it has threads.

    A child becomes a child of this process, with its signals, its exit code and its death. So the server forks twice:
    the process between the two ends when this one has the child's pid, and this one adopts what it leaves. Without that
    word, as where the server died, the process between ends the child: it would be a second one of its rank.
    """

    _adopting = threading.Lock()
    """The flag to adopt orphans belongs to the process: one server must not take it from another."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start `command`, which calls `serve` with its standard input; it loads while the caller continues."""
        keep_exit_codes()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(SERVER_S)
        with other:
            self._process = subprocess.Popen(
                command, stdin=other.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True, env=dict(environment),
            )  # fmt: skip

    def start(self, command: Sequence[str], output: int) -> Forked | None:
        """Have a child forked; None where it must be executed instead."""
        child = None
        with self._adopting:
            try:
                if adopt_orphans(True):  # for this moment only: orphans of the user's own are none of ours
                    child = self._request(command, output)
            except OSError:
                pass  # it has ended, or takes too long
            finally:
                adopt_orphans(False)
        if child is None:
            self.close()
        return child

    def _request(self, command: Sequence[str], output: int) -> Forked | None:
        reader, writer = os.pipe()
        with os.fdopen(writer, "wb", buffering=0) as ahead:
            try:
                socket.send_fds(self._socket, [json.dumps(list(command)).encode()], [output, reader])
            finally:
                os.close(reader)
            answer = self._socket.recv(MESSAGE_NBYTES)
            if not answer:
                return None
            ahead.write(b"!")
        self._socket.settimeout(ANSWER_S)
        deadline = time.monotonic() + ANSWER_S
        while parent_of(int(answer)) != os.getpid():
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(answer), signal.SIGKILL)
                return None
            time.sleep(ADOPTED_S)
        return Forked(int(answer))

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


def keep_exit_codes() -> None:
    """Reap children ourselves, also where the parent of this process ignores their ends, which is inherited."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def serve(requests: socket.socket, load: Loader) -> None:
    keep_exit_codes()
    main = load()
    while can_fork():
        message, files, _, _ = socket.recv_fds(requests, MESSAGE_NBYTES, 2)
        if not message:
            return
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            try:
                child = fork(json.loads(message), files[0], partial(_adopted, main, os.getpid()))
                os.write(writer, str(child.pid).encode())
                if not os.read(files[1], 1):
                    child.send_signal(signal.SIGKILL)
            finally:
                os._exit(0)
        os.close(writer)
        requests.send(os.read(reader, MESSAGE_NBYTES))
        os.waitpid(between, 0)
        for number in (reader, *files):
            os.close(number)


def _adopted(main: Main, parent: int, arguments: list[str]) -> object:
    while os.getppid() == parent:
        time.sleep(ADOPTED_S)
    return main(arguments)


def _run_child(command: Sequence[str], output: int, main: Main, blocked: set[int | signal.Signals]) -> None:
    """The child's life; it never returns, as the frames below belong to the parent."""
    code = 1
    try:
        is_named = set_command_line(command)  # first: people and drills find processes by it
        os.setsid()
        _redirect(output)
        _reset_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if not is_named:
            os.execv(command[0], list(command))
        sys.argv = [sys.argv[0], *command[3:]]
        code = _exit_code(main, list(command[3:]))
        # What the interpreter does at its own end, in this order.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _exit_code(main: Main, arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            return e.code or 0
        print(e.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _redirect(output: int) -> None:
    """Write to the log, read nothing, and let go of the parent's other files.

    Their numbers stay taken: the parent's objects may still close them, which must not be other files by then.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor, number in ((null, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, number)
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number != null:
            with contextlib.suppress(OSError):  # the descriptor of this listing is closed again
                os.fstat(number)
                os.dup2(null, number, inheritable=False)


def _reset_signals() -> None:
    """Forget the parent's handlers; what was ignored stays ignored, as after `exec`."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def set_command_line(command: Sequence[str]) -> bool:
    """Let `ps` and /proc show this command for the process; False where the kernel does not offer it."""
    global _arguments
    text = b"".join(os.fsencode(argument) + b"\0" for argument in command)
    # Private: the kernel reads command lines from anonymous pages only.
    memory = mmap.mmap(-1, len(text), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(text)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    stat = stat_of("self")
    values = [0 if field is None else int(stat[field - 3]) for field in _STAT_FIELDS]
    values[_ARGUMENTS_START], values[_ARGUMENTS_END] = start, start + len(text)
    # The kernel's structure ends with a pointer to no auxiliary vector, its length of 0, and no executable.
    fields = (ctypes.c_uint64 * 13)(*values, 0, _NO_FILE << 32)
    sbrk = libc().sbrk
    sbrk.restype, sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    size = ctypes.c_ulong(ctypes.sizeof(fields))
    # The heap's end is among what is set: again if an allocation moved it since it was read.
    is_set = False
    while not is_set or fields[_BRK] != sbrk(0):
        fields[_BRK] = sbrk(0)
        if libc().prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(fields), size, 0) != 0:
            return False
        is_set = True
    _arguments = memory
    return True

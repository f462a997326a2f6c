"""Runs the user's files, and blames their lines when they fail.

The user's modules live in one `Scripts` object, never in `sys.modules`: they are executed with
builtins whose `__import__` first offers stand-ins (for modules of the original system), then files
next to the config, then the real import. Functions keep those builtins, so an import inside a
provider works the same way later, and a real `paddle` in this process is left alone.
"""

from __future__ import annotations

import builtins
import difflib
import os
import random
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from bireme.core.errors import BiremeError, ConfigScriptError, DataError
from bireme.programs.config.line_count import LineCount

_PYTHON_2 = {
    "xrange": "Python 3 calls it range",
    "unicode": "Python 3 calls it str",
    "raw_input": "Python 3 calls it input",
    "reduce": "add `from functools import reduce`",
    "cPickle": "Python 3 calls it pickle",
    "urllib2": "Python 3 calls it urllib.request",
    "has_key": "write `key in d`",
    "iteritems": "Python 3 calls it items",
    "itervalues": "Python 3 calls it values",
}


class Complaint(Exception):  # noqa: N818 - becomes a ConfigScriptError once the line is known
    """Something that a helper refuses; `Scripts.blame` adds the user's file and line."""

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what)
        self.fix = fix


class Scripts:
    """The user's modules of one config, found in `folders`, with stand-ins for foreign ones."""

    def __init__(self, folders: Sequence[Path], stand_ins: Mapping[str, ModuleType]) -> None:
        self._folders = tuple(folders)
        self._stand_ins = stand_ins
        self._modules: dict[str, ModuleType] = {}
        self._lines: dict[str, list[str]] = {}
        self._count: LineCount | None = None
        self._builtins = {**vars(builtins), "__import__": self._import, "open": self._open}

    def sources(self) -> list[Path]:
        """Every script that the user's code may import, in a fixed order."""
        paths = {str(p.relative_to(f)): p for f in reversed(self._folders) for p in f.rglob("*.py")}
        return [path for _, path in sorted(paths.items())]

    def run(self, path: Path, name: str) -> ModuleType:
        """Execute a file as a module of that name; its errors come out as they are."""
        module = ModuleType(name)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        vars(module).update(__file__=str(path), __package__=package, __builtins__=self._builtins)
        if path.name == "__init__.py":
            vars(module)["__path__"] = [str(path.parent)]
        code = self._compile(path)
        self._modules[name] = module
        try:
            exec(code, vars(module))
        except BaseException:
            # As the real import does: a module that failed half-way is not there.
            del self._modules[name]
            raise
        return module

    def load(self, name: str) -> ModuleType:
        if (module := self._user_module(name)) is None:
            raise Complaint(f"there is no module {name!r}", fix=f"put {name}.py into {self._folders[0]}")
        return module

    def line(self) -> str:
        """Name the user's line that is running now, as file:line; empty when none is."""
        for frame, number in traceback.walk_stack(sys._getframe(1)):
            if frame.f_code.co_filename in self._lines:
                return f"{frame.f_code.co_filename}:{number}"
        return ""

    @contextmanager
    def blame(self, doing: str) -> Iterator[None]:
        """Turn whatever the user's code raises into an error that names their file and line."""
        try:
            yield
        except BiremeError:
            raise
        except (Exception, SystemExit) as error:
            raise self.blamed(error, doing) from error

    @contextmanager
    def counting(self, count: LineCount) -> Iterator[None]:
        """Let the user's code read the data file through `count`, until the end of the body."""
        self._count = count
        try:
            yield
        finally:
            self._count = None  # walks over train and test data take turns

    def blamed(self, error: BaseException, doing: str) -> ConfigScriptError:
        if isinstance(error, Complaint):
            what, fix = str(error), error.fix
        elif isinstance(error, SyntaxError):
            what, fix = f"{type(error).__name__}: {error.msg}", _python_2_fix(error)
        else:
            what, fix = f"{type(error).__name__}: {error}".rstrip(": "), _python_2_fix(error) or _nearest_name(error)
        file, number = self._culprit(error)
        if not file:
            return ConfigScriptError(f"{doing}: {what}", fix=fix)
        return ConfigScriptError(f"{file}:{number}: {what}{self.quote(file, number)}", fix=fix)

    def quote(self, file: str, number: int) -> str:
        lines = self._lines.get(file, [])
        return f"\n    {number} | {lines[number - 1].strip()}" if 0 < number <= len(lines) else ""

    def _culprit(self, error: BaseException) -> tuple[str, int]:
        """Find the innermost line of the user's, which is not always the innermost line."""
        if isinstance(error, SyntaxError) and error.filename in self._lines:
            return error.filename, error.lineno or 0
        places = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__)]
        return next((place for place in reversed(places) if place[0] in self._lines), ("", 0))

    def _compile(self, path: Path) -> CodeType:
        try:
            source = path.read_bytes()
        except OSError as error:
            raise ConfigScriptError(f"cannot read {path}: {error.strerror}") from error
        self._lines[str(path)] = source.decode("utf-8", "replace").splitlines()
        # dont_inherit: our own `from __future__` imports must not change the user's code.
        return compile(source, str(path), "exec", dont_inherit=True)

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - the signature of __import__
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        full = _absolute(name, globals or {}, level)
        if stand_in := self._stand_in(full, fromlist or ()):
            return stand_in
        module = self._user_module(full)
        if module is None:
            return __import__(name, globals, locals, fromlist or (), level)
        if not fromlist:
            return self._user_module(full.partition(".")[0]) or module
        for item in fromlist:
            if item != "*" and not hasattr(module, item):
                # `from package import submodule`; a missing name is reported by the caller.
                self._user_module(f"{full}.{item}")
        return module

    def _open(self, *args: Any, **options: Any) -> Any:
        opens = self._count.open if self._count else builtins.open
        return opens(*args, **options)

    def _stand_in(self, name: str, fromlist: Sequence[str]) -> ModuleType | None:
        """Find what to serve for a module of the original; a plain `import paddle` means the real one."""
        top = name.partition(".")[0]
        if name != top and name in self._stand_ins:
            return self._stand_ins[name if fromlist else top]
        if name == top and any(f"{name}.{item}" in self._stand_ins for item in fromlist):
            return self._stand_ins[name]
        return None

    def _user_module(self, name: str) -> ModuleType | None:
        if name in self._modules:
            return self._modules[name]
        parent_name, _, last = name.rpartition(".")
        folders = self._folders
        parent: ModuleType | None = None
        if parent_name:
            parent = self._user_module(parent_name)
            if parent is None:
                return None
            folders = tuple(Path(folder) for folder in getattr(parent, "__path__", ()))
        for folder in folders:
            for path in (folder / f"{last}.py", folder / last / "__init__.py"):
                if path.is_file():
                    module = self.run(path, name)
                    if parent is not None:
                        setattr(parent, last, module)
                    return module
        return None


def _absolute(name: str, globals_: Mapping[str, object], level: int) -> str:
    if level == 0:
        return name
    package = str(globals_.get("__package__") or "").split(".")
    base = ".".join(package[: len(package) - level + 1])
    return ".".join(part for part in (base, name) if part)


def _nearest_name(error: BaseException) -> str:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not isinstance(error, NameError) or not frames:
        return ""
    known = [*frames[-1].f_globals, *frames[-1].f_locals]
    close = difflib.get_close_matches(str(error.name), known, n=1)
    return f"did you mean `{close[0]}`?" if close else ""


def _python_2_fix(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, SyntaxError):
        if "print" in text:
            return "this is Python 2: write print(...)"
        if "exec" in text or isinstance(error, TabError) or "multiple exception types" in text:
            return "this looks like Python 2; the file must be valid Python 3"
        return ""
    named = getattr(error, "name", None)
    return f"this is Python 2: {_PYTHON_2[named]}" if named in _PYTHON_2 else ""


def stand_in(name: str, content: Mapping[str, object]) -> ModuleType:
    module = ModuleType(name, f"bireme's stand-in for {name}.")
    vars(module).update(content)
    return module


class UserGenerators:
    """The global generators as one user script sees them, kept between its turns."""

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed % 2**32).get_state(legacy=False)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lend our state to `random` and `numpy.random`, and take it back advanced."""
        python, numpy_ = random.getstate(), np.random.get_state(legacy=False)
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        try:
            yield
        finally:
            self._python, self._numpy = random.getstate(), np.random.get_state(legacy=False)
            random.setstate(python)
            np.random.set_state(numpy_)


@contextmanager
def visiting(workdir: Path, generators: UserGenerators) -> Iterator[None]:
    """Run the body in the user's directory and with the user's random numbers; leaves no trace."""
    # Both are global to the process, so they are borrowed for as short as possible.
    home = Path.cwd()
    try:
        os.chdir(workdir)
    except OSError as error:
        raise DataError(f"cannot work in {workdir}: {error.strerror}") from error
    try:
        with generators.lent():
            yield
    finally:
        os.chdir(home)

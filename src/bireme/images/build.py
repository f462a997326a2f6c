"""Build an image: one layer for each part that changes at its own pace, each kept until its inputs change.

base          the root file system                          changes with Debian
python        the standard library as byte code             with the base
dependencies  numba, numpy, lightkube … with byte code      with their versions
bireme        our package, its environment, start scripts   with every release
kernels       machine code of our kernels, by Numba         with our kernels, or the processor
program       directories of `--with`                       with the user's own work
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import bireme
from bireme.images import contents, wheels
from bireme.images.archive import Image, Json, make_image
from bireme.images.base import Base, open_base
from bireme.images.cache import Cache, key_of, key_of_tree
from bireme.images.inside import MOUNTED, run_inside
from bireme.images.kernels import compile_kernels, cpu_environment, kernel_sources, processor
from bireme.images.layers import TAR, Layer, compress, write_layer

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STDLIB_UNUSED = r"/(test|tests|idlelib|lib2to3|turtledemo|site-packages|dist-packages)/"
NUMBA_COPY = "/tmp/numba-cache"
"""Where each container keeps its writable copy of the kernels."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The options of an image."""

    tag: str
    base: str = "debootstrap"
    programs: tuple[tuple[Path, str], ...] = ()
    """Directories and where they go."""
    role: str = "job"
    """What a container does by itself: `job` runs bireme, `data` prepares the tutorial's data."""
    user: int = contents.USER
    cpu: str = "host"
    is_compressed: bool = False
    is_fresh: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One layer of a build, for people."""

    name: str
    nbytes: int
    digest: str
    seconds: float
    is_cached: bool


class Builder:
    """Makes the layers of one image, from the lowest up."""

    def __init__(self, recipe: Recipe, cache: Cache, on_step: Callable[[str], None] = lambda text: None) -> None:
        self._recipe, self._cache, self._on_step = recipe, cache, on_step
        self._trees: list[Path] = []
        self._layers: list[Layer] = []
        self.steps: list[Step] = []

    def build(self) -> Image:
        """Make or find every layer, and put the image together."""
        installed = Path(bireme.__file__).parent
        wanted = wheels.requirements(installed)
        base = self._add_base()
        self._add_stdlib(base)
        self._add_dependencies(base, wanted)
        with tempfile.TemporaryDirectory() as folder:
            # A copy: the original may change during the build, and a layer must match its key.
            package = Path(folder) / "bireme"
            contents.copy_tree(installed, package)
            self._add_package(base, package, wanted)
            self._add_kernels(package)
        for source, place in self._recipe.programs:
            self._add_program(base, source, place)
        labels = {"org.opencontainers.image.version": bireme.__version__, "dev.bireme.python": base.version}
        return make_image(self._recipe.tag, tuple(self._layers), start_config(self._recipe), labels)

    def _add_base(self) -> Base:
        begun = time.monotonic()
        base = open_base(self._recipe.base, self._cache, is_fresh=self._recipe.is_fresh, on_step=self._on_step)
        self._trees.append(base.tree)
        for layer in base.layers:
            self._note(layer, begun)
        return base

    def _add_stdlib(self, base: Base) -> None:
        library = f"{Path(base.python).parents[1]}/lib/python{base.version}"
        key = key_of("python", *(layer.diff_id for layer in base.layers))
        self._add("python", key, lambda tree: None, self._compiling(base, library, "-f", "-x", _STDLIB_UNUSED))

    def _add_dependencies(self, base: Base, wanted: list[str]) -> None:
        downloaded = wheels.download(wanted, base.version, platform.machine(), self._cache)
        site = contents.site_of(base)

        def fill(tree: Path) -> None:
            for wheel in downloaded:
                wheels.unpack_wheel(wheel, tree / site)

        key = key_of("dependencies", self._content("python"), *wheels.digests(downloaded))
        self._add("dependencies", key, fill, self._compiling(base, f"/{site}"))

    def _add_package(self, base: Base, package: Path, wanted: list[str]) -> None:
        site = contents.site_of(base)

        def fill(tree: Path) -> None:
            contents.write_environment(tree, base)
            contents.write_package(tree, package, site, wanted)

        below = [layer.diff_id for layer in base.layers]  # /etc/passwd is merged from the base's
        key = key_of("bireme", *below, self._content("python"), *wanted, key_of_tree(package, contents.is_stale))
        self._add("bireme", key, fill, self._compiling(base, f"/{site}/bireme"))

    def _add_kernels(self, package: Path) -> None:
        sources = [path.read_text("utf-8") for path in kernel_sources(package)]
        key = key_of("kernels", self._content("dependencies"), processor(self._recipe.cpu), *sources)
        self._add("kernels", key, lambda tree: None, lambda tree: compile_kernels(self._trees, tree, self._recipe.cpu))

    def _add_program(self, base: Base, source: Path, place: str) -> None:
        key = key_of("program", place, self._content("python"), key_of_tree(source, contents.is_stale))
        # A program may hold files for another Python; only those that compile get byte code.
        then = self._compiling(base, place, is_strict=False)
        self._add("program", key, lambda tree: contents.copy_tree(source, tree / place.lstrip("/")), then)

    def _add(self, name: str, key: str, fill: Callable[[Path], None], then: Callable[[Path], None]) -> None:
        """Add the layer of this key; to make it, fill a tree, then run `then` on it, on top of the layers so far."""
        begun = time.monotonic()
        tree = self._cache.trees / f"{name}-{key[:16]}"

        def make(target: Path) -> Layer:
            self._on_step(f"{name}: making the layer")
            with self._cache.making(tree) as half:
                fill(half)
                then(half)
                _open_to_all(half)
            return write_layer(name, tree, target, lambda path: path.partition("/")[0] in MOUNTED)

        if not tree.is_dir():
            self._cache.forget(name, key)
        layer = self._cache.layer(name, key, make)
        self._trees.append(tree)
        self._note(layer, begun)

    def _note(self, layer: Layer, begun: float) -> None:
        if self._recipe.is_compressed and layer.media_type == TAR:
            plain = layer
            packed = self._cache.layer(f"gz-{plain.name}", key_of(plain.digest), lambda t: compress(plain, t))
            layer = replace(packed, name=plain.name)
        seconds = round(time.monotonic() - begun, 2)
        self._layers.append(layer)
        self.steps.append(Step(layer.name, layer.nbytes, layer.digest, seconds, layer.path not in self._cache.made))

    def _content(self, name: str) -> str:
        """The digest of a layer's files, compressed or not."""
        return next(layer.diff_id for layer in self._layers if layer.name == name)

    def _compiling(self, base: Base, folder: str, *flags: str, is_strict: bool = True) -> Callable[[Path], None]:
        """A function that adds byte code to a tree; never checked against the source, so file times do not matter."""
        command = [base.python, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", *flags, folder]
        if not is_strict:
            command = ["/bin/sh", "-c", '"$@" >/dev/null 2>&1 || true', "sh", *command]

        def run(tree: Path) -> None:
            run_inside(self._trees, tree, command, {"PATH": _SYSTEM_PATH, "PYTHONHASHSEED": "0"})

        return run


def start_config(recipe: Recipe) -> Json:
    """The start configuration of the image, which a pod may override."""
    environment = {
        "PATH": f"/{contents.HOME}/bin:{_SYSTEM_PATH}",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "NUMBA_CACHE_DIR": NUMBA_COPY,
        "PYTHONDONTWRITEBYTECODE": "1",
        **cpu_environment(recipe.cpu),
    }
    return {
        "User": f"{recipe.user}:{recipe.user}",
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Entrypoint": ["bireme"] if recipe.role == "job" else ["/root/get_data.sh"],
        "WorkingDir": "/",
    }


def _open_to_all(tree: Path) -> None:
    """Set the modes of the usual umask: all may read, only root may write."""
    for path in _below(tree):
        if not path.is_symlink():
            is_run = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if is_run else 0o644)


def _below(tree: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(tree):
        yield from (Path(folder) / name for name in (*folders, *files))

"""Build an image: one layer for each part that changes at its own pace, each kept until its inputs change.

base          the root file system                          changes with Debian
python        the standard library as byte code             with the base
dependencies  numba, numpy, lightkube … with byte code      with their versions
bireme        our package, its environment, start scripts   with every release
kernels       machine code of our kernels, by Numba         with our kernels, or the processor
program       directories of `--with`                       with the user's own work
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bireme
from bireme.images import contents, kernels
from bireme.images.archive import Image, make_image
from bireme.images.base import MOUNTED, SYSTEM_PATH, BaseImage, open_base, run_inside
from bireme.images.layers import TAR, Cache, ImageLayer, key_of, key_of_tree, write_tar

_STDLIB_UNUSED = r"/(test|tests|idlelib|lib2to3|turtledemo|site-packages|dist-packages)/"
_ENVIRONMENT = {
    "PATH": f"/{contents.HOME}/bin:{SYSTEM_PATH}",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    # Each container's writable copy of the kernels.
    "NUMBA_CACHE_DIR": "/tmp/numba-cache",
    "PYTHONDONTWRITEBYTECODE": "1",
}


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
class BuildStep:
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
        self._layers: list[ImageLayer] = []
        self._begun = time.monotonic()
        self.steps: list[BuildStep] = []

    def build(self) -> Image:
        recipe, installed = self._recipe, Path(bireme.__file__).parent
        wanted = contents.requirements(installed)
        base = open_base(recipe.base, self._cache, is_fresh=recipe.is_fresh, on_step=self._on_step)
        self._trees.append(base.tree)
        for layer in base.layers:
            self._note(layer)
        site, pinned = contents.site_of(base), contents.pins(wanted)
        library = f"{Path(base.python).parents[1]}/lib/python{base.version}"
        self._add("python", [], lambda tree: self._compile(tree, base, library, "-f", "-x", _STDLIB_UNUSED))

        def fill_dependencies(tree: Path) -> None:
            contents.install(wanted, pinned, base.version, tree / site)
            self._compile(tree, base, f"/{site}")

        self._add("dependencies", [platform.machine(), *wanted, "--", *pinned], fill_dependencies)
        with tempfile.TemporaryDirectory() as folder:
            # A copy: the original may change during the build, and a layer must match its key.
            package = Path(folder) / "bireme"
            contents.copy_tree(installed, package)

            def fill_bireme(tree: Path) -> None:
                contents.write_environment(tree, base)
                contents.write_package(tree, package, site, wanted)
                self._compile(tree, base, f"/{site}/bireme")

            self._add("bireme", [*wanted, key_of_tree(package, contents.is_stale)], fill_bireme)
            sources = [path.read_text("utf-8") for path in kernels.kernel_sources(package)]
            self._add("kernels", [kernels.processor(recipe.cpu), *sources], self._compile_kernels, "dependencies")
        for source, place in recipe.programs:
            self._add_program(base, source, place)
        labels = {"org.opencontainers.image.version": bireme.__version__, "dev.bireme.python": base.version}
        return make_image(recipe.tag, tuple(self._layers), start_config(recipe), labels)

    def _compile_kernels(self, tree: Path) -> None:
        chosen = kernels.cpu_environment(self._recipe.cpu)
        cache = f"{contents.HOME}/numba-cache"
        environment = {**_ENVIRONMENT, **chosen, "NUMBA_CACHE_DIR": f"/{cache}", "PYTHONHASHSEED": "0"}
        command = [f"/{contents.HOME}/bin/python3", "-m", "bireme.images.kernels"]
        run_inside(self._trees, tree, command, environment)
        kernels.blank_addresses(tree / cache)

    def _add_program(self, base: BaseImage, source: Path, place: str) -> None:
        def fill(tree: Path) -> None:
            contents.copy_tree(source, tree / place.lstrip("/"))
            # A program may hold files for another Python; only those that compile get byte code.
            self._compile(tree, base, place, is_strict=False)

        self._add("program", [place, key_of_tree(source, contents.is_stale)], fill)

    def _add(self, name: str, inputs: list[str], fill: Callable[[Path], None], below: str = "base") -> None:
        """Add the layer that `fill` makes of these inputs, in a tree on top of the layers so far.

        It is kept as long as the layers of the name `below` stay the same.
        """

        def write(folder: Path) -> None:
            self._on_step(f"{name}: making the layer")
            fill(folder / "tree")
            write_tar(folder / "tree", folder / "layer.tar", lambda path: path.partition("/")[0] in MOUNTED)

        under = [layer.diff_id for layer in self._layers if layer.name == below]
        layer = self._cache.layer(name, key_of(name, *under, *inputs), write)
        self._trees.append(layer.path.with_name("tree"))
        self._note(layer)

    def _note(self, layer: ImageLayer) -> None:
        if self._recipe.is_compressed and layer.media_type == TAR:
            layer = self._cache.compressed(layer)
        now = time.monotonic()
        self.steps.append(
            BuildStep(layer.name, layer.nbytes, layer.digest, round(now - self._begun, 2), not layer.is_new)
        )
        self._layers.append(layer)
        self._begun = now

    def _compile(self, tree: Path, base: BaseImage, folder: str, *flags: str, is_strict: bool = True) -> None:
        """Add byte code to a tree; never checked against the source, so file times do not matter."""
        command = [base.python, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", *flags, folder]
        if not is_strict:
            command = ["/bin/sh", "-c", '"$@" >/dev/null 2>&1 || true', "sh", *command]
        run_inside(self._trees, tree, command, {"PATH": SYSTEM_PATH, "PYTHONHASHSEED": "0"})


def start_config(recipe: Recipe) -> dict[str, Any]:
    environment = {**_ENVIRONMENT, **kernels.cpu_environment(recipe.cpu)}
    return {
        "User": f"{recipe.user}:{recipe.user}",
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Entrypoint": ["bireme"] if recipe.role == "job" else ["/root/get_data.sh"],
        "WorkingDir": "/",
    }

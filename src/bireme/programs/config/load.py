"""From a user's config file to a `Program`.

The config is executed once; its calls of the helpers collect in a `Draft`, which is then
closed into a graph, parameters, an optimizer and data sources. Who computes the graph (our kernel or
PaddlePaddle) is decided when the first batch shows what the data looks like.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from bireme.core.errors import ConfigScriptError
from bireme.programs.columns import Columns, InputType
from bireme.programs.config.compute import compile_graph, require_engine
from bireme.programs.config.draft import Draft, Settings
from bireme.programs.config.graph import Graph, find_lookups
from bireme.programs.config.layers import LayerWords
from bireme.programs.config.provider import Provider, provider_words
from bireme.programs.config.scripts import Complaint, Scripts, UserGenerators, stand_in, visiting
from bireme.programs.config.source import ProviderSource, SourcePlan
from bireme.programs.config.values import checked, stateless_names
from bireme.programs.loading import ProgramSpec
from bireme.programs.program import ERROR_EVALUATOR, Arrays, Computation, Role, Sums

_HELPER_PARTS = "layers attrs activations poolings optimizers networks evaluators data_sources config_parser_utils"


def load_config(spec: ProgramSpec) -> ConfigProgram:
    """Run a config with its command-line arguments; errors name the user's file and line."""
    config, workdir = Path(spec.file).absolute(), spec.workdir
    if not config.is_file():
        raise ConfigScriptError(f"there is no config {config}")
    session = _Session(config, workdir.absolute(), spec.args)
    with visiting(workdir, UserGenerators(0)), session.scripts.blame(str(config)):
        session.scripts.run(config, config.stem)
        graph = session.draft.graph()
        if session.draft.settings is None:
            raise Complaint("the config never calls settings()", fix="call settings(batch_size=...) before the layers")
        program = ConfigProgram(config.name, graph, session)
    require_engine(graph)
    return program


class _Session:
    """One execution of a config: its draft, its scripts, and the names that join them."""

    def __init__(self, config: Path, workdir: Path, args: Mapping[str, str]) -> None:
        self.draft = Draft(args)
        self.plans: dict[str, SourcePlan] = {}
        folders = tuple(dict.fromkeys((config.parent, workdir)))
        stand_ins: dict[str, ModuleType] = {}
        self.scripts = Scripts(folders, stand_ins)
        stand_ins.update(self._stand_ins())

    def get_config_arg(self, name: str, type: Callable[[str], Any], default: Any = None) -> Any:  # noqa: A002
        if name not in self.draft.args:
            return default
        text = self.draft.args[name]
        if type is bool:
            if text not in ("True", "1", "true", "False", "0", "false"):
                raise Complaint(f"config argument {name} must be True or False, not {text!r}")
            return text in ("True", "1", "true")
        try:
            return type(text)
        except ValueError as error:
            kind = getattr(type, "__name__", type)
            raise Complaint(f"config argument {name} must be {kind}, not {text!r}") from error

    def define_py_data_sources2(self, train_list: Any, test_list: Any, module: Any, obj: Any, args: Any = None) -> None:
        """Say where samples come from; module, obj and args may be (train, test) pairs."""
        for index, (role, listed) in enumerate((("train", train_list), ("test", test_list))):
            if listed is not None:
                chosen = [_of_pair(item, index) for item in (module, obj, args)]
                self.plans[role] = self._plan(role, listed, *chosen)

    def _plan(self, role: str, listed: Any, module: Any, obj: Any, args: Any) -> SourcePlan:
        scope = vars(self.scripts.load(module))
        provider = scope.get(obj)
        if not isinstance(provider, Provider):
            there = ", ".join(name for name, value in scope.items() if isinstance(value, Provider))
            raise Complaint(
                f"{module}.{obj} is not a data provider" if provider is not None else f"{module} has no {obj!r}",
                fix=f"put @provider(...) above the function that yields samples{there and f'; these have it: {there}'}",
            )
        if args is not None and not isinstance(args, Mapping):
            raise Complaint(f"define_py_data_sources2(): args must be a dict, not {args!r}")
        files = listed if isinstance(listed, str) else tuple(str(file) for file in listed)
        return SourcePlan(role, files, provider, f"{module}.{obj}", dict(args or {}))

    def _stand_ins(self) -> dict[str, ModuleType]:
        config_words = self._config_words()
        name = "paddle.trainer_config_helpers"
        parts = {part: stand_in(f"{name}.{part}", config_words) for part in _HELPER_PARTS.split()}
        helpers = stand_in(name, {**config_words, **parts})
        # Only the names, not the sub-modules, may land in a config by `import *`.
        vars(helpers)["__all__"] = sorted(config_words)
        inner = {
            "PyDataProvider2": stand_in("paddle.trainer.PyDataProvider2", provider_words()),
            "config_parser": stand_in("paddle.trainer.config_parser", config_words),
        }
        trainer = stand_in("paddle.trainer", inner)
        top = stand_in("paddle", {"trainer": trainer, "trainer_config_helpers": helpers, "__getattr__": _real_paddle})
        modules = [top, trainer, helpers, *inner.values(), *parts.values()]
        return {module.__name__: module for module in modules}

    def _config_words(self) -> dict[str, object]:
        layers = LayerWords(self.draft, self.scripts.line)
        words = [name for name in vars(LayerWords) if not name.startswith("_")]
        callables: dict[str, Callable[..., object]] = {name: getattr(layers, name) for name in words}
        callables |= {
            "regression_cost": layers.mse_cost,
            "get_config_arg": self.get_config_arg,
            "define_py_data_sources2": self.define_py_data_sources2,
        }
        make = checked("settings", Settings)

        def settings(*args: object, **kwargs: object) -> None:
            made = make(*args, **kwargs)
            assert isinstance(made, Settings)
            self.draft.use(made)

        return {
            **stateless_names(),
            **{name: checked(name, call) for name, call in callables.items()},
            "settings": settings,
        }


class ConfigProgram:
    """A config as a `Program`."""

    def __init__(self, name: str, graph: Graph, session: _Session) -> None:
        assert session.draft.settings is not None, "load_config checked this: this is a bug"
        self.name = name
        self.graph = graph
        self.fingerprint = graph.fingerprint(session.draft.args)
        self.parameters = tuple(session.draft.parameters.values())
        self.optimizer = session.draft.settings.optimizer()
        self.batch_size = session.draft.settings.batch_size
        judged = any(cost.kind == "classification_cost" for cost in graph.costs)
        self.evaluators: tuple[str, ...] = (ERROR_EVALUATOR,) if judged else ()
        self.outputs = graph.predictions
        self.lookups = find_lookups(graph, self.parameters)
        self.wants_async = bool(session.draft.settings.is_async)
        if any(parameter.is_sparse for parameter in self.parameters):
            from bireme.ps.optim.optimizers import check_sparse

            check_sparse(self.parameters, self.optimizer)
        self._sources = {role: ProviderSource(plan, graph, session.scripts) for role, plan in session.plans.items()}

    def source(self, role: Role) -> ProviderSource | None:
        """Return the samples for this role; a config without a cost predicts on its test source."""
        if role == "predict":
            return None if self.graph.costs else self._sources.get("test")
        return self._sources.get(role)

    def bind(self, values: Arrays, grads: Arrays) -> Computation[Columns]:
        for parameter in self.parameters:
            expected = parameter.shape
            if parameter.is_sparse:
                expected = (len(values[parameter.name]), *expected[1:])
            for arrays in (values, grads):
                array = arrays[parameter.name]
                assert array.shape == expected, f"{parameter.name} has shape {array.shape}: this is a bug"
                assert array.flags.c_contiguous, f"{parameter.name} is not contiguous: this is a bug"
        return _Bound(self, (values, grads))


class _Bound:
    """A config over given arrays: compiled when the first batch shows what the data looks like."""

    def __init__(self, program: ConfigProgram, arrays: tuple[Arrays, Arrays]) -> None:
        self._program = program
        self._arrays = arrays
        self._computations: dict[tuple[InputType, ...], Computation[Columns]] = {}

    def step(self, batch: Columns) -> Sums:
        self._need_cost()
        return self._computation(batch).step(batch)

    def evaluate(self, batch: Columns) -> Sums:
        self._need_cost()
        return self._computation(batch).evaluate(batch)

    def predict(self, batch: Columns) -> Arrays:
        return self._computation(batch).predict(batch)

    def _need_cost(self) -> None:
        if not self._program.graph.costs:
            what = f"{self._program.name} has no cost among its outputs, so it can only predict"
            raise ConfigScriptError(what, fix="load it without is_predict=1, or give outputs() a cost")

    def _computation(self, batch: Columns) -> Computation[Columns]:
        inputs = batch.inputs
        if inputs not in self._computations:
            graph, parameters = self._program.graph, self._program.parameters
            self._computations[inputs] = compile_graph(graph, parameters, inputs, self._arrays)
        return self._computations[inputs]


def _of_pair(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, list | tuple) and len(value) == 2 else value


def _real_paddle(name: str) -> object:
    """What `import paddle.trainer…` does not stand in for comes from the real package, if there is one."""
    return getattr(importlib.import_module("paddle"), name)

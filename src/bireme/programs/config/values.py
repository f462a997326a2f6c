"""The names of the config language that only carry values: attributes, activations, poolings, optimizers.

`checked` wraps what user code may call, so that a misspelt argument is answered in the user's terms.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from bireme.programs.config.scripts import Complaint
from bireme.ps.optim.methods import METHODS, Method
from bireme.spec.model import Rows

_MAX_COUNT = 2**31 - 1


def checked(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """Wrap a helper so that wrong arguments are refused with a suggestion."""
    signature = inspect.signature(function)

    @functools.wraps(function, updated=())
    def call(*args: object, **kwargs: object) -> object:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Complaint(f"{name}(): {error}", fix=_suggestion(signature, kwargs)) from None
        return function(*args, **kwargs)

    return call


def _suggestion(signature: inspect.Signature, kwargs: Mapping[str, object]) -> str:
    known = [name for name in signature.parameters if name != "self"]
    for name in kwargs:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            return f"did you mean {close[0]!r}?" if close else f"it knows: {', '.join(known)}"
    return ""


def whole_number(value: object) -> int | None:
    """Read a size or a count: an integer of any kind from 1 on, else None."""
    number = _integer(value)
    return number if number is not None and number >= 1 else None


def _integer(value: object) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # it refuses others
    except TypeError:
        return None


def refuse(what: str) -> NoReturn:
    """Refuse a name of the original that is not supported yet."""
    raise Complaint(f"{what} is not supported yet", fix="docs/differences.md says what is")


def _unsupported(name: str) -> Callable[..., object]:
    def call(*_args: object, **_kwargs: object) -> object:
        refuse(name)

    return call


@dataclass(frozen=True)
class ParamAttr:
    """How one parameter starts and is updated, where it differs from the rest.

    `admit_after` and `evict_after` are ours: how rows of a sparse parameter come and go.
    """

    name: str | None = None
    is_static: bool = False
    initial_std: float | None = None
    initial_mean: float | None = None
    initial_max: float | None = None
    initial_min: float | None = None
    l1_rate: float | None = None
    l2_rate: float | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    gradient_clipping_threshold: float | None = None
    sparse_update: bool = False
    admit_after: int = 0
    evict_after: int = 0

    def __post_init__(self) -> None:
        for name, value in (("admit_after", self.admit_after), ("evict_after", self.evict_after)):
            count = _integer(value)
            if count is None or not 0 <= count <= _MAX_COUNT:
                raise Complaint(f"ParamAttr(): {name} must be a whole number from 0 to {_MAX_COUNT}, not {value!r}")
            if count and not self.sparse_update:
                raise Complaint(f"ParamAttr(): {name} is about rows of sparse parameters", fix="add sparse_update=True")
        has_range = (self.initial_max is not None, self.initial_min is not None)
        if any(has_range) and not all(has_range):
            raise Complaint("ParamAttr(): initial_max and initial_min go together")
        if self.initial_max is not None and self.initial_min is not None:
            if self.initial_min >= self.initial_max:
                raise Complaint("ParamAttr(): initial_min must be below initial_max")
            if self.initial_std is not None or self.initial_mean is not None:
                raise Complaint("ParamAttr(): give initial_max and initial_min, or initial_std and initial_mean")

    @property
    def rows(self) -> Rows | None:
        if not self.sparse_update:
            return None
        return Rows(admit_after=operator.index(self.admit_after), evict_after=operator.index(self.evict_after))


@dataclass(frozen=True)
class ExtraAttr:
    """What a layer does besides computing; only `device` is accepted, and ignored."""

    error_clipping_threshold: float | None = None
    drop_rate: float | None = None
    device: int | None = None

    def __post_init__(self) -> None:
        if self.error_clipping_threshold:
            refuse("ExtraAttr(error_clipping_threshold=...)")
        if self.drop_rate:
            refuse("ExtraAttr(drop_rate=...): dropout")


@dataclass(frozen=True)
class Activation:
    """What is done to a layer's sum, by name."""

    name: str


@dataclass(frozen=True)
class Pooling:
    """How the steps of a sequence become one value, by name."""

    name: str


@dataclass(frozen=True)
class Regularization:
    """The default L2 rate of parameters created from now on."""

    rate: float


@dataclass(frozen=True)
class Rule:
    """An update rule with its own constants; what is None keeps the general default."""

    method: str
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    rho: float = 0.95
    epsilon: float = 1e-6


def _momentum(momentum: float | None = None, sparse: bool = False) -> Rule:
    return Rule("sparse_momentum" if sparse else "momentum", momentum=momentum or 0.0)


def _class_of(method: Method) -> Callable[..., Rule]:
    """The config's class for this optimizer, with its arguments and their defaults."""
    empty = inspect.Parameter.empty
    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=empty if default is None else default)
        for name, default in method.arguments.items()
    ]
    signature = inspect.Signature(parameters)

    def rule(*args: float, **kwargs: float) -> Rule:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return Rule(method.name, **bound.arguments)

    rule.__signature__ = signature  # type: ignore[attr-defined]  # what `checked` checks arguments against
    return rule


def _max_pooling(output_max_index: bool | None = None) -> Pooling:
    if output_max_index:
        refuse("MaxPooling(output_max_index=True)")
    return Pooling("max")


_ACTIVATIONS = "Tanh Sigmoid Softmax Linear Relu BRelu SoftRelu STanh Abs Square Exp Log"
_POOLINGS = {"Avg": "avg", "Sum": "sum", "SquareRootN": "sqrtn"}

# Names of the original that a config may use and that we answer with "not supported yet".
_UNSUPPORTED = """
    ModelAverage L1Regularization SequenceSoftmaxActivation BaseRegularization CudnnMaxPooling CudnnAvgPooling
    dropout_layer mixed_layer lstmemory grumemory simple_lstm simple_gru simple_gru2 bidirectional_lstm
    bidirectional_gru lstmemory_unit lstmemory_group gru_unit gru_group lstm_step_layer gru_step_layer
    recurrent_layer recurrent_group memory StaticInput SubsequenceInput GeneratedInput beam_search eos_layer
    get_output_layer first_seq last_seq expand_layer repeat_layer seq_concat_layer seq_reshape_layer
    simple_attention full_matrix_projection trans_full_matrix_projection table_projection identity_projection
    dotmul_projection dotmul_operator scaling_projection context_projection conv_projection conv_operator
    sequence_conv_pool text_conv_pool img_conv_layer img_pool_layer img_conv_group simple_img_conv_pool
    img_conv_bn_pool img_cmrnorm_layer small_vgg vgg_16_network batch_norm_layer spp_layer maxout_layer
    bilinear_interp_layer block_expand_layer pad_layer conv_shift_layer rotate_layer cos_sim trans_layer
    interpolation_layer power_layer scaling_layer slope_intercept_layer sum_to_one_norm_layer
    linear_comb_layer convex_comb_layer tensor_layer outer_prod_layer selective_fc_layer sampling_id_layer
    multiplex_layer row_conv_layer prelu_layer gated_unit_layer print_layer priorbox_layer
    kmax_sequence_score_layer crf_layer crf_decoding_layer ctc_layer warp_ctc_layer nce_layer hsigmoid
    cross_entropy cross_entropy_with_selfnorm multi_binary_label_cross_entropy rank_cost lambda_cost
    huber_cost sum_cost smooth_l1_cost cross_entropy_over_beam classification_error_evaluator
    auc_evaluator pnpair_evaluator precision_recall_evaluator ctc_error_evaluator chunk_evaluator
    sum_evaluator column_sum_evaluator value_printer_evaluator gradient_printer_evaluator
    maxid_printer_evaluator seqtext_printer_evaluator
"""


def stateless_names() -> dict[str, object]:
    names: dict[str, object] = {name: _unsupported(name) for name in _UNSUPPORTED.split()}
    activations = {word: word.lower() for word in _ACTIVATIONS.split()} | {"Identity": "linear"}
    names.update({f"{word}Activation": functools.partial(Activation, name) for word, name in activations.items()})
    names.update({f"{word}Pooling": functools.partial(Pooling, name) for word, name in _POOLINGS.items()})
    callables: dict[str, Callable[..., object]] = {
        "MaxPooling": _max_pooling,
        "ParamAttr": ParamAttr,
        "ParameterAttribute": ParamAttr,
        "ExtraAttr": ExtraAttr,
        "ExtraLayerAttribute": ExtraAttr,
        "L2Regularization": Regularization,
        "MomentumOptimizer": _momentum,
    }
    callables |= {method.word: _class_of(method) for method in METHODS.values() if method.word}
    names.update({name: checked(name, function) for name, function in callables.items()})
    return names

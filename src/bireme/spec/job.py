"""The keys of job.yaml, and the job that it resolves to.

`JobFile` mirrors the file key by key; every key's description below is also its entry in the
reference. `Job` is what the processes get: paths absolute, counts resolved, nothing left
to guess.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bireme.spec.kubernetes import KubernetesFile
from bireme.spec.model import Logs, Restarts, SnapshotsFile, UpdateMode, Wire
from bireme.spec.terms import JobTerms

Name = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?$",
        description="Name of the job: lower-case letters, digits and dashes, at most 52 characters.",
        examples=["paddle-cluster-job"],
    ),
]
Count = Annotated[int, Meta(ge=1, le=4096)]
Passes = Annotated[int, Meta(ge=1, le=99_999)]
"""As many as directories `pass-%05d` can name."""
KeepRule = Annotated[str, Meta(pattern=r"^(all|best|last [1-9][0-9]{0,4})$")]
StopRule = Annotated[str, Meta(pattern=r"^no better for [1-9][0-9]{0,4} pass(es)?$")]
Port = Annotated[int, Meta(ge=1, le=65535)]
PORT = 7164
"""The first port of each pserver where it has an address of its own and job.yaml names none."""
Lanes = Annotated[int, Meta(ge=1, le=64)]


class ProgramFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is trained."""

    config: Annotated[str, Meta(examples=["quick_start/trainer_config.lr.py"])]
    """The trainer_config file, relative to job.yaml. It runs with a shard's files in `./data`."""
    args: dict[str, str | int | float | bool] = {}
    """Arguments that the config reads with `get_config_arg`."""
    front_end: Annotated[str, Meta(examples=["my_format"])] = "trainer_config"
    """What makes a program of the config. Other packages add front ends, by entry points of the group
    `bireme.programs`; such a package must be installed wherever the job runs."""


class DataFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it is trained on."""

    path: str = "."
    """Directory that holds the shards `0/data`, `1/data`, …, relative to job.yaml."""
    shards: int | None = None
    """How many shards there must be. Left out: as many as are found."""


class LanePorts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pservers listen."""

    port: Port | None = None
    """First port of each pserver. Left out: local runs take free ports."""
    ports_num: Lanes = 1
    """Dense lanes of each pserver."""
    ports_num_for_sparse: Annotated[int, Meta(ge=0, le=64)] = 1
    """Sparse lanes of each pserver: where parameters with `sparse_update=True` live."""


class LocalFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How shards that train by themselves exchange parameters; for `mode: local`."""

    every: Count = 8
    """Batches that a shard trains by itself between two exchanges."""
    method: Literal["average", "elastic"] = "average"
    """`average`: all continue from the common parameters. `elastic`: each keeps its own and is pulled towards the
    common ones."""
    rate: Annotated[float, Meta(gt=0, le=1)] | None = None
    """How much of the shards' mean difference the common parameters take over, up to 1; with `elastic` also how far
    each shard is pulled. Left out: 1, or 0.5 with `elastic`."""


class JobFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole job.yaml."""

    name: Name
    program: ProgramFile
    data: DataFiles = DataFiles()
    nodes: Count | None = None
    """Nodes, each with one pserver and one trainer. Left out: one per shard."""
    pservers: Count | None = None
    """Pservers, where they are counted apart from trainers."""
    trainers: Count | None = None
    """Trainers, where they are counted apart. At most one per shard; one may own several shards."""
    lanes: LanePorts = LanePorts()
    passes: Passes = 10
    """Passes over all the data."""
    keep: KeepRule = "all"
    """Which passes' models are kept: `all`; `best`, the one with the lowest test error (or cost, where nothing is
    tested) and the last; or `last N`."""
    stop_when: StopRule | None = None
    """`no better for N passes` ends the job once N passes in a row have no lower test cost than the best before them.
    Left out: it has all its passes. Which pass is the last depends on the test costs alone, so it is the same in every
    layout and after a resume. `bireme resume OUTPUT --passes N` continues a job that ended so, without the rule."""
    mode: UpdateMode | None = None
    """How gradients become updates. `sync`: one update per round from every shard's gradient, always with the same
    result. `bounded`: each shard's gradient by itself, no shard more than `staleness` batches ahead of the slowest.
    `async`: the same without a bound. `local`: shards train by themselves and meet every few batches. Left out: `sync`,
    or as the config's `settings(is_async=...)` sets it."""
    staleness: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    """For `mode: bounded`: how many batches a shard may be ahead of the slowest. Left out: 4."""
    local: LocalFile = LocalFile()
    """For `mode: local`: how shards exchange parameters."""
    wire: Wire = Wire()
    """How dense gradients are encoded on the wire."""
    seed: Annotated[int, Meta(ge=0, le=2**53)] = 1
    """Determines initial values and shuffling. Same seed, same data, same bits."""
    output: str = "output"
    """Where logs and models go, relative to job.yaml."""
    snapshots: SnapshotsFile = SnapshotsFile()
    restarts: Restarts = Restarts()
    logs: Logs = Logs()
    log_period: Count = 50
    """Rounds between two progress lines in train.log."""
    connect_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0
    """How long processes wait for each other, at the start and after one was lost, in seconds."""
    kubernetes: KubernetesFile = KubernetesFile()
    """How the job is placed on a cluster."""


# Names that other systems use for keys of job.yaml, or for settings of the config.
_OTHER_KEYS = {
    "passes": "epochs epoch num_epochs n_epochs max_epochs num_passes pass iterations",
    "trainers": "workers num_workers num_trainers replicas num_gradient_servers trainer_count",
    "pservers": "servers num_servers parameter_servers ps num_ps num_pservers",
    "program.config": "config config_file model network script main program.model program.network program.script",
    "program.args": "args arguments config_args",
    "data.path": "data_dir data_path dataset train_data data.dir data.directory data.data_dir",
    "data.shards": "shards num_shards",
    "lanes.port": "port",
    "lanes.ports_num": "ports_num",
    "lanes.ports_num_for_sparse": "ports_num_for_sparse",
    "stop_when": "patience early_stopping early_stop",
    "output": "save_dir output_dir model_dir checkpoint_dir",
    "snapshots": "checkpoints checkpoint",
    "seed": "random_seed",
    "mode": "async is_async",
    "kubernetes.image": "image",
    "kubernetes.volume": "volume",
}
_SETTINGS = {
    "learning_rate=…": "learning_rate lr",
    "batch_size=…": "batch_size batchsize",
    "learning_method=…": "optimizer learning_method momentum algorithm",
    "regularization=…": "regularization l1 l2 weight_decay",
    "gradient_clipping_threshold=…": "gradient_clipping_threshold gradient_clipping clip",
}

KEY_OF = {alias: key for key, aliases in _OTHER_KEYS.items() for alias in aliases.split()}
"""The key of job.yaml that another system's name means."""
MEANT = {alias: f"did you mean `{key}`?" for alias, key in KEY_OF.items()}
"""Hints for unknown keys of job.yaml."""
MEANT |= {
    alias: f"it is set in the config: settings({setting})"
    for setting, aliases in _SETTINGS.items()
    for alias in aliases.split()
}


CarrierChoice = Literal["auto", "unix", "tcp"]
"""How a trainer connects to lanes on its own machine; benches and tests force other choices than `auto`'s."""


class Job(JobTerms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A resolved job, as its processes receive it."""

    config: str
    config_args: dict[str, str]
    front_end: str = "trainer_config"
    data: str
    port: int | None
    log_period: int
    restarts: Restarts = Restarts()
    logs: Logs = Logs()
    init_model: str = ""
    """Directory of a saved model to start from; '' starts from the generator."""
    keep: str = "all"
    """Which passes' models are kept: `all`, `best` or `last N`."""
    hosts: tuple[str, ...] = ()
    """The pservers' addresses by rank; empty: discovery through the run's directory."""
    tls: str = ""
    """Directory with ca.crt, tls.crt and tls.key; '' leaves connections plain."""
    carrier: CarrierChoice = "auto"
    faults: str = ""
    """The faults that a drill injects; '' for none."""

    @property
    def first_port(self) -> int:
        return self.port or PORT

    @property
    def nodes(self) -> int:
        return max(self.pservers, self.trainers)

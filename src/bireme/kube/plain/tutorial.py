"""Jobs as the original's tutorial writes them: the environment of their pods, read as a job of ours.

    JOB_NAME, JOB_PATH, JOB_NAMESPACE    the Job, the volume that all pods see, and the namespace
    TRAIN_CONFIG_DIR                     the program's directory below JOB_PATH/JOB_NAME
    CONF_PADDLE_NIC, CONF_PADDLE_PORT, CONF_PADDLE_PORTS_NUM, CONF_PADDLE_PORTS_NUM_SPARSE    where pservers listen
    CONF_PADDLE_GRADIENT_NUM             how many pods there are, each with a pserver and a trainer
    TRAINER_COUNT                        threads of a trainer; never changes the result, so nothing is made of it

The shards are in JOB_PATH/JOB_NAME/0/data and so on, or in JOB_PATH/JOB_NAME/data/0 as the oldest version of the
tutorial had them; the output goes to JOB_PATH/JOB_NAME/output.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from bireme.core.errors import DataError, SpecError, UsageError
from bireme.core.files import storage_errors
from bireme.spec.job import Job
from bireme.spec.load import count_shards, is_shard_name, overrides_from
from bireme.spec.model import Snapshots

CONFIGS = ("trainer_config.lr.py", "trainer_config.py")
"""The configs of the original's images, the newer first."""
PASSES, LOG_PERIOD = 10, 50
CONNECT_TIMEOUT_S = 60.0


def is_tutorial_pod(environment: Mapping[str, str]) -> bool:
    return bool(environment.get("JOB_NAME") and environment.get("JOB_PATH"))


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise UsageError(f"the variable {name} is not set", fix=f"set {name} under `env` in the Job's YAML")
    return value


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = _text(environment, name)
    if not text.isdecimal() or not least <= int(text) <= most:
        raise UsageError(f"{name} is {text!r}, which is not a number from {least} to {most}")
    return int(text)


def job_of(environment: Mapping[str, str]) -> Job:
    """The job of a pod's variables; the error for a missing or malformed one names it. Also reads the volume."""
    name = _text(environment, "JOB_NAME")
    chosen = {"BIREME_PASSES": str(PASSES), "BIREME_SEED": "1"}
    chosen |= {f"BIREME_{key.upper()}": value for key, value in overrides_from(environment).items()}
    place = Path(_text(environment, "JOB_PATH")) / name
    program = place / _text(environment, "TRAIN_CONFIG_DIR")
    nodes = _number(environment, "CONF_PADDLE_GRADIENT_NUM", 1, 4096)
    port = _number(environment, "CONF_PADDLE_PORT", 1, 65535)
    ports_num = _number(environment, "CONF_PADDLE_PORTS_NUM", 1, 64)
    ports_num_for_sparse = _number(environment, "CONF_PADDLE_PORTS_NUM_SPARSE", 0, 64)
    passes = _number(chosen, "BIREME_PASSES", 1, 4096)
    seed = _number(chosen, "BIREME_SEED", 0, 2**53)
    output, data = place / "output", _data(place)
    shards = _shards(data, nodes)
    return Job(
        name=name,
        config=str(_config(program)),
        config_args={},
        data=str(data),
        shards=shards,
        pservers=nodes,
        trainers=nodes,
        port=port,
        ports_num=ports_num,
        ports_num_for_sparse=ports_num_for_sparse,
        passes=passes,
        seed=seed,
        output=str(output),
        log_period=LOG_PERIOD,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        snapshots=Snapshots(path=str(output / "snapshots")),
    )


def _config(directory: Path) -> Path:
    for name in CONFIGS:
        if (directory / name).is_file():
            return directory / name
    raise SpecError(
        f"there is no {' nor '.join(CONFIGS)} in {directory}",
        fix="has the data job finished? It puts the program there; else check TRAIN_CONFIG_DIR and the volume",
    )


def _data(place: Path) -> Path:
    """The directory of the shards in our layout; for the oldest tutorial, links that imitate it."""
    old = place / "data"
    if not (old / "0").is_dir() or (place / "0" / "data").is_dir():
        return place
    shaped = place / "output" / "shards"
    with storage_errors(str(shaped)):
        for shard in (each for each in old.iterdir() if is_shard_name(each.name)):
            (shaped / shard.name).mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # another pod was faster
                (shaped / shard.name / "data").symlink_to(Path("../../../data") / shard.name)
    return shaped


def _shards(data: Path, nodes: int) -> int:
    try:
        shards = count_shards(data)
    except SpecError as e:
        raise DataError(
            f"there is no training data on the volume: {e.what}", fix="run the data job first, on the same volume"
        ) from e
    if shards < nodes:
        raise DataError(
            f"{nodes} pods but only {shards} data shards in {data}",
            why=f"trainers from rank {shards} up would have nothing to read",
            fix=f"set SPLIT_COUNT of the data job to {nodes}, or CONF_PADDLE_GRADIENT_NUM to {shards}",
        )
    return shards

"""Names that other systems use for keys of job.yaml, or for settings of the config."""

from __future__ import annotations

_KEYS = {
    "passes": "epochs epoch num_epochs n_epochs max_epochs num_passes pass iterations",
    "trainers": "workers num_workers num_trainers replicas num_gradient_servers trainer_count",
    "pservers": "servers num_servers parameter_servers ps num_ps num_pservers",
    "program.config": "config config_file model network script main",
    "program.args": "args arguments config_args",
    "data.path": "data_dir data_path dataset train_data",
    "data.shards": "shards num_shards",
    "lanes.port": "port",
    "lanes.ports_num": "ports_num",
    "lanes.ports_num_for_sparse": "ports_num_for_sparse",
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

MEANT = {alias: f"did you mean `{key}`?" for key, aliases in _KEYS.items() for alias in aliases.split()}
"""Hints for unknown keys of job.yaml."""
MEANT |= {
    alias: f"it is set in the config: settings({setting})"
    for setting, aliases in _SETTINGS.items()
    for alias in aliases.split()
}

"""What the `kubernetes:` section may say, and what a job that runs elsewhere need not have here."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.core.errors import SpecError
from bireme.spec.load import kubeconfig_files, load_cluster_job, load_job

HEAD = "name: demo\nprogram: {config: quick/config.py}\ndata: {shards: 2}\n"

# What stands under `kubernetes:`, and what the message must say; the section's first line is line 5.
MISTAKES: dict[str, tuple[str, str]] = {
    "an unknown key": ("imagepull: x", ":5: `kubernetes.imagepull` is not a known key; did you mean `image`?"),
    "a wrong item of a list": ("tolerations:\n    - key: a\n    - ky: b", ":7: `kubernetes.tolerations[1].ky` is not"),
    "an amount that is none": ("resources: {requests: {cpu: 500z}}", ":5: `kubernetes.resources.requests.cpu`: an"),
    "an amount that is a list": ("resources: {limits: {cpu: [1]}}", ":5: `kubernetes.resources.limits.cpu`: expected"),
    "a name that is none": ("volume: {claim: My_Claim}", ":5: `kubernetes.volume.claim`: an existing"),
    "a claim that is there and its size": ("volume: {claim: a, size: 1Gi}", "`claim` names one"),
    "a variable of bireme's": ("env:\n    POD_IP: x", ":6: `kubernetes.env.POD_IP` is set by bireme itself"),
    "a variable that is a list": ("env: {A: [1]}", ":5: `kubernetes.env.A`: expected"),
    "a path of bireme's": ("volumes:\n    - {name: a, path: /tmp/, source: {}}", ":6: `kubernetes.volumes`: /tmp/ is"),
    "a relative path": ("volumes: [{name: a, path: b, source: {}}]", "`kubernetes.volumes[0].path`: where the pods"),
    "a mount without a source": ("volumes: [{name: a, path: /b}]", "`kubernetes.volumes[0].source` is missing"),
    "a list that is none": ("image_pull_secrets: key", ":5: `kubernetes.image_pull_secrets`: expected `array`"),
    "a patch for nothing": (
        "patch: {Deployment: {}}",
        "a job has no object of that kind\n  fix: one of: ServiceAccount",
    ),
    "a patch that is no map": ("patch: {Job: 3}", ":5: `kubernetes.patch.Job`: expected `object`, got 3"),
    "a word that is nearly right": ("replace: at-once", "did you mean `at_once`?"),
    "a negative time": ("lost_node_s: -1", ":5: `kubernetes.lost_node_s`: expected `int` >= 0, got -1"),
}


def write(folder: Path, text: str) -> Path:
    (folder / "quick").mkdir(exist_ok=True)
    (folder / "quick/config.py").write_text("")
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, name: str) -> None:
    section, expected = MISTAKES[name]
    path = write(tmp_path, f"{HEAD}kubernetes:\n  {section}\n")
    with pytest.raises(SpecError) as caught:
        load_cluster_job(path, {}, {})
    assert expected in str(caught.value).replace(str(tmp_path), "")


def test_a_group_that_no_pod_belongs_to_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HEAD}kubernetes:\n  groups:\n    psever: {{disk: fast}}\n")
    with pytest.raises(SpecError, match="did you mean `pserver`"):
        load_cluster_job(path, {}, {})


def test_pods_on_the_volume_can_be_patched_as_well(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HEAD}kubernetes: {{patch: {{Pod: {{spec: {{runtimeClassName: kata}}}}}}}}\n")
    assert load_cluster_job(path, {}, {}).settings.patch == {"Pod": {"spec": {"runtimeClassName": "kata"}}}


def test_a_local_run_has_the_section_checked_and_ignores_it(tmp_path: Path) -> None:
    (tmp_path / "0/data").mkdir(parents=True)
    path = write(tmp_path, HEAD.replace("2", "1") + "kubernetes: {image: x, queue: night}\n")
    assert load_job(path, {}, {}).shards == 1
    with pytest.raises(SpecError, match=r"`kubernetes[.]imag`"):
        load_job(write(tmp_path, HEAD.replace("2", "1") + "kubernetes: {imag: x}\n"), {}, {})


def test_data_on_the_volume_needs_a_count_of_shards(tmp_path: Path) -> None:
    loaded = load_cluster_job(write(tmp_path, HEAD), {}, {})
    assert (loaded.job.shards, loaded.job.trainers, loaded.has_data) == (2, 2, False)
    with pytest.raises(SpecError, match="holds no shard") as caught:
        load_cluster_job(write(tmp_path, HEAD.replace("data: {shards: 2}\n", "")), {}, {})
    assert "`data.shards: N`" in caught.value.fix
    with pytest.raises(SpecError, match="3 trainers but only 2 data shards"):
        load_cluster_job(write(tmp_path, HEAD + "trainers: 3\n"), {}, {})


def test_data_that_is_here_must_be_as_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "0/data").mkdir(parents=True)
    with pytest.raises(SpecError, match=r"data\.shards is 2, but"):
        load_cluster_job(write(tmp_path, HEAD), {}, {})


def test_a_program_in_the_image_need_not_be_here(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD.replace("quick/config.py", "quick/other.py"))
    with pytest.raises(SpecError, match="there is no file"):
        load_cluster_job(path, {}, {})
    path = write(tmp_path, HEAD.replace("quick/config.py", "quick/other.py") + "kubernetes: {program: /opt/program}\n")
    assert not load_cluster_job(path, {}, {}).has_program


def test_a_local_output_directory_is_none_of_a_volume(tmp_path: Path) -> None:
    loaded = load_cluster_job(write(tmp_path, HEAD), {}, {"BIREME_OUTPUT": "/elsewhere", "BIREME_PASSES": "3"})
    assert (loaded.file.output, loaded.job.passes) == ("output", 3)


def test_a_kubeconfig_is_looked_for_as_kubectl_does(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert kubeconfig_files(home) == []
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").touch()
    (tmp_path / "one").touch()
    assert kubeconfig_files(home) == [tmp_path / ".kube/config"]
    named = {**home, "KUBECONFIG": f"{tmp_path / 'one'}:{tmp_path / 'gone'}"}
    assert kubeconfig_files(named) == [tmp_path / "one"]

"""Gives claims of the class `shared` a volume: a directory of the host that all nodes see, so truly shared.

Run as `python -m tools.kube.provisioner PKI VOLUMES`, inside the control plane's machine. It looks twice a second
rather than watching: there are few claims, and nothing has to be taken up again when the API server restarts.
A directory goes with its claim. Kubernetes does not set the group of such volumes, hence mode 0777.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from bireme.core.errors import NetworkError

from .api import Api, ApiError
from .objects import CLASS, PROVISIONER, volume
from .settings import SHARED_PLACE


def provide(api: Api, volumes: Path, claim: dict[str, Any]) -> None:
    """Make the directory and the volume for one claim."""
    metadata = claim["metadata"]
    name = f"pvc-{metadata['uid']}"
    directory = volumes / name
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)
    try:
        api.request("POST", "/api/v1/persistentvolumes", volume(claim, name, f"{SHARED_PLACE}/{name}"))
    except ApiError as e:
        if e.status != 409:  # made before: it waits to be bound
            raise
    else:
        print(f"made {name} for {metadata['namespace']}/{metadata['name']}", flush=True)


def reclaim(api: Api, volumes: Path, name: str) -> None:
    """Take a volume back whose claim was deleted."""
    shutil.rmtree(volumes / name, ignore_errors=True)
    api.request("DELETE", f"/api/v1/persistentvolumes/{name}")
    print(f"removed {name}", flush=True)


def look(api: Api, volumes: Path) -> None:
    """One look at all claims and volumes."""
    for claim in api.get("/api/v1/persistentvolumeclaims")["items"]:
        spec, metadata = claim["spec"], claim["metadata"]
        is_waiting = not spec.get("volumeName") and "deletionTimestamp" not in metadata
        if is_waiting and spec.get("storageClassName") == CLASS:
            provide(api, volumes, claim)
    for item in api.get("/api/v1/persistentvolumes")["items"]:
        by = item["metadata"].get("annotations", {}).get("pv.kubernetes.io/provisioned-by")
        policy = item["spec"].get("persistentVolumeReclaimPolicy")
        if by == PROVISIONER and item["status"].get("phase") == "Released" and policy == "Delete":
            reclaim(api, volumes, item["metadata"]["name"])


def main() -> None:
    """Look for ever; an API server that does not answer is asked again."""
    api, volumes = Api(Path(sys.argv[1]), 6443, keep=True), Path(sys.argv[2])
    while True:
        try:
            look(api, volumes)
        except NetworkError as e:
            print(e, flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    main()

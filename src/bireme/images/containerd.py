"""Loading an image into this machine's containerd, through its own client `ctr`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bireme.core.errors import ImageError, MissingError

SOCKET = "/run/containerd/containerd.sock"
NAMESPACE = "k8s.io"
"""Where the kubelet looks for images."""


def load(archive: Path, address: str = SOCKET, namespace: str = NAMESPACE) -> None:
    """Import an OCI archive; it takes the name over from an older image."""
    if shutil.which("ctr") is None:
        raise MissingError("`ctr` is not installed", fix="it comes with containerd: `apt-get install containerd`")
    if not Path(address).is_socket():
        fix = "start containerd, or name its socket with `--address`; on other machines use `bireme image push`"
        raise ImageError(f"there is no containerd at {address}", fix=fix)
    command = ["ctr", "--address", address, "--namespace", namespace, "images", "import", str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].removeprefix("ctr: ")
        fix = "run as root" if "permission denied" in last else "`ctr version` shows whether containerd answers"
        raise ImageError(f"containerd did not take {archive}: {last}", fix=fix)

"""The configuration files and command lines of the test cluster's daemons. Pure: values in, text out.

Two sets of timings: `short` (default) notices a lost node after 8 seconds, so that tests of recovery take
seconds; `stock` leaves Kubernetes' own values, with which it takes 40 seconds and pods move after five minutes.
Several settings only exist because the machine underneath may lack something; each says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from . import network

REGISTRY = f"{network.CONTROL}:5000"
PAUSE_IMAGE = "localhost/pause:1"
SHARED_PLACE = "/srv/bireme"


@dataclass(frozen=True)
class Node:
    """A node: its number from 1, and all that follows from it."""

    number: int

    @property
    def name(self) -> str:
        """n1, n2, …"""
        return f"n{self.number}"

    @property
    def address(self) -> str:
        """Its address on the cluster's wire."""
        return network.node_address(self.number)


def containerd(directory: Path) -> str:
    """containerd.toml; images come from archives and from the tests' registry, never from outside."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE a negative OOM score cannot be set, and no sandbox would start.
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = true
  [{cri}.cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{directory}/net.d"
  [{cri}.registry]
    config_path = "{directory.parent}/certs.d"
  [{cri}.containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [{cri}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def mirrors() -> dict[str, str]:
    """hosts.toml by registry name: these names are served by the tests' own registry, over plain HTTP."""
    text = f'server = "http://{REGISTRY}"\n[host."http://{REGISTRY}"]\n  capabilities = ["pull", "resolve"]\n'
    return dict.fromkeys(("docker.io", "localhost:5000", REGISTRY), text)


def cni(node: Node) -> str:
    """The pod network of one node: a bridge, and host ports."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": network.pod_range(node.number)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": ipam}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
    return json.dumps({"cniVersion": "1.0.0", "name": "podnet", "plugins": [bridge, ports]}, indent=1)


def kubelet(node: Node, directory: Path, group: str, *, stock: bool) -> str:
    """KubeletConfiguration of one node."""
    pki = directory.parent / "pki"
    config: dict[str, object] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/{node.name}.crt",
        "tlsPrivateKeyFile": f"{pki}/{node.name}.key",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "clusterDomain": "cluster.local",
        "clusterDNS": [network.DNS_SERVICE],
        "resolvConf": f"{directory}/resolv.conf",
        # 100 turns the collection of images off: those loaded from archives could not be pulled again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        "serializeImagePulls": False,
    }
    if not stock:
        config |= {"nodeStatusUpdateFrequency": "2s", "nodeLeaseDurationSeconds": 8}
    return json.dumps(config, indent=1)


def proxy(node: Node, directory: Path) -> str:
    """KubeProxyConfiguration of one node."""
    # conntrack's limits belong to the host and are read-only in a network namespace: 0 leaves them alone.
    conntrack = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": node.address,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "hostnameOverride": node.name,
        "clusterCIDR": network.PODS,
        "clientConnection": {"kubeconfig": f"{directory.parent}/pki/proxy.kubeconfig"},
        "oomScoreAdj": 0,
        "conntrack": conntrack,
    }
    return json.dumps(config, indent=1)


def corefile(run: Path) -> str:
    """CoreDNS: the cluster's names and nothing else, forgotten after a second so that tests see changes at once."""
    return f""".:53 {{
    errors
    health :8080
    ready :8181
    cache 1
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {run}/pki/dns.kubeconfig
        pods insecure
        ttl 1
    }}
}}
"""


def node_daemons(node: Node, directory: Path, binaries: Path) -> dict[str, list[str]]:
    """Command lines of a node's daemons, in the order of their start."""
    zone = f"topology.kubernetes.io/region=local,topology.kubernetes.io/zone=local-{node.number}"
    return {
        "containerd": ["containerd", "--config", f"{directory}/containerd.toml"],
        "kubelet": [
            f"{binaries}/kubelet",
            f"--config={directory}/kubelet.json",
            f"--kubeconfig={directory.parent}/pki/{node.name}.kubeconfig",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--node-labels={zone},bireme.dev/node={node.name}",
            "--v=1",
        ],
        "kube-proxy": [f"{binaries}/kube-proxy", f"--config={directory}/proxy.json", "--v=1"],
    }


def control_daemons(run: Path, binaries: Path, *, stock: bool) -> dict[str, list[str]]:
    """Command lines of the control plane's daemons."""
    return {
        "etcd": [f"{binaries}/etcd", f"--data-dir={run}/etcd", "--unsafe-no-fsync"],
        "kube-apiserver": _apiserver(run / "pki", binaries),
        "kube-controller-manager": _controllers(run / "pki", binaries, stock=stock),
        "kube-scheduler": [f"{binaries}/kube-scheduler", *_client(run / "pki", "scheduler")],
        "coredns": [f"{binaries}/coredns", "-conf", f"{run}/Corefile"],
    }


def _apiserver(pki: Path, binaries: Path) -> list[str]:
    return [
        f"{binaries}/kube-apiserver",
        "--etcd-servers=http://127.0.0.1:2379",
        "--bind-address=0.0.0.0",
        "--secure-port=6443",
        f"--advertise-address={network.CONTROL}",
        f"--service-cluster-ip-range={network.SERVICES}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--endpoint-reconciler-type=lease",
        # Without an authority for front proxies the log fills with complaints.
        f"--requestheader-client-ca-file={pki}/ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--v=1",
    ]


def _controllers(pki: Path, binaries: Path, *, stock: bool) -> list[str]:
    short = ["--node-monitor-grace-period=8s", "--node-monitor-period=1s"]
    return [
        f"{binaries}/kube-controller-manager",
        *_client(pki, "controller-manager"),
        "--use-service-account-credentials=false",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--allocate-node-cidrs=false",
        "--pvclaimbinder-sync-period=1s",
        *([] if stock else short),
    ]


def _client(pki: Path, file: str) -> list[str]:
    flags = [f"--{kind}kubeconfig={pki}/{file}.kubeconfig" for kind in ("", "authentication-", "authorization-")]
    return [*flags, "--bind-address=127.0.0.1", "--leader-elect=false", "--v=1"]

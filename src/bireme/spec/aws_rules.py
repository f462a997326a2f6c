"""AWS' rules for names and regions that do not fit a pattern. No I/O."""

from __future__ import annotations

import re

PARTITIONS = {
    "cn-": "China",
    "us-gov-": "GovCloud",
    "us-iso": "AWS Secret Cloud",
    "eu-iso": "AWS Secret Cloud",
    "eusc-": "AWS European Sovereign Cloud",
}
"""How regions of other partitions begin: accounts, ARNs and addresses of their own."""
RESERVED_DOMAINS = ("kubernetes.io", "k8s.io", "k8s.aws", "k8s.amazonaws.com", "eks.amazonaws.com", "bireme.dev")
RESERVED_TAGS = ("aws:", "eks:", "bireme:")
_BUCKET_STARTS = ("xn--", "sthree-", "amzn-s3-demo-")
_BUCKET_ENDS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def other_partition(region: str) -> str:
    """Which other partition a region is in; empty for the standard one."""
    return next((name for start, name in PARTITIONS.items() if region.startswith(start)), "")


def reserved_domain(key: str) -> str:
    """The domain of a label's or tag's key, if Kubernetes, EKS or bireme reserves it."""
    domain = key.rpartition("/")[0].partition("/")[0].lower()
    return domain if any(f".{domain}".endswith(f".{reserved}") for reserved in RESERVED_DOMAINS) else ""


def reserved_tag(key: str) -> str:
    """The prefix of a tag's key, if AWS, Kubernetes or bireme reserves it."""
    start = next((start for start in RESERVED_TAGS if key.lower().startswith(start)), "")
    return start or (f"{domain}/" if (domain := reserved_domain(key)) else "")


def why_no_bucket(name: str) -> str:
    """Why a name of valid characters cannot be an S3 bucket's; empty if it can."""
    if ".." in name:
        return "it has two dots side by side"
    if re.fullmatch(r"[0-9]+(\.[0-9]+){3}", name):
        return "it looks like an address"
    start = next((each for each in _BUCKET_STARTS if name.startswith(each)), "")
    end = next((each for each in _BUCKET_ENDS if name.endswith(each)), "")
    if start or end:
        return f"names that {'begin' if start else 'end'} with `{start or end}` are reserved"
    return ""

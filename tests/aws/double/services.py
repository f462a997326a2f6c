"""The other services' APIs: identity, EKS, EFS, load balancers, registries, quotas, tags, logs, keys, DNS, buckets."""

from __future__ import annotations

import base64
import functools
from typing import Any

from tests.aws.double import policy
from tests.aws.double.eks import ADDONS, CLUSTER_ATTRIBUTES, active_cluster
from tests.aws.double.model import (
    ADDON,
    CLASSIC_LB,
    ENI,
    LOG_GROUP,
    NETWORK_LB,
    NODEGROUP,
    ROLE,
    ApiError,
    Call,
    Thing,
    operation,
    page,
    tag_list,
)
from tests.aws.double.world import DEFAULT_QUOTAS

_ASSOCIATION, _ENTRY = "AWS::EKS::PodIdentityAssociation", "AWS::EKS::AccessEntry"
_STATUS = {"creating": "CREATING", "available": "ACTIVE", "deleting": "DELETING"}


@operation("sts", "GetCallerIdentity")
def get_caller_identity(call: Call) -> dict[str, Any]:
    return {"UserId": "AIDAEXAMPLE", "Account": call.world.account, "Arn": call.principal}


# --- EKS ------------------------------------------------------------------------------------------------------------


def _arn(call: Call, thing: Thing) -> str:
    return thing.arn(call.world.account)


@operation("eks", "DescribeCluster")
def describe_cluster(call: Call) -> dict[str, Any]:
    t = active_cluster(call.region, call.params["name"])
    config = t.props["ResourcesVpcConfig"]
    view: dict[str, Any] = {
        "name": t.id, "arn": _arn(call, t), "status": _STATUS[t.state], "version": t.props["Version"], "tags": t.tags,
        "createdAt": t.created, "roleArn": t.props["RoleArn"],
        "resourcesVpcConfig": {
            "subnetIds": config["SubnetIds"], "securityGroupIds": config.get("SecurityGroupIds", []),
            "clusterSecurityGroupId": t.props["ClusterSecurityGroupId"], "vpcId": t.props["VpcId"],
            "endpointPublicAccess": config.get("EndpointPublicAccess", True) in (True, "true"),
            "endpointPrivateAccess": config.get("EndpointPrivateAccess", False) in (True, "true"),
            "publicAccessCidrs": config.get("PublicAccessCidrs", ["0.0.0.0/0"]),
        },
    }  # fmt: skip
    if t.state == "available":  # before that, AWS has no endpoint to give
        attribute = {k: f(call.region, t) for k, f in CLUSTER_ATTRIBUTES.items()}
        view |= {"endpoint": attribute["Endpoint"]}
        view |= {"certificateAuthority": {"data": attribute["CertificateAuthorityData"]}}
        view |= {"identity": {"oidc": {"issuer": attribute["OpenIdConnectIssuerUrl"]}}}
    return {"cluster": view}


@operation("eks", "ListClusters")
def list_clusters(call: Call) -> dict[str, Any]:
    found, token = page(
        [t.id for t in call.region.of("AWS::EKS::Cluster")],
        call.params.get("nextToken"),
        call.params.get("maxResults", 100),
    )
    return {"clusters": found, "nextToken": token}


@operation("eks", "DescribeClusterVersions")
def describe_cluster_versions(call: Call) -> dict[str, Any]:
    versions = call.world.eks_versions
    default = [v for v, s in versions.items() if s == "STANDARD_SUPPORT"][-1]
    views = [
        {
            "clusterVersion": v,
            "clusterType": "eks",
            "versionStatus": s,
            "status": s.lower().replace("_", "-"),
            "defaultVersion": v == default,
        }
        for v, s in versions.items()
    ]
    wanted = call.params.get("clusterVersions")
    shown = [v for v in views if not wanted or v["clusterVersion"] in wanted]
    return {"clusterVersions": [v for v in shown if v["defaultVersion"] or not call.params.get("defaultOnly")]}


@operation("eks", "DescribeAddonVersions")
def describe_addon_versions(call: Call) -> dict[str, Any]:
    wanted, version = call.params.get("addonName"), call.params.get("kubernetesVersion")
    names = [n for n in ADDONS if wanted in (None, n)] if version in (None, *call.world.eks_versions) else []
    compatible = [
        {"clusterVersion": v, "defaultVersion": True} for v in ([version] if version else call.world.eks_versions)
    ]
    entry = {"addonVersion": "v1.20.0-eksbuild.1", "architecture": ["amd64", "arm64"], "compatibilities": compatible}
    return {"addons": [{"addonName": n, "type": "networking", "addonVersions": [entry]} for n in names]}


@operation("eks", "ListNodegroups")
def list_nodegroups(call: Call) -> dict[str, Any]:
    active_cluster(call.region, call.params["clusterName"])
    found = call.region.of(NODEGROUP, ClusterName=call.params["clusterName"])
    return {"nodegroups": [t.id.rpartition("/")[2] for t in found]}


@operation("eks", "DescribeNodegroup")
def describe_nodegroup(call: Call) -> dict[str, Any]:
    cluster, name = call.params["clusterName"], call.params["nodegroupName"]
    t = call.region.get(NODEGROUP, f"{cluster}/{name}")
    if t is None:
        raise ApiError("ResourceNotFoundException", f"No node group found for name: {name}.", 404)
    scaling = t.props.get("ScalingConfig", {})
    view = {
        "nodegroupName": name, "clusterName": cluster, "nodegroupArn": _arn(call, t), "status": _STATUS[t.state],
        "scalingConfig": {k[0].lower() + k[1:]: int(v) for k, v in scaling.items()}, "nodeRole": t.props["NodeRole"],
        "labels": t.props.get("Labels", {}),
        "instanceTypes": t.props.get("InstanceTypes", ["t3.medium"]), "subnets": t.props["Subnets"],
        "capacityType": t.props.get("CapacityType", "ON_DEMAND"), "tags": t.tags,
        "health": {"issues": t.props.get("Issues", [])},
    }  # fmt: skip
    return {"nodegroup": view}


@operation("eks", "ListAddons")
def list_addons(call: Call) -> dict[str, Any]:
    active_cluster(call.region, call.params["clusterName"])
    return {"addons": [t.props["AddonName"] for t in call.region.of(ADDON, ClusterName=call.params["clusterName"])]}


@operation("eks", "DescribeAddon")
def describe_addon(call: Call) -> dict[str, Any]:
    cluster, name = call.params["clusterName"], call.params["addonName"]
    t = call.region.get(ADDON, f"{cluster}|{name}")
    if t is None:
        raise ApiError("ResourceNotFoundException", f"No addon: {name} found in cluster: {cluster}", 404)
    status = "DEGRADED" if t.props.get("Degraded") else _STATUS[t.state]
    view = {"addonName": name, "clusterName": cluster, "status": status, "addonArn": _arn(call, t), "tags": t.tags}
    return {"addon": view | {"addonVersion": t.props.get("AddonVersion", "v1.20.0-eksbuild.1")}}


@operation("eks", "ListPodIdentityAssociations")
def list_pod_identities(call: Call) -> dict[str, Any]:
    active_cluster(call.region, call.params["clusterName"])
    found = call.region.of(_ASSOCIATION, ClusterName=call.params["clusterName"])
    views = [
        {"clusterName": t.props["ClusterName"], "namespace": t.props["Namespace"],
         "serviceAccount": t.props["ServiceAccount"],
         "associationArn": _arn(call, t), "associationId": t.id}
        for t in found
    ]  # fmt: skip
    return {"associations": views}


@operation("eks", "ListAccessEntries")
def list_access_entries(call: Call) -> dict[str, Any]:
    active_cluster(call.region, call.params["clusterName"])
    found = call.region.of(_ENTRY, ClusterName=call.params["clusterName"])
    return {"accessEntries": [t.props["PrincipalArn"] for t in found]}


# --- EFS ------------------------------------------------------------------------------------------------------------


@operation("efs", "DescribeFileSystems")
def describe_file_systems(call: Call) -> dict[str, Any]:
    wanted = call.params.get("FileSystemId")
    found = [t for t in call.region.of("AWS::EFS::FileSystem") if wanted in (None, t.id)]
    if wanted and not found:
        raise ApiError("FileSystemNotFound", f"File system '{wanted}' does not exist.", 404)
    mounts = call.region.of("AWS::EFS::MountTarget")
    views = [
        {"FileSystemId": t.id, "OwnerId": call.world.account, "CreationToken": t.id, "CreationTime": t.created,
         "LifeCycleState": "creating" if t.state == "creating" else "available", "Tags": tag_list(t.tags),
         "NumberOfMountTargets": sum(m.props["FileSystemId"] == t.id for m in mounts), "SizeInBytes": {"Value": 6144},
         "PerformanceMode": "generalPurpose", "FileSystemArn": _arn(call, t),
         "Encrypted": t.props.get("Encrypted") in (True, "true")}
        for t in found
    ]  # fmt: skip
    return {"FileSystems": views}


@operation("efs", "DescribeMountTargets")
def describe_mount_targets(call: Call) -> dict[str, Any]:
    wanted = call.params.get("FileSystemId")
    found = [t for t in call.region.of("AWS::EFS::MountTarget") if wanted in (None, t.props["FileSystemId"])]
    views = [
        {"MountTargetId": t.id, "FileSystemId": t.props["FileSystemId"], "SubnetId": t.props["SubnetId"],
         "LifeCycleState": "creating" if t.state == "creating" else "available",
         "AvailabilityZoneName": t.props["AvailabilityZone"]}
        for t in found
    ]  # fmt: skip
    return {"MountTargets": views}


@operation("efs", "DescribeAccessPoints")
def describe_access_points(call: Call) -> dict[str, Any]:
    wanted = call.params.get("FileSystemId")
    found = [t for t in call.region.of("AWS::EFS::AccessPoint") if wanted in (None, t.props["FileSystemId"])]
    views = [
        {"AccessPointId": t.id, "FileSystemId": t.props["FileSystemId"], "LifeCycleState": "available"} for t in found
    ]
    return {"AccessPoints": views}


@operation("efs", "DeleteFileSystem")
def delete_file_system(call: Call) -> None:
    name = call.params["FileSystemId"]
    found = call.region.get("AWS::EFS::FileSystem", name)
    if found is None:
        raise ApiError("FileSystemNotFound", f"File system '{name}' does not exist.", 404)
    if call.region.of("AWS::EFS::MountTarget", FileSystemId=name):
        raise ApiError("FileSystemInUse", f"file system {name} cannot be deleted as it has mount targets", 409)
    call.region.remove(found)


# --- load balancers -------------------------------------------------------------------------------------------------


@operation("elbv2", "DescribeLoadBalancers")
def describe_network_balancers(call: Call) -> dict[str, Any]:
    arns = call.params.get("LoadBalancerArns")
    found = [t for t in call.region.of(NETWORK_LB) if not arns or _arn(call, t) in arns]
    if arns and not found:
        raise ApiError("LoadBalancerNotFound", f"Load balancers '[{', '.join(arns)}]' not found")
    views = [
        {"LoadBalancerArn": _arn(call, t), "LoadBalancerName": t.props.get("Name", t.id),
         "VpcId": t.props.get("VpcId", ""), "Type": "network", "Scheme": "internet-facing",
         "State": {"Code": "active"}, "CreatedTime": t.created,
         "SecurityGroups": t.props.get("SecurityGroups", [])}
        for t in found
    ]  # fmt: skip
    shown, token = page(views, call.params.get("Marker"), call.params.get("PageSize", 400))
    return {"LoadBalancers": shown, "NextMarker": token}


@operation("elbv2", "DescribeTags")
def describe_network_tags(call: Call) -> dict[str, Any]:
    arns = call.params["ResourceArns"]
    if len(arns) > 20:
        raise ApiError("ValidationError", "Cannot have more than 20 resources described")
    found = {_arn(call, t): t for t in call.region.of(NETWORK_LB)}
    missing = [a for a in arns if a not in found]
    if missing:
        raise ApiError("LoadBalancerNotFound", f"Load balancers '[{', '.join(missing)}]' not found")
    return {"TagDescriptions": [{"ResourceArn": a, "Tags": tag_list(found[a].tags)} for a in arns]}


def _remove_balancer(call: Call, balancer: Thing) -> None:
    """The balancer goes at once, its interfaces a minute later, as on AWS."""
    region = call.region
    region.remove(balancer)
    for eni in region.of(ENI, Owner=balancer.id):
        call.world.later(60, functools.partial(region.remove, eni))


@operation("elbv2", "DeleteLoadBalancer")
def delete_network_balancer(call: Call) -> dict[str, Any]:
    for balancer in call.region.of(NETWORK_LB):
        if _arn(call, balancer) == call.params["LoadBalancerArn"]:
            _remove_balancer(call, balancer)
    return {}


@operation("elb", "DescribeLoadBalancers")
def describe_classic_balancers(call: Call) -> dict[str, Any]:
    names = call.params.get("LoadBalancerNames")
    found = [t for t in call.region.of(CLASSIC_LB) if not names or t.id in names]
    if names and len(found) < len(names):
        raise ApiError("LoadBalancerNotFound", f"There is no ACTIVE Load Balancer named '{names[0]}'")
    keys = {"VPCId": "VpcId", "Subnets": "Subnets", "SecurityGroups": "SecurityGroups"}
    views = [{"LoadBalancerName": t.id} | {k: t.props[p] for k, p in keys.items() if p in t.props} for t in found]
    return {"LoadBalancerDescriptions": views}


@operation("elb", "DescribeTags")
def describe_classic_tags(call: Call) -> dict[str, Any]:
    found = {t.id: t for t in call.region.of(CLASSIC_LB)}
    names = call.params["LoadBalancerNames"]
    if any(n not in found for n in names):
        raise ApiError("LoadBalancerNotFound", f"There is no ACTIVE Load Balancer named '{names[0]}'")
    return {"TagDescriptions": [{"LoadBalancerName": n, "Tags": tag_list(found[n].tags)} for n in names]}


@operation("elb", "DeleteLoadBalancer")
def delete_classic_balancer(call: Call) -> dict[str, Any]:
    balancer = call.region.get(CLASSIC_LB, call.params["LoadBalancerName"])
    if balancer:
        _remove_balancer(call, balancer)
    return {}


# --- registries, quotas, tags, and the rest -------------------------------------------------------------------------


@operation("ecr", "GetAuthorizationToken")
def get_authorization_token(call: Call) -> dict[str, Any]:
    token = base64.b64encode(b"AWS:secret-of-the-double").decode()
    entry = {"authorizationToken": token, "expiresAt": call.world.now() + 12 * 3600}
    return {"authorizationData": [entry | {"proxyEndpoint": f"https://{call.world.registry}"}]}


@operation("ecr", "DescribeRepositories")
def describe_repositories(call: Call) -> dict[str, Any]:
    names = call.params.get("repositoryNames")
    found = [t for t in call.region.of("AWS::ECR::Repository") if not names or t.id in names]
    if names and len(found) < len(names):
        text = f"The repository with name '{names[0]}' does not exist in the registry with id '{call.world.account}'"
        raise ApiError("RepositoryNotFoundException", text)
    views = [
        {"repositoryName": t.id, "repositoryArn": _arn(call, t), "registryId": call.world.account,
         "createdAt": t.created, "repositoryUri": f"{call.world.registry}/{t.id}"}
        for t in found
    ]  # fmt: skip
    return {"repositories": views}


@operation("service-quotas", "GetServiceQuota")
def get_service_quota(call: Call) -> dict[str, Any]:
    code = call.params["QuotaCode"]
    if code not in DEFAULT_QUOTAS:
        raise ApiError("NoSuchResourceException", f"The quota {code} does not exist")  # text not checked on AWS
    view = {
        "ServiceCode": call.params["ServiceCode"],
        "QuotaCode": code,
        "Value": call.world.quota(code),
        "Adjustable": True,
    }
    return {"Quota": view}


@operation("resourcegroupstaggingapi", "GetResources")
def get_resources(call: Call) -> dict[str, Any]:
    """Tagged things of the region; deleted ones for `tagging_lag_s` more. Roles are not in this API."""
    lag = call.world.faults.tagging_lag_s
    gone = [t for when, t in call.region.gone if when + lag > call.world.now()]
    things = [t for t in [*call.region.things.values(), *gone] if t.tags]
    pairs = [(_arn(call, t), t) for t in things]
    for wanted in call.params.get("TagFilters", []):
        key, values = wanted["Key"], wanted.get("Values") or None
        pairs = [(a, t) for a, t in pairs if key in t.tags and (values is None or t.tags[key] in values)]
    types = call.params.get("ResourceTypeFilters")
    if types:
        pairs = [(a, t) for a, t in pairs if any(_is_of_type(a, kind) for kind in types)]
    size = call.params.get("ResourcesPerPage", 50)
    shown, token = page(sorted(pairs, key=lambda p: p[0]), call.params.get("PaginationToken") or None, size)
    views = [{"ResourceARN": a, "Tags": tag_list(t.tags)} for a, t in shown]
    return {"ResourceTagMappingList": views, "PaginationToken": token or ""}


def _is_of_type(arn: str, wanted: str) -> bool:
    service, _, kind = wanted.partition(":")
    parts = arn.split(":", 5)
    return parts[2] == service and (not kind or parts[5].split("/")[0].split(":")[0] == kind)


def _log_group(call: Call, name: str) -> Thing:
    found = call.region.get("AWS::Logs::LogGroup", name)
    if found is None:
        raise ApiError("ResourceNotFoundException", "The specified log group does not exist.")
    return found


@operation("logs", "ListTagsForResource")
def list_log_tags(call: Call) -> dict[str, Any]:
    return {"tags": dict(_log_group(call, call.params["resourceArn"].rpartition(":log-group:")[2]).tags)}


@operation("logs", "DeleteLogGroup")
def delete_log_group(call: Call) -> None:
    call.region.remove(_log_group(call, call.params["logGroupName"]))


@operation("logs", "DescribeLogGroups")
def describe_log_groups(call: Call) -> dict[str, Any]:
    prefix = call.params.get("logGroupNamePrefix", "")
    found = [t for t in call.region.of(LOG_GROUP) if t.id.startswith(prefix)]
    views = [{"logGroupName": t.id, "arn": _arn(call, t), "creationTime": int(t.created * 1000)} for t in found]
    shown, token = page(views, call.params.get("nextToken"), call.params.get("limit", 50))
    return {"logGroups": shown, "nextToken": token} if token else {"logGroups": shown}


def _role_view(call: Call, t: Thing) -> dict[str, Any]:
    view = {"RoleName": t.id, "RoleId": "AROAEXAMPLEEXAMPLE", "Path": t.props.get("Path", "/"), "Arn": _arn(call, t)}
    return view | {"CreateDate": t.created, "Tags": tag_list(t.tags)}


@operation("iam", "GetRole")
def get_role(call: Call) -> dict[str, Any]:
    role = call.region.get(ROLE, call.params["RoleName"])
    if role is None:
        raise ApiError("NoSuchEntity", f"The role with name {call.params['RoleName']} cannot be found.", 404)
    return {"Role": _role_view(call, role)}


@operation("iam", "ListRoles")
def list_roles(call: Call) -> dict[str, Any]:
    found = [t for t in call.region.of(ROLE) if t.props.get("Path", "/").startswith(call.params.get("PathPrefix", "/"))]
    shown, token = page(found, call.params.get("Marker"), call.params.get("MaxItems", 100))
    views = [{k: v for k, v in _role_view(call, t).items() if k != "Tags"} for t in shown]
    return {"Roles": views, "IsTruncated": token is not None} | ({"Marker": token} if token else {})


@operation("iam", "SimulatePrincipalPolicy")
def simulate_principal_policy(call: Call) -> dict[str, Any]:
    documents = policy.documents_of(call.world, call.params["PolicySourceArn"])
    results = []
    for action in call.params["ActionNames"]:
        for arn in call.params.get("ResourceArns", ["*"]):
            keys = {
                each["ContextKeyName"]: each["ContextKeyValues"][0] for each in call.params.get("ContextEntries", [])
            }
            context = policy.Context(arn=None if arn == "*" else arn, keys=keys)
            verdict = "allowed" if documents is None else policy.decide(documents, action, context)
            verdict = "explicitDeny" if action in call.world.faults.denied else verdict
            results.append({"EvalActionName": action, "EvalResourceName": arn, "EvalDecision": verdict})
    return {"EvaluationResults": results, "IsTruncated": False}


@operation("kms", "DescribeKey")
def describe_key(call: Call) -> dict[str, Any]:
    wanted = call.params["KeyId"].rpartition("/")[2]
    key = call.region.get("AWS::KMS::Key", wanted)
    if key is None:
        raise ApiError("NotFoundException", f"Key '{call.params['KeyId']}' does not exist")
    return {"KeyMetadata": {"KeyId": key.id, "Arn": _arn(call, key), "KeyState": "Enabled", "Enabled": True}}


@operation("route53", "ListHostedZonesByVPC")
def list_hosted_zones_by_vpc(call: Call) -> dict[str, Any]:
    vpc = call.params["VPCId"]
    found = [
        z
        for z in call.region.of("AWS::Route53::HostedZone")
        if any(v.get("VPCId") == vpc for v in z.props.get("VPCs", []))
    ]
    owner = {"OwningAccount": call.world.account}
    views = [{"HostedZoneId": z.id, "Name": z.props.get("Name", ""), "Owner": owner} for z in found]
    return {"HostedZoneSummaries": views, "MaxItems": "100"}


@operation("s3", "HeadBucket")
def head_bucket(call: Call) -> dict[str, Any]:
    if call.region.get("AWS::S3::Bucket", call.params["Bucket"]) is None:
        raise ApiError("404", "Not Found", 404)
    return {"BucketRegion": call.region.name}

"""What AWS' refusals are to people: real texts, the sentence each becomes, and a next step."""

from __future__ import annotations

import pytest

from bireme.aws.cloudformation.causes import CAUSES, AwsError, Event, explain, failure, root_cause, to_error

TEXTS = {
    "no credentials": "NoCredentials: Unable to locate credentials",
    "no such profile": "ProfileNotFound: The config profile (dev) could not be found",
    "expired credentials": "ExpiredTokenException: The security token included in the request is expired",
    "wrong keys": "InvalidClientTokenId: The security token included in the request is invalid.",
    "wrong secret": "SignatureDoesNotMatch: The request signature we calculated does not match the signature you gave",
    "region not enabled": "OptInRequired: You are not subscribed to this service",
    "explicit deny": "AccessDenied: User: x is not authorized to perform: ec2:CreateVpc with an explicit deny",
    "pass role": "AccessDenied: User: x is not authorized to perform: iam:PassRole on resource: arn:aws:iam::1:role/y",
    "denied": "AccessDenied: User: x is not authorized to perform: eks:CreateCluster on resource: arn:aws:eks:x",
    "denied without a name": "UnauthorizedOperation: You are not authorized to perform this operation.",
    "vCPU quota": "VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit of 8 allows",
    "address quota": "The maximum number of addresses has been reached. (Service: Ec2, Status Code: 400)",
    "VPC quota": "The maximum number of VPCs has been reached. (Service: Ec2, Status Code: 400)",
    "gateway quota": "The maximum number of internet gateways has been reached.",
    "cluster quota": "ResourceLimitExceededException: Cluster limit exceeded for account",
    "role quota": "Cannot exceed quota for RolesPerAccount: 1000",
    "node group quota": "Nodegroups limit exceeded for cluster",
    "zone not supported": "UnsupportedAvailabilityZoneException: Cannot create cluster 'x' because us-east-1e, the "
    "targeted availability zone, does not currently have sufficient capacity",
    "type not in zone": "Your requested instance type (m7i.large) is not supported in your requested Availability Zone",
    "bad type": "The following supplied instance types do not exist: InvalidInstanceType",
    "no capacity": "InsufficientInstanceCapacity: We currently do not have sufficient m7i.large capacity",
    "nodes did not join": "NodeCreationFailure: Unhealthy nodes in the kubernetes cluster",
    "add-on degraded": "InsufficientNumberOfReplicas: The add-on is unhealthy",
    "add-on unknown": "InvalidParameterException: Addon aws-efs-csi-drvier specified is not supported",
    "bad version": "InvalidParameterException: unsupported Kubernetes version",
    "role cannot be assumed": "InvalidParameterException: Role with arn: x, could not be assumed because it is unknown",
    "taken by another": "ResourceInUseException: Cluster already exists with name: paddle",
    "mount target conflict": "MountTargetConflict: mount target already exists in this AZ",
    "bad file system": "FileSystemNotFound: File system 'fs-1' does not exist.",
    "file system in use": "FileSystemInUse: file system fs-1 cannot be deleted as it has mount targets",
    "bad key": "NotFoundException: Key 'arn:aws:kms:us-west-2:1:key/x' does not exist",
    "bad key pair": "InvalidKeyPair.NotFound: The key pair 'mine' does not exist",
    "bad VPC": "InvalidVpcID.NotFound: The vpc ID 'vpc-1' does not exist",
    "range conflict": "InvalidSubnet.Conflict: The CIDR '10.0.0.0/18' conflicts with another subnet",
    "two zones": "InvalidParameterException: Subnets specified must be in at least two different AZs",
    "still in use": "DependencyViolation: resource sg-1 has a dependent object",
    "bucket or repository not empty": "BucketNotEmpty: The bucket you tried to delete is not empty",
    "protected": "ValidationError: Stack [x] cannot be deleted while TerminationProtection is enabled",
    "capabilities": "InsufficientCapabilitiesException: Requires capabilities : [CAPABILITY_IAM]",
    "template too large": "ValidationError: 1 validation error detected: Value at 'templateBody' failed to satisfy "
    "constraint: Member must have length less than or equal to 51200",
    "stack is moving": "ValidationError: Stack:arn:x is in UPDATE_IN_PROGRESS state and can not be updated.",
    "roll-back failed": "ValidationError: Stack is in UPDATE_ROLLBACK_FAILED",
    "reserved label": "InvalidParameterException: Label cannot contain reserved prefixes [kubernetes.io/]",
    "account not ready": "PendingVerification: Your account is currently being verified.",
    "throttled": "Throttling: Rate exceeded",
    "AWS is down": "ServiceUnavailable: Unable to process request, please retry shortly",
    "no connection": 'Connection: Could not connect to the endpoint URL: "https://eks.us-west-2.amazonaws.com/"',
    "endpoint": "InvalidRegionError: Provided region_name 'us_west' doesn't match a supported format. InvalidRegion",
    "invalid name": "ValidationException: Value at 'stackName' failed to satisfy constraint: stackName",
    "timed out at AWS": "Resource did not stabilize: NotStabilized",
    "cancelled": "Resource creation cancelled",
    "stack state": "ValidationError: Stack:arn:x is in ROLLBACK_COMPLETE state and can not be updated.",
    "node groups left": "ResourceInUseException: Cluster has nodegroups attached",
    "cluster busy": "ResourceInUseException: Cluster 'paddle' is not in ACTIVE status",
    "volume attached": "VolumeInUse: Volume vol-1 is currently attached to i-1",
    "DNS zone not empty": "HostedZoneNotEmpty: The specified hosted zone contains non-required resource record sets",
    "request not signed": "MissingAuthenticationToken: Request is missing Authentication Token",
    "no gateway": "Gateway.NotAttached: Network vpc-1 has no Internet gateway attached",
    "bad zone": "InvalidParameterValue: Value (us-west-2z) for parameter availabilityZone is invalid.",
    "version jump": "InvalidParameterException: Unsupported Kubernetes minor version update from 1.34 to 1.32",
    "reserved tag": "ValidationError: aws: prefixed tag key names are not allowed for external use.",
    "bad template": "ValidationError: Template format error: Unresolved resource dependencies [X] in the Outputs",
    "gone": "ResourceNotFoundException: No cluster found for name: paddle.",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_refusal_is_explained_with_a_next_step(name: str) -> None:
    found = explain(TEXTS[name])
    assert found is not None
    assert found.name == name
    assert found.what and found.fix
    assert "{" not in found.what


def test_every_cause_has_a_text_that_shows_it() -> None:
    assert {cause.name for cause in CAUSES} == set(TEXTS)
    assert len(TEXTS) >= 30


def test_a_missing_profile_is_not_a_missing_cluster() -> None:
    assert not AwsError("credentials", "ProfileNotFound", "The config profile (x) could not be found").is_absent
    assert AwsError("eks.DescribeCluster", "ResourceNotFoundException", "No cluster found").is_absent


def test_the_missing_permission_is_named() -> None:
    found = explain(TEXTS["denied"])
    assert found is not None and "eks:CreateCluster" in found.what


def event(resource: str, status: str, reason: str = "", kind: str = "AWS::EC2::VPC") -> Event:
    return Event(resource, resource, kind, status, reason)


def test_the_first_failure_that_is_no_echo_is_the_cause() -> None:
    events = [
        event("Vpc", "CREATE_COMPLETE"),
        event("Gateway", "CREATE_FAILED", "Resource creation cancelled"),
        event("Trainers", "CREATE_FAILED", TEXTS["vCPU quota"], "AWS::EKS::Nodegroup"),
        event("Servers", "CREATE_FAILED", "Resource creation cancelled"),
        event("stack", "ROLLBACK_IN_PROGRESS", "The following resource(s) failed to create: [Trainers]"),
    ]
    found = root_cause(events)
    assert found is not None and found.resource == "Trainers"
    error = failure("bireme-paddle-workers", found, "")
    assert error.what == (
        "bireme-paddle-workers failed at Trainers (AWS::EKS::Nodegroup): the account's quota of vCPUs is used up"
    )
    assert "servicequotas" in error.fix


def test_an_unknown_refusal_keeps_aws_words_without_ids() -> None:
    reason = (
        'Resource handler returned message: "odd (Service: Eks, Status Code: 400, Request ID: 1)" (RequestToken: 2)'
    )
    assert failure("s", event("Vpc", "CREATE_FAILED", reason), "").what == "s failed at Vpc (AWS::EC2::VPC): odd"
    error = to_error(AwsError("ec2.DescribeVpcs", "Odd", "never seen"), "look")
    assert error.what == "cannot look: AWS says (ec2.DescribeVpcs): Odd: never seen"

"""What `bireme cluster status` says of a cluster at AWS: only what is ours, at the price that `plan` named."""

from __future__ import annotations

import msgspec
import pytest

from bireme.aws.layout import ClusterLayout, choose_zones
from bireme.aws.prices import Estimate, estimate
from bireme.aws.status import shortages, status
from bireme.core.errors import CloudError
from tests.aws.stage import NAME, Stage, cluster_file, public


def without_disks(found: Estimate) -> float:
    return sum(item.usd_h or 0.0 for item in found.items if "disks" not in item.name)


def test_a_strangers_control_plane_is_not_shown() -> None:
    stage = Stage.make()
    stage.world.plant("AWS::EKS::Cluster", Name=NAME)
    with pytest.raises(CloudError, match="exists already"):
        stage.up()
    found = status(stage.aws(), NAME)
    assert (found.control_plane, found.endpoint, found.groups) == ("absent", "", ())
    assert found.usd_h == 0.0


@pytest.mark.parametrize("egress", ["nat", "public"])
@pytest.mark.parametrize("region", ["us-west-2", "eu-central-1"])
def test_status_names_the_price_of_the_plan(region: str, egress: str) -> None:
    file = msgspec.structs.replace(cluster_file(), region=region)
    stage = Stage.make(file=public(file) if egress == "public" else file)
    stage.up()
    planned = without_disks(estimate(ClusterLayout(stage.file, choose_zones(stage.file))))
    assert status(stage.aws(), NAME).usd_h == pytest.approx(planned)


def test_why_machines_are_missing_is_reported_in_a_sentence() -> None:
    stage = Stage.make()
    stage.up()
    assert shortages(stage.aws(), NAME) == ""
    text = "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity."
    for thing in stage.world.inventory():
        if thing.type == "AWS::EKS::Nodegroup" and thing.props["CapacityType"] == "SPOT":
            thing.props["Issues"] = [{"code": "AsgInstanceLaunchFailures", "message": text, "resourceIds": []}]
    found = shortages(stage.aws(), NAME)
    assert found == "trainers: AWS has no free machine of these types in the zone now"
    stage.world.faults.denied.add("eks:ListNodegroups")
    assert shortages(stage.aws(), NAME) == "the reason is unknown (AccessDeniedException)"

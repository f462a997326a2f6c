"""A test double of AWS that fails like AWS.

Real boto3 clients speak to a `World`, over HTTP (`DoubleServer`) or inside the process (`attach`). Stacks make things
that take time, depend on each other and refuse to be deleted while something holds them; `World.faults` adds failures.
"""

from tests.aws.double import changesets, cloudformation, ec2_api, eks, network, services, storage
from tests.aws.double.model import ApiError, Thing
from tests.aws.double.transport import DoubleServer, attach
from tests.aws.double.world import Faults, ScaledClock, VirtualClock, World

# Imported for what they register: resource types and operations.
_REGISTERED = (network, eks, storage, cloudformation, changesets, ec2_api, services)

__all__ = ["ApiError", "DoubleServer", "Faults", "ScaledClock", "Thing", "VirtualClock", "World", "attach"]

"""A connection that fails: at once where AWS never answered, after many attempts where it did."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError

from bireme.aws.client import ATTEMPTS, Aws
from bireme.aws.cloudformation.causes import AwsError, to_error
from tests.aws.double import VirtualClock, World, attach


class Line:
    """A connection that can be cut."""

    def __init__(self, region: str) -> None:
        self.is_cut, self.tried = True, 0
        session = boto3.Session(aws_access_key_id="test", aws_secret_access_key="test")
        session.events.register_first("before-send", self._refuse)
        attach(session, World())
        self.aws = Aws(region, VirtualClock(), lambda: session)

    def _refuse(self, request: Any, **_: Any) -> None:
        self.tried += 1
        if self.is_cut:
            raise EndpointConnectionError(endpoint_url=request.url)

    def fail(self) -> AwsError:
        with pytest.raises(AwsError) as caught:
            self.aws.call("sts", "GetCallerIdentity")
        return caught.value


@pytest.mark.parametrize(("region", "fix"), [("us-nowhere-9", "correct `region`"), ("us-west-2", "check the network")])
def test_a_region_that_does_not_exist_is_named_at_once(region: str, fix: str) -> None:
    line = Line(region)
    assert fix in to_error(line.fail(), "ask AWS").fix
    assert line.tried == 1


def test_a_connection_that_goes_away_is_tried_again() -> None:
    line = Line("us-west-2")
    line.is_cut = False
    line.aws.call("sts", "GetCallerIdentity")
    line.is_cut = True
    line.fail()
    assert line.tried == 1 + ATTEMPTS

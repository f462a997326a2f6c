"""AWS API calls: the only module that imports boto3. Every call is one of `policy.CALLS`, every refusal an AwsError.

Calls are plain values in and out. Transient errors (throttling, a server's error, a lost connection) are retried here
with exponential backoff by an injected clock; every other error is raised with AWS' own code, for the caller to decide
by. botocore's own retries are off: they would sleep by the real clock.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from bireme.aws.cloudformation.causes import AwsError
from bireme.aws.policy import CALLS
from bireme.core.errors import MissingError

log = logging.getLogger(__name__)
Answer = dict[str, Any]
ATTEMPTS = 9
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
PASSING = frozenset(
    {
        "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestLimitExceeded",
        "TooManyRequestsException", "BandwidthLimitExceeded", "ServiceUnavailable", "ServiceUnavailableException",
        "InternalError", "InternalFailure", "InternalServerError", "ServerException", "RequestTimeout",
        "RequestTimeoutException", "EC2ThrottledException", "LimitExceededException.Throttle",
    }
)  # fmt: skip
"""Codes of transient errors: the same call may work in a moment."""
UNREACHABLE = "EndpointConnectionError"
"""No connection at all: transient once AWS has answered (the network went away), else not retried."""
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})


class Clock(Protocol):
    """The source of time; tests pass one that jumps."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class WallClock:
    """The real one."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


SessionFactory = Callable[[], Any]


class Aws:
    """One account in one region."""

    def __init__(self, region: str, clock: Clock | None = None, make_session: SessionFactory | None = None) -> None:
        self.region = region
        self.clock: Clock = clock or WallClock()
        self._make_session = make_session or _default_session
        # Seeded, so that every run pauses alike and tests are reproducible.
        self._draw = random.Random(region)
        self._clients: dict[str, Any] = {}
        self._session: Any = None
        self._has_answered = False

    def elsewhere(self, region: str) -> Aws:
        """The same account in another region."""
        return Aws(region, self.clock, self._make_session)

    @property
    def has_credentials(self) -> bool:
        """Whether boto3 finds credentials on this machine; makes no request."""
        with _needs_boto3(), _as_aws_error("credentials"):
            if self._session is None:
                self._session = self._make_session()
            return self._session.get_credentials() is not None

    def _unreachable(self, error: AwsError) -> AwsError:
        """Explain why the first call found no address: the region may not exist, or be newer than boto3's list."""
        if self.region in self._session.get_available_regions("ec2"):
            return error
        return AwsError(error.call, "UnknownRegion", f"{self.region}: {error.message}")

    def call(self, service: str, operation: str, **parameters: Any) -> Answer:
        """Call AWS, retrying transient errors; AwsError with AWS' code where it refuses."""
        assert f"{service}.{operation}" in CALLS, f"{service}.{operation} is not in policy.CALLS; this is a bug"
        is_renewed = False
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = self._call_once(service, operation, parameters)
            except AwsError as e:
                if e.code in EXPIRED and not is_renewed and attempt < ATTEMPTS:
                    # Another program (`aws sso login`) may have renewed the files that they came from.
                    is_renewed, self._session = True, None
                    self._clients.clear()
                elif e.code == UNREACHABLE and not self._has_answered:
                    raise self._unreachable(e) from e
                elif not e.is_passing or attempt == ATTEMPTS:
                    raise
                else:
                    self._pause(attempt, e)
            else:
                self._has_answered = True
                return answer
        raise AssertionError("the last attempt either answers or raises; this is a bug")

    def pages(self, service: str, operation: str, items: str, **parameters: Any) -> Iterator[Any]:
        """Every item of a listing, page by page."""
        token_in, token_out = _TOKENS.get(service, ("NextToken", "NextToken"))
        while True:
            answer = self.call(service, operation, **parameters)
            yield from answer.get(items) or ()
            token = answer.get(token_out)
            if not token:
                return
            parameters[token_in] = token

    def _pause(self, attempt: int, error: AwsError) -> None:
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempt - 1))
        seconds = longest * (0.5 + self._draw.random() / 2)
        log.info("retry call=%s code=%s attempt=%d pause_s=%.1f", error.call, error.code, attempt, seconds)
        self.clock.sleep(seconds)

    def _call_once(self, service: str, operation: str, parameters: Answer) -> Answer:
        with _needs_boto3():
            from botocore import xform_name

        with _as_aws_error(f"{service}.{operation}"):
            answer: Answer = getattr(self._client(service), xform_name(operation))(**parameters)
            return answer

    def _client(self, service: str) -> Any:
        from botocore.config import Config

        if service not in self._clients:
            if self._session is None:
                self._session = self._make_session()
            config = Config(retries={"total_max_attempts": 1}, connect_timeout=10, read_timeout=60)
            self._clients[service] = self._session.client(service, region_name=self.region, config=config)
        return self._clients[service]

    def presign_identity(self, cluster: str, seconds: int) -> str:
        """A presigned STS URL that authenticates the caller to an EKS cluster, as its token requires."""
        with _needs_boto3(), _as_aws_error("sts.GetCallerIdentity"):
            from botocore.signers import RequestSigner

            service = self._client("sts").meta.service_model.service_id
            credentials = self._session.get_credentials()
            signer = RequestSigner(service, self.region, "sts", "v4", credentials, self._session.events)
            request = {
                "method": "GET",
                "url": f"https://sts.{self.region}.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15",
                "body": {},
                "headers": {"x-k8s-aws-id": cluster},
                "context": {},
            }
            signed = {"region_name": self.region, "expires_in": seconds, "operation_name": ""}
            return str(signer.generate_presigned_url(request, **signed))


_TOKENS = {
    "efs": ("Marker", "NextMarker"),
    "elbv2": ("Marker", "NextMarker"),
    "elb": ("Marker", "NextMarker"),
    "iam": ("Marker", "Marker"),
    "eks": ("nextToken", "nextToken"),
    "ecr": ("nextToken", "nextToken"),
    "logs": ("nextToken", "nextToken"),
    "resourcegroupstaggingapi": ("PaginationToken", "PaginationToken"),
}
"""The names of a service's page token, in the request and in the answer."""


@contextmanager
def _as_aws_error(call: str) -> Iterator[None]:
    """Convert what botocore raises to an AwsError."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as e:
        error, status = e.response.get("Error", {}), e.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = str(error.get("Code", ""))
        is_passing = code in PASSING or status >= 500
        raise AwsError(call, code, str(error.get("Message", "")), is_passing=is_passing) from e
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as e:
        raise AwsError(call, "NoCredentials", str(e)) from e
    except (exceptions.TokenRetrievalError, exceptions.UnauthorizedSSOTokenError, exceptions.SSOError) as e:
        raise AwsError(call, "ExpiredToken", str(e)) from e
    except (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError) as e:
        raise AwsError(call, UNREACHABLE, str(e), is_passing=True) from e
    except exceptions.HTTPClientError as e:
        raise AwsError(call, "Connection", str(e), is_passing=True) from e
    except exceptions.BotoCoreError as e:
        raise AwsError(call, type(e).__name__, str(e)) from e


def _default_session() -> Any:
    with _needs_boto3():
        import boto3
    return boto3.Session()


@contextmanager
def _needs_boto3() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as e:
        raise MissingError(
            "boto3 is not installed",
            why="it is needed to talk to AWS",
            fix="pip install 'bireme[aws]'",
        ) from e

"""Requests to parameters and results to responses, by botocore's own service models.

One codec for the protocols query, ec2, json, rest-json, rest-xml (answers only) and CBOR. Every request is checked
against the operation's input shape and every answer of ours against its output shape.
"""

from __future__ import annotations

import base64
import datetime
import functools
import io
import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from botocore.loaders import Loader
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.parsers import RpcV2CBORParser
from botocore.serialize import RpcV2CBORSerializer
from botocore.validate import ParamValidator

from tests.aws.double.model import ApiError

_BY_SIGNING_NAME = {
    "elasticfilesystem": "efs",
    "servicequotas": "service-quotas",
    "tagging": "resourcegroupstaggingapi",
}
_SCOPE = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/aws4_request")


@dataclass
class Request:
    method: str
    url: str
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass
class Response:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Decoded:
    service: str
    region: str
    access_key: str
    operation: OperationModel
    params: dict[str, Any]
    protocol: str
    violations: list[str]


@functools.cache
def service_model(name: str) -> ServiceModel:
    return ServiceModel(Loader().load_service_model(name, "service-2"), name)


def decode(request: Request) -> Decoded:
    """Find service, region, operation and parameters of a request, and check the parameters."""
    scope = _SCOPE.search(request.headers.get("authorization", ""))
    if scope is None:
        raise ApiError("MissingAuthenticationToken", "Request is missing Authentication Token", 403)
    key, region, signing_name = scope.groups()
    service = _BY_SIGNING_NAME.get(signing_name, signing_name)
    if signing_name == "elasticloadbalancing":  # two services share this name; the version of the API decides
        service = "elb" if b"Version=2012-06-01" in request.body else "elbv2"
    model = service_model(service)
    protocol = model.metadata["protocol"]
    if "x-amz-target" in request.headers:
        protocol = "json"
    name, params = _DECODERS[protocol](model, request)
    operation = model.operation_model(name)
    return Decoded(service, region, key, operation, params, protocol, _violations(operation.input_shape, params))


def _violations(shape: Shape | None, params: dict[str, Any]) -> list[str]:
    if shape is None:
        return [f"unknown parameter {k}" for k in params]
    report = ParamValidator().validate(params, shape)
    found = [report.generate_report()] if report.has_errors() else []
    return found or _enum_violations(shape, params, "")


def _enum_violations(shape: Shape, value: Any, path: str) -> list[str]:
    """ParamValidator does not look at enumerations and maximum lengths; AWS does."""
    if shape.type_name == "structure":
        return [v for k, part in value.items() for v in _enum_violations(shape.members[k], part, f"{path}.{k}")]
    if shape.type_name == "list":
        return [v for part in value for v in _enum_violations(shape.member, part, path + "[]")]
    found = []
    if shape.type_name == "string":
        # Instance types come from users; EC2 itself answers InvalidInstanceType.
        if getattr(shape, "enum", None) and shape.name != "InstanceType" and value not in shape.enum:
            found.append(f"{path}: {value!r} is not one of {shape.enum[:20]}")
        longest = shape.metadata.get("max")
        if longest and len(value) > longest and path != ".TemplateBody":  # a limit with its own error text
            found.append(f"{path}: longer than {longest}")
    return found


# --- requests -------------------------------------------------------------------------------------------------------


def _decode_query(model: ServiceModel, request: Request) -> tuple[str, dict[str, Any]]:
    flat = dict(parse_qsl(request.body.decode(), keep_blank_values=True))
    name = flat.pop("Action")
    flat.pop("Version", None)
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        node = tree
        *parents, last = key.split(".")
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    operation = _operation(model, name)
    is_ec2 = model.metadata["protocol"] == "ec2"
    return name, _from_tree(operation.input_shape, tree, is_ec2) if operation.input_shape else tree


def _operation(model: ServiceModel, name: str) -> OperationModel:
    if name not in model.operation_names:
        raise ApiError("InvalidAction", f"The action {name} is not valid for this web service.")
    return model.operation_model(name)


def _query_name(shape: Shape, default: str, is_ec2: bool) -> str:
    if not is_ec2:
        return str(shape.serialization.get("name", default))
    name: str = shape.serialization.get("queryName") or shape.serialization.get("name", default)
    return name if "queryName" in shape.serialization else name[0].upper() + name[1:]


def _from_tree(shape: Shape, node: Any, is_ec2: bool) -> Any:
    if shape.type_name == "structure":
        return _structure_from_tree(shape, node, is_ec2)
    if shape.type_name == "list":
        if node == "":
            return []
        if not is_ec2 and not shape.serialization.get("flattened"):
            node = node[shape.member.serialization.get("name", "member")]
        return [_from_tree(shape.member, node[i], is_ec2) for i in sorted(node, key=int)]
    if shape.type_name == "map":
        entries = node if shape.serialization.get("flattened") else node["entry"]
        return {e["key"]: _from_tree(shape.value, e["value"], is_ec2) for e in entries.values()}
    return _from_text(shape, node)


def _structure_from_tree(shape: Shape, node: dict[str, Any], is_ec2: bool) -> dict[str, Any]:
    result, left = {}, dict(node)
    for member, member_shape in shape.members.items():
        name = _query_name(member_shape, member, is_ec2)
        if name in left:
            result[member] = _from_tree(member_shape, left.pop(name), is_ec2)
    return result | left  # what is left is unknown to the model, and the validator reports it


def _from_text(shape: Shape, text: str) -> Any:
    match shape.type_name:
        case "boolean":
            return {"true": True, "false": False}.get(text, text)
        case "integer" | "long":
            return int(text)
        case "float" | "double":
            return float(text)
        case "blob":
            return base64.b64decode(text)
        case _:
            return text


def _decode_json(model: ServiceModel, request: Request) -> tuple[str, dict[str, Any]]:
    name = request.headers["x-amz-target"].rpartition(".")[2]
    shape = _operation(model, name).input_shape
    return name, _from_json(shape, json.loads(request.body or b"{}")) if shape else {}


def _from_json(shape: Shape, value: Any) -> Any:
    if shape.type_name == "structure" and isinstance(value, dict):
        names = {m.serialization.get("name", k): k for k, m in shape.members.items()}
        return {names.get(k, k): _from_json(shape.members[names[k]], v) if k in names else v for k, v in value.items()}
    if shape.type_name == "list" and isinstance(value, list):
        return [_from_json(shape.member, v) for v in value]
    if shape.type_name == "map" and isinstance(value, dict):
        return {k: _from_json(shape.value, v) for k, v in value.items()}
    return base64.b64decode(value) if shape.type_name == "blob" else value


def _decode_rest(model: ServiceModel, request: Request) -> tuple[str, dict[str, Any]]:
    url = urlsplit(request.url)
    path = url.path
    bucket = re.match(r"(.+)\.s3[.-]", url.hostname or "")
    if model.service_name == "s3" and bucket:  # virtual-hosted style
        path = f"/{bucket[1]}{path.rstrip('/')}"
    for name, pattern in _routes(model.service_name):
        operation = model.operation_model(name)
        match = pattern.fullmatch(path) if operation.http["method"] == request.method else None
        if match:
            labels = {k: unquote(v) for k, v in match.groupdict().items()}
            return name, _rest_params(operation, labels, parse_qs(url.query, keep_blank_values=True), request)
    raise ApiError("UnknownOperationException", f"no operation {request.method} {path}", 404)


@functools.cache
def _routes(service: str) -> list[tuple[str, re.Pattern[str]]]:
    """Operations with the regular expression of their paths, those with most literal text first."""
    routes = []
    for name in service_model(service).operation_names:
        uri = service_model(service).operation_model(name).http["requestUri"].split("?")[0]
        pattern = re.sub(
            r"\{(\w+)\+?\}",
            lambda m: f"(?P<{m[1]}>[^/]+)",
            re.escape(uri).replace(r"\{", "{").replace(r"\}", "}").replace(r"\+", "+"),
        )
        routes.append((len(re.sub(r"\{.*?\}", "", uri)), name, re.compile(pattern)))
    return [(name, pattern) for _, name, pattern in sorted(routes, key=lambda r: -r[0])]


def _rest_params(
    operation: OperationModel, labels: dict[str, str], query: dict[str, list[str]], request: Request
) -> dict[str, Any]:
    shape, params = operation.input_shape, {}
    if shape is None:
        return {}
    for member, member_shape in shape.members.items():
        place, name = member_shape.serialization.get("location"), member_shape.serialization.get("name", member)
        if place == "uri" and name in labels:
            params[member] = _from_text(member_shape, labels[name])
        elif place == "querystring" and name in query:
            values = query[name]
            is_list = member_shape.type_name == "list"
            params[member] = values if is_list else _from_text(member_shape, values[0])
    if request.body and request.method != "GET":
        params |= _from_json(shape, json.loads(request.body))
    return params


def _decode_cbor(model: ServiceModel, request: Request) -> tuple[str, dict[str, Any]]:
    name = urlsplit(request.url).path.rpartition("/")[2]
    stream = io.BufferedReader(io.BytesIO(request.body or b"\xa0"))
    return name, RpcV2CBORParser().parse_data_item(stream)


_DECODERS = {
    "query": _decode_query,
    "ec2": _decode_query,
    "json": _decode_json,
    "rest-json": _decode_rest,
    "rest-xml": _decode_rest,
    "smithy-rpc-v2-cbor": _decode_cbor,
}

# --- responses ------------------------------------------------------------------------------------------------------


def encode(call: Decoded, result: dict[str, Any] | None, request_id: str) -> Response:
    """Encode an answer. A key that the output shape does not have is a fault of the double."""
    shape = call.operation.output_shape
    result = {k: v for k, v in (result or {}).items() if v is not None}
    if shape is not None:
        report = ParamValidator().validate(result, shape)
        if report.has_errors():
            raise AssertionError(f"the double's answer to {call.operation.name}: {report.generate_report()}")
    elif result:
        raise AssertionError(f"{call.operation.name} has no answer, the double gave {result}")
    headers = {"x-amzn-requestid": request_id}
    if call.protocol in ("json", "rest-json"):
        body = json.dumps(_to_json(shape, result) if shape else {}).encode()
        return Response(200, body, headers | {"content-type": "application/x-amz-json-1.1"})
    if call.protocol == "smithy-rpc-v2-cbor":
        packed = bytearray()
        RpcV2CBORSerializer()._serialize_data_item(packed, result, shape)
        return Response(200, bytes(packed), headers | {"smithy-protocol": "rpc-v2-cbor"})
    return Response(200, _xml_body(call, shape, result, request_id).encode(), headers | {"content-type": "text/xml"})


def _to_json(shape: Shape, value: Any) -> Any:
    if shape.type_name == "structure":
        members = shape.members
        pairs = ((members[k], k, v) for k, v in value.items() if v is not None)
        return {m.serialization.get("name", k): _to_json(m, v) for m, k, v in pairs}
    if shape.type_name == "list":
        return [_to_json(shape.member, v) for v in value]
    if shape.type_name == "map":
        return {k: _to_json(shape.value, v) for k, v in value.items()}
    return base64.b64encode(value).decode() if shape.type_name == "blob" else value


def _xml_body(call: Decoded, shape: Shape | None, result: dict[str, Any], request_id: str) -> str:
    name = call.operation.name
    inner = _members_to_xml(shape, result) if shape else ""
    if call.protocol == "rest-xml":
        return f"<{name}Response>{inner}</{name}Response>"
    if call.protocol == "ec2":
        return f"<{name}Response><requestId>{request_id}</requestId>{inner}</{name}Response>"
    wrapper = shape.serialization.get("resultWrapper") if shape else None
    inner = f"<{wrapper}>{inner}</{wrapper}>" if wrapper else inner
    metadata = f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    return f"<{name}Response>{inner}{metadata}</{name}Response>"


def _members_to_xml(shape: Shape, value: dict[str, Any]) -> str:
    parts = []
    for key, part in value.items():
        member = shape.members[key]
        if part is not None and member.serialization.get("location") is None:
            parts.append(_to_xml(member, part, member.serialization.get("name", key)))
    return "".join(parts)


def _to_xml(shape: Shape, value: Any, name: str) -> str:
    if shape.type_name == "structure":
        return f"<{name}>{_members_to_xml(shape, value)}</{name}>"
    if shape.type_name == "list":
        inner = shape.member.serialization.get("name", "member")
        if shape.serialization.get("flattened"):
            return "".join(_to_xml(shape.member, v, inner if inner != "member" else name) for v in value)
        return f"<{name}>{''.join(_to_xml(shape.member, v, inner) for v in value)}</{name}>"
    if shape.type_name == "map":
        entries = (f"<entry><key>{escape(k)}</key>{_to_xml(shape.value, v, 'value')}</entry>" for k, v in value.items())
        return f"<{name}>{''.join(entries)}</{name}>"
    if shape.type_name == "timestamp":
        value = datetime.datetime.fromtimestamp(value, datetime.UTC).isoformat(timespec="milliseconds")
    elif shape.type_name == "boolean":
        value = str(value).lower()
    return f"<{name}>{escape(str(value))}</{name}>"


def encode_error(protocol: str, error: ApiError, request_id: str) -> Response:
    code, message = escape(error.code), escape(error.message)
    headers = {"x-amzn-requestid": request_id}
    if protocol in ("json", "rest-json"):
        body = json.dumps({"__type": error.code, "message": error.message, "Message": error.message}).encode()
        return Response(error.status, body, headers | {"x-amzn-errortype": error.code})
    if protocol == "smithy-rpc-v2-cbor":
        fields = ("__type", error.code, "message", error.message)
        return Response(error.status, b"\xa2" + b"".join(map(_cbor_text, fields)), headers)
    inner = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
    if protocol == "ec2":
        inner = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        text = f"<Response><Errors>{inner}</Errors><RequestID>{request_id}</RequestID></Response>"
    else:
        text = f"<ErrorResponse>{inner}<RequestId>{request_id}</RequestId></ErrorResponse>"
    return Response(error.status, text.encode(), headers | {"content-type": "text/xml"})


def _cbor_text(text: str) -> bytes:
    return b"\x79" + len(text.encode()).to_bytes(2, "big") + text.encode()

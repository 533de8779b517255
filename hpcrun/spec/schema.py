"""JSON Schema of a job and of a cluster profile, as their files are read.

What a schema cannot know: the job under ``extends``, ``--set``, and how a number was spelled. It
accepts a file if there are such that make it right.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from itertools import combinations
from typing import Any, Literal

import msgspec.inspect as mi

from hpcrun.spec import rules
from hpcrun.spec.check import shape, takes_none, unwrap
from hpcrun.spec.job import Cluster, JobSpec

Schema = dict[str, Any]

_OWNED = {"pattern": f"^({rules.OWNED_VARIABLES})$"}
_GIVEN: Schema = {"not": {"type": "null"}}


def json_schema(kind: Literal["job", "cluster"]) -> Schema:
    """Describe the file format as JSON Schema 2020-12.

    >>> json_schema("job")["properties"]["resources"]["properties"]["gpus_per_node"]["minimum"]
    0
    """
    root = shape(JobSpec if kind == "job" else Cluster)
    body = _struct(root)
    properties = body["properties"]
    _keep_names(properties)
    if kind == "job":
        extends = _text(mi.StrType(pattern=r"[^\s]"))
        extends["description"] = (
            "the job that this one builds on, by name or path; this job's keys take precedence"
        )
        body["properties"] = {"extends": _or_null(extends), **properties}
        body["allOf"] = [
            *({"not": _has({a: _GIVEN, b: _GIVEN})} for a, b in combinations(rules.PROGRAMS, 2)),
            {"not": _has({"framework": {"const": "torch"}, "deepspeed": {"type": "object"}})},
            {"not": _has({"framework": {"const": "deepspeed"}, "deepspeed": {"type": "null"}})},
            {
                "if": _has({"extends": _GIVEN}),
                "else": {"allOf": [_no_nulls(root), *_offload_rules()]},
            },
        ]
    else:
        body["allOf"] = [_no_nulls(root)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **body,
        "title": "hpcrun job" if kind == "job" else "hpcrun cluster profile",
    }


def _struct(of: mi.StructType) -> Schema:
    return {
        "title": of.cls.__name__,
        "description": cleandoc(of.cls.__doc__ or ""),
        "type": "object",
        "properties": {field.encode_name: _or_null(_of(field.type)) for field in of.fields},
        "additionalProperties": False,
    }


def _of(declared: mi.Type) -> Schema:
    of, descriptions = unwrap(declared)
    schema = _plain(of)
    if descriptions:
        schema["description"] = descriptions[0]
    return schema


def _plain(of: mi.Type) -> Schema:
    if isinstance(of, mi.StructType):
        return _struct(of)
    if isinstance(of, mi.UnionType):
        words = [unwrap(member)[0] for member in of.types]
        for word in words:
            if isinstance(word, mi.LiteralType):
                return {"enum": [True, False, *word.values]}
        # Text or boolean; text takes unquoted booleans as they are written, so text says it all.
        kinds = mi.StrType | mi.ListType | mi.IntType
        made = [_plain(word) for word in words if isinstance(word, kinds)]
        return made[0] if len(made) == 1 else {"anyOf": made}
    if isinstance(of, mi.DictType):
        value = _of(of.value_type)
        key = unwrap(of.key_type)[0]
        schema: Schema = {"type": "object"}
        if isinstance(key, mi.StrType) and key.pattern:
            schema["propertyNames"] = {"pattern": key.pattern}
        if not isinstance(of.value_type, mi.AnyType):
            schema["additionalProperties"] = _or_null(value)
        return schema
    if isinstance(of, mi.ListType):
        least = {"minItems": of.min_length} if of.min_length else {}
        return {"type": "array", "items": _of(of.item_type), **least}
    if isinstance(of, mi.LiteralType):
        return {"enum": list(of.values)}
    if isinstance(of, mi.StrType):
        return _text(of)
    if isinstance(of, mi.IntType):
        bounds = {"minimum": of.ge, "maximum": of.le}
        return {"type": "integer", **{k: v for k, v in bounds.items() if v is not None}}
    return {"type": "boolean"} if isinstance(of, mi.BoolType) else {}


def _text(of: mi.StrType) -> Schema:
    """Text, and what is written without quotes and yet is text here: numbers and booleans."""
    if of.pattern is None:
        return {"type": ["string", "number", "boolean"]}
    samples = {"number": "1.5", "integer": "1", "boolean": "true"}
    kinds = ["string", *(kind for kind, text in samples.items() if re.search(of.pattern, text))]
    schema: Schema = {"type": kinds, "pattern": of.pattern}
    if "integer" in kinds and not re.search(of.pattern, "-1"):
        schema["minimum"] = 0
    return schema


def _or_null(schema: Schema) -> Schema:
    """Allow a null: not given, or what is below is removed."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {**schema, "type": [*kinds, "null"]}
    if "anyOf" in schema:
        first, *others = schema["anyOf"]
        return {**schema, "anyOf": [_or_null(first), *others]}
    return schema


def _keep_names(properties: dict[str, Schema]) -> None:
    """Add the names that hpcrun keeps for itself, as ``rules.check_names`` does."""
    nested = properties.get("nccl", {}).get("properties", {})
    for env in (properties["env"], nested.get("env")):
        if env:
            env["propertyNames"]["not"] = _OWNED
    if "secrets" in properties:
        properties["secrets"]["items"]["not"] = _OWNED
    properties["srun"]["properties"] = dict.fromkeys(rules.REFUSED_OF_SRUN, False)
    properties["slurm"]["properties"] = {
        **dict.fromkeys([*rules.FIELD_OF_NEEDED_OPTION, *rules.REFUSED], False),
        "gpu-bind": {"const": "none"},
        **{option: {"const": False} for option in rules.FIELD_OF_OPTION},
    }


def _no_nulls(of: mi.StructType) -> Schema:
    """Refuse nulls as values of the user's own keys: there is nothing that they could remove."""
    properties = {}
    for field in of.fields:
        inner = unwrap(field.type)[0]
        if isinstance(inner, mi.StructType):
            rule = _no_nulls(inner)
            if rule:
                properties[field.encode_name] = rule
        elif (
            isinstance(inner, mi.DictType)
            and not isinstance(unwrap(inner.value_type)[0], (mi.AnyType, mi.StructType))
            and not takes_none(inner.value_type)
        ):
            properties[field.encode_name] = {"additionalProperties": _GIVEN}
    return {"properties": properties} if properties else {}


def _has(properties: dict[str, Schema]) -> Schema:
    """Match a map that has all of these keys, each with such a value."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _offload_rules() -> list[Schema]:
    """Require the ZeRO stage that offload needs, as ``rules.check_deepspeed`` does."""
    found = []
    for part, devices, least in (
        ("param", ["cpu", "nvme"], 3),
        ("optimizer", ["cpu"], 1),
        ("optimizer", ["nvme"], 3),
    ):
        offloads = _has({"offload": _has({part: {"enum": devices}})})
        # Without zero_stage it is 2, or what a file of the user's own says.
        stage: Schema = {
            "properties": {"zero_stage": {"type": ["integer", "null"], "minimum": least}}
        }
        if least > 2:
            given = _has({"zero_stage": {"type": "integer", "minimum": least}})
            stage = {"anyOf": [given, {**_has({"config_file": _GIVEN}), **stage}]}
        wins = _stage_in_config({"type": "integer"})
        enough = {"if": wins, "then": _stage_in_config({"minimum": least}), "else": stage}
        found.append({"properties": {"deepspeed": {"if": offloads, "then": enough}}})
    return found


def _stage_in_config(stage: Schema) -> Schema:
    return _has({"config": _has({"zero_optimization": _has({"stage": stage})})})

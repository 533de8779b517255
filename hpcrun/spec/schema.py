"""Generate the JSON Schemas of job files, cluster profiles and pipelines.

A schema does not know the extended job, ``--set``, or the spelling of a number. It accepts every
file that can be valid with some of these.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from itertools import combinations
from typing import Any, Literal, get_args

import msgspec.inspect as mi

from hpcrun.spec import rules
from hpcrun.spec.check import accepts_none, describe_struct, unwrap
from hpcrun.spec.job import Cluster, JobSpec, Stage, StageName
from hpcrun.spec.load import ARGUMENT_KEYS

Schema = dict[str, Any]

_OWNED = {"pattern": f"^({rules.OWNED_VARIABLES})$"}
_NOT_NULL: Schema = {"not": {"type": "null"}}


def json_schema(kind: Literal["job", "cluster"]) -> Schema:
    """Describe the file format as JSON Schema 2020-12.

    >>> json_schema("job")["properties"]["resources"]["properties"]["gpus_per_node"]["minimum"]
    0
    """
    root = describe_struct(JobSpec if kind == "job" else Cluster)
    body = _describe_fields(root)
    properties = body["properties"]
    _forbid_reserved_names(properties)
    if kind == "job":
        extends = _describe_text(mi.StrType(pattern=r"[^\s]"))
        extends["description"] = (
            "the job that this one builds on, by name or path; this job's keys take precedence"
        )
        body["properties"] = {"extends": _allow_null(extends), **properties}
        for key in ARGUMENT_KEYS:
            properties[key] = _allow_arguments(properties[key])
        body["properties"] |= properties
        body["allOf"] = [
            *(
                {"not": _require_keys({a: _NOT_NULL, b: _NOT_NULL})}
                for a, b in combinations(rules.PROGRAMS, 2)
            ),
            {
                "not": _require_keys(
                    {"framework": {"const": "torch"}, "deepspeed": {"type": "object"}}
                )
            },
            {
                "not": _require_keys(
                    {"framework": {"const": "deepspeed"}, "deepspeed": {"type": "null"}}
                )
            },
            {
                "if": _require_keys({"extends": _NOT_NULL}),
                "else": {"allOf": [_forbid_nulls(root), *_build_offload_rules()]},
            },
        ]
    else:
        body["allOf"] = [_forbid_nulls(root)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **body,
        "title": "hpcrun job" if kind == "job" else "hpcrun cluster profile",
    }


def pipeline_schema() -> Schema:
    """Describe the format of pipelines as JSON Schema 2020-12.

    >>> pipeline_schema()["additionalProperties"]["required"]
    ['job']
    """
    stage = _describe_fields(describe_struct(Stage))
    properties = stage["properties"]
    properties["args"] = _allow_arguments(properties["args"])
    listed = properties["after"]
    properties["after"] = {
        "description": listed.pop("description"),
        "anyOf": [listed, listed["items"]],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hpcrun pipeline",
        "description": "The stages of a pipeline by name.",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": get_args(StageName)[1].pattern},
        "additionalProperties": {**stage, "required": ["job"]},
    }


def _describe_fields(of: mi.StructType) -> Schema:
    return {
        "title": of.cls.__name__,
        "description": cleandoc(of.cls.__doc__ or ""),
        "type": "object",
        "properties": {
            field.encode_name: _allow_null(_describe_field(field.type)) for field in of.fields
        },
        "additionalProperties": False,
    }


def _describe_field(declared: mi.Type) -> Schema:
    of, descriptions = unwrap(declared)
    schema = _describe_type(of)
    if descriptions:
        schema["description"] = descriptions[0]
    return schema


def _describe_type(of: mi.Type) -> Schema:
    if isinstance(of, mi.StructType):
        return _describe_fields(of)
    if isinstance(of, mi.UnionType):
        words = [unwrap(member)[0] for member in of.types]
        for word in words:
            if isinstance(word, mi.LiteralType):
                return {"enum": [True, False, *word.values]}
        # In a union with text, the schema of text already accepts booleans.
        kinds = mi.StrType | mi.ListType | mi.IntType | mi.DictType
        made = [_describe_type(word) for word in words if isinstance(word, kinds)]
        return made[0] if len(made) == 1 else {"anyOf": made}
    if isinstance(of, mi.DictType):
        value = _describe_field(of.value_type)
        key = unwrap(of.key_type)[0]
        schema: Schema = {"type": "object"}
        if isinstance(key, mi.StrType) and key.pattern:
            schema["propertyNames"] = {"pattern": key.pattern}
        if isinstance(key, mi.LiteralType):
            schema["propertyNames"] = {"enum": list(key.values)}
        if not isinstance(of.value_type, mi.AnyType):
            schema["additionalProperties"] = _allow_null(value)
        return schema
    if isinstance(of, mi.ListType):
        least = {"minItems": of.min_length} if of.min_length else {}
        return {"type": "array", "items": _describe_field(of.item_type), **least}
    if isinstance(of, mi.LiteralType):
        return {"enum": list(of.values)}
    if isinstance(of, mi.StrType):
        return _describe_text(of)
    if isinstance(of, mi.IntType):
        bounds = {"minimum": of.ge, "maximum": of.le}
        return {"type": "integer", **{k: v for k, v in bounds.items() if v is not None}}
    if isinstance(of, mi.FloatType):
        return {"type": "number", **({} if of.ge is None else {"minimum": of.ge})}
    return {"type": "boolean"} if isinstance(of, mi.BoolType) else {}


def _describe_text(of: mi.StrType) -> Schema:
    """Describe text, which unquoted numbers and booleans also are in a text field."""
    if of.pattern is None:
        return {"type": ["string", "number", "boolean"]}
    samples = {"number": "1.5", "integer": "1", "boolean": "true"}
    kinds = ["string", *(kind for kind, text in samples.items() if re.search(of.pattern, text))]
    schema: Schema = {"type": kinds, "pattern": of.pattern}
    if "integer" in kinds and not re.search(of.pattern, "-1"):
        schema["minimum"] = 0
    return schema


def _allow_null(schema: Schema) -> Schema:
    """Allow a null, which means that the key is missing or removes the inherited value."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {**schema, "type": [*kinds, "null"]}
    if "anyOf" in schema:
        first, *others = schema["anyOf"]
        return {**schema, "anyOf": [_allow_null(first), *others]}
    return schema


def _allow_arguments(schema: Schema) -> Schema:
    """Allow a list of arguments to be a map of options, or one text as in a shell."""
    word: Schema = {"type": ["string", "number", "boolean"]}
    values: Schema = {"type": ["string", "number"]}
    options = {"anyOf": [values, {"const": True}, {"type": "array", "items": word}]}
    about = {"description": schema["description"]} if "description" in schema else {}
    return {
        **about,
        "anyOf": [
            {key: value for key, value in schema.items() if key != "description"},
            word,
            {"type": "object", "additionalProperties": options},
        ],
    }


def _forbid_reserved_names(properties: dict[str, Schema]) -> None:
    """Forbid the reserved names, as ``rules.check_names`` does."""
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


def _forbid_nulls(of: mi.StructType) -> Schema:
    """Forbid nulls under user-defined keys if there is no extended job to remove values from."""
    properties = {}
    for field in of.fields:
        inner = unwrap(field.type)[0]
        if isinstance(inner, mi.StructType):
            rule = _forbid_nulls(inner)
            if rule:
                properties[field.encode_name] = rule
        elif (
            isinstance(inner, mi.DictType)
            and not isinstance(unwrap(inner.value_type)[0], (mi.AnyType, mi.StructType))
            and not accepts_none(inner.value_type)
        ):
            properties[field.encode_name] = {"additionalProperties": _NOT_NULL}
    return {"properties": properties} if properties else {}


def _require_keys(properties: dict[str, Schema]) -> Schema:
    """Match a map that has all of these keys with matching values."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _build_offload_rules() -> list[Schema]:
    """Require the ZeRO stage that offload needs, as ``rules.check_deepspeed`` does."""
    found = []
    for part, devices, least in (
        ("param", ["cpu", "nvme"], 3),
        ("optimizer", ["cpu"], 1),
        ("optimizer", ["nvme"], 3),
    ):
        offloads = _require_keys({"offload": _require_keys({part: {"enum": devices}})})
        # Without zero_stage, the stage is 2 or set by the user's own file.
        stage: Schema = {
            "properties": {"zero_stage": {"type": ["integer", "null"], "minimum": least}}
        }
        if least > 2:
            given = _require_keys({"zero_stage": {"type": "integer", "minimum": least}})
            stage = {"anyOf": [given, {**_require_keys({"config_file": _NOT_NULL}), **stage}]}
        wins = _stage_in_config({"type": "integer"})
        enough = {"if": wins, "then": _stage_in_config({"minimum": least}), "else": stage}
        found.append({"properties": {"deepspeed": {"if": offloads, "then": enough}}})
    return found


def _stage_in_config(stage: Schema) -> Schema:
    return _require_keys(
        {"config": _require_keys({"zero_optimization": _require_keys({"stage": stage})})}
    )

"""The documented JSON of each verb: docs/json/VERB.schema.json, checked strictly."""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from tests.source import ROOT

FOLDER = ROOT / "docs" / "json"


def load_schema(verb: str) -> Any:
    """The schema of what ``hpcrun VERB --json`` prints."""
    return json.loads((FOLDER / f"{verb}.schema.json").read_text())


def check_json(verb: str, value: Any) -> None:
    """Fail for a value that the verb's schema does not describe, unknown keys included."""
    jsonschema.Draft202012Validator(closed(load_schema(verb))).validate(value)


def closed(schema: Any) -> Any:
    """Forbid keys that a schema does not name: users may see more of them later, tests may not."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and "additionalProperties" not in schema:
        made["additionalProperties"] = False
    return made

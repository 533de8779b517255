"""The JSON Schema accepts the same files as the reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.errors import SpecError
from hpcrun.spec.load import load_cluster
from hpcrun.spec.schema import json_schema
from hpcrun.spec.yaml12 import Node, parse_core_value, parse_document
from tests.spec.reading import read

JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))
VALIDATORS = {
    kind: jsonschema.Draft202012Validator(json_schema(kind)) for kind in ("job", "cluster")
}


def as_data(node: Node) -> Any:
    """Return the value of a file according to a YAML 1.2 reader."""
    if isinstance(node.value, dict):
        return {key: as_data(inner) for key, inner in node.entries.items()}
    if isinstance(node.value, list):
        return [as_data(item) for item in node.items]
    return parse_core_value(node.text) if node.plain else node.text


def conforms(text: str, kind: Literal["job", "cluster"]) -> bool:
    valid: bool = VALIDATORS[kind].is_valid(as_data(parse_document(text, "f", [])))
    return valid


def loads(text: str, kind: Literal["job", "cluster"]) -> bool:
    try:
        if kind == "job":
            read(text, files={"base": "env: {A: 1}\nslurm: {qos: x}\ndeepspeed: {zero_stage: 3}"})
        else:
            load_cluster(text, source="f")
    except SpecError:
        return False
    return True


@pytest.mark.parametrize("kind", ["job", "cluster"])
def test_schema_is_a_valid_schema(kind: Literal["job", "cluster"]) -> None:
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert json.loads(json.dumps(schema)) == schema


def objects(schema: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, inner in schema.get("properties", {}).items():
        if isinstance(inner, dict) and "const" not in inner:
            yield f"{path}.{name}", inner
            yield from objects(inner, f"{path}.{name}")


@pytest.mark.parametrize("kind", ["job", "cluster"])
def test_every_key_is_described_and_no_other_is_allowed(kind: Literal["job", "cluster"]) -> None:
    found = dict(objects(json_schema(kind), kind))
    assert len(found) > 15
    assert [path for path, schema in found.items() if not schema.get("description")] == []
    closed = [path for path, schema in found.items() if "title" in schema]
    assert all(found[path]["additionalProperties"] is False for path in closed)
    assert json_schema(kind)["additionalProperties"] is False


VALID = [
    "",
    "script: a.py\nargs: [--lr, 1e-4, true, 3, '']",
    "resources: {nodes: 8.0, time: 24:00:00, account: 012345, memory_per_node: 200G}",
    "resources: {time: 90, memory_per_node: 1000}",
    "resources: {time: 24h}",
    "resources: {time: 1d12h}\nsurvive: {stalled_after: 1h30m}",
    "resources:\nargs: ~\nsnapshot: null\nprecision:",
    "extends: base\nenv: {A: }",
    "env: {A: ~}",
    "nccl: {env: {A: null}}",
    "extends: base\nslurm: {qos: }\ndeepspeed: {offload: {param: cpu}}",
    "framework: deepspeed\ndeepspeed: {config: {a: 1, b: {c: [~]}}}",
    "framework: torch\ndeepspeed:",
    "deepspeed: {zero_stage: 3, offload: {param: cpu}}",
    "deepspeed: {zero_stage: , offload: {optimizer: cpu}}",
    "deepspeed: {offload: {param: cpu}, config: {zero_optimization: {stage: 3}}}",
    "env: {A: 1, b_2: x, C: true}",
    "slurm: {qos: high, exclusive: true, gres: false, nice: 10}",
    "secrets: [A]",
    "script: a\nmodule:",
    "name: 7",
]
INVALID = [
    "scrpt: a.py",
    "script: a.py\nmodule: b",
    "module: a\ncommand: [b]",
    "resources: {nodes: 0}",
    "resources: {nodes: '8'}",
    "resources: {nodes: 1.5}",
    "resources: {nodes: true}",
    "resources: {time: 24x}",
    "resources: {time: 12h1d}",
    "resources: {time: 1.5}",
    "resources: {time: -1}",
    "resources: {time: true}",
    "snapshot: no",
    "snapshot: 'true'",
    "launcher: no-such-launcher",
    "command: []",
    "command: x",
    "args: [~]",
    "args: [{run_dir}]",
    "env: {A: {}}",
    "env: {'2x': x}",
    "env: {RANK: 0}",
    "nccl: {env: {HPCRUN_X: 0}}",
    "secrets: [WORLD_SIZE]",
    "secrets: ['A=b']",
    "slurm: {nodes: 2}",
    "slurm: {nodes: false}",
    "slurm: {gres: gpu:4}",
    "slurm: {qos: ''}",
    "slurm: {qos: }",
    "slurm: {--qos: x}",
    "name: ''",
    'name: "a\\nb"',
    "script: ''",
    "framework: torch\ndeepspeed: {}",
    "extends: base\nframework: torch\ndeepspeed: {}",
    "extends: ''",
    "extends: [base]",
    "deepspeed: {offload: {param: cpu}}",
    "deepspeed: {zero_stage: 0, offload: {optimizer: cpu}}",
    "deepspeed: {zero_stage: 3, offload: {param: cpu}, config: {zero_optimization: {stage: 2}}}",
    "deepspeed: {config: []}",
    "batch: 3",
]
VALID_CLUSTERS = [
    "",
    "name: x\npartitions: {gpu: {gpus_per_node: 4, max_time: 2-00}, cpu: }",
    "read_on: 2026-11-20\naccount: 01\ninternet: false",
    "gpu_types: {a100: {gres: a100}}\nslurm: {account: false, qos: x}\nenv: {A: b}",
]
INVALID_CLUSTERS = [
    "extends: base",
    "internet: no",
    "partitions: {gpu: 4}",
    "partitions: {gpu: {hosts: 4}}",
    "slurm: {partition: x}",
    "env: {MASTER_PORT: 1}",
    "fabric: myrinet",
]


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        *((text, "job", True) for text in VALID),
        *((text, "job", False) for text in INVALID),
        *((text, "cluster", True) for text in VALID_CLUSTERS),
        *((text, "cluster", False) for text in INVALID_CLUSTERS),
    ],
)
def test_schema_and_reader_agree_on_examples(
    text: str, kind: Literal["job", "cluster"], expected: bool
) -> None:
    assert (loads(text, kind), conforms(text, kind)) == (expected, expected)


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.stem)
def test_every_preset_conforms_to_the_schema(job: Path) -> None:
    assert conforms(job.read_text(), "job")


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw almost valid files: each key has one of a few valid and invalid values."""
    words: st.SearchStrategy[Any] = st.sampled_from(
        ["a", "1e-4", "", "x\ny", 3, 1.5, True, None, [], {}]
    )
    texts = st.lists(words, max_size=2)
    env = st.dictionaries(st.sampled_from(["A", "RANK", "2x", "HPCRUN_A"]), words, max_size=1)
    zero = st.sampled_from([{}, {"zero_optimization": {"stage": 3}}, {"zero_optimization": 1}])
    keys: dict[str, st.SearchStrategy[Any]] = {
        "script": words,
        "module": words,
        "command": texts | words,
        "args": texts,
        "framework": st.sampled_from(["torch", "deepspeed", "lightning", None, 1]),
        "resources": st.fixed_dictionaries(
            {}, optional={"nodes": words, "account": words, "time": words | st.just("1-2")}
        ),
        "deepspeed": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "zero_stage": st.sampled_from([0, 1, 2, 3, 4, 3.0, None, "3"]),
                "offload": st.dictionaries(
                    st.sampled_from(["param", "optimizer"]), st.sampled_from(["cpu", "none", None])
                ),
                "config": zero,
            },
        ),
        "env": env,
        "nccl": st.fixed_dictionaries({}, optional={"env": env}),
        "secrets": st.lists(st.sampled_from(["A", "RANK", "", 1]), max_size=1),
        "slurm": st.dictionaries(
            st.sampled_from(["qos", "gres", "nodes", "q"]), words | st.just(False), max_size=1
        ),
        "snapshot": words,
        "other": words,
    }
    chosen = draw(st.lists(st.sampled_from(sorted(keys)), unique=True, max_size=3))
    return {key: draw(keys[key]) for key in chosen}


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(jobs())
def test_schema_and_reader_agree_on_random_files(data: dict[str, Any]) -> None:
    text = json.dumps(data)
    assert conforms(text, "job") == loads(text, "job")

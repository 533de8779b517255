"""GPU capabilities by the model names of many sites, and the precision derived from them."""

from __future__ import annotations

import pytest

from hpcrun.errors import SpecError
from hpcrun.plan.gpus import has_bf16, is_mig
from tests.plan.making import plan, variables

WITHOUT = """
v100 V100 v100-32 v100_32g V100-SXM2-32GB tesla_v100 Tesla-V100-PCIE-16GB tesla_v100-sxm2-16gb
v100s v100l nvidia_v100 volta t4 T4 tesla_t4 nvidia-tesla-t4 nvidia_t4 turing p100
P100-PCIE-16GB tesla_p100 tesla_p40 p4 k80 tesla_k80 k40m k20 m40 m60 gtx_1080_ti gtx1080ti
GTX1080Ti 1080ti gtx_1080 geforce_gtx_1080_ti nvidia_geforce_gtx_1080 gtx980 gtx_titan_x
titan_xp titanv titan_rtx TITAN-RTX rtx_2080_ti rtx2080ti 2080ti rtx_2080 RTX2080
nvidia_geforce_rtx_2080_ti geforce_rtx_2070_super rtx8000 quadro_rtx_8000 quadro_rtx_6000
quadro-rtx-5000 pascal gv100 mi50 mi60 gtx1660 p6000
"""
WITH = """
a100 A100 A100-SXM4-80GB a100-40gb a100_80gb nvidia_a100 nvidia_a100-pcie-40gb a100_1g.5gb
a100-sxm a30 a40 a10 a10g a16 a2 rtx_a6000 rtxa6000 a6000 a5000 rtx_a4000 l4 l40 l40s
nvidia_l40s h100 H100 h100_nvl h100-sxm5-80gb nvidia_h100_80gb_hbm3 h200 gh200 b200 gb200 b300
hopper ampere ada blackwell rtx_3090 rtx3090 3090 geforce_rtx_3080_ti rtx_4090 rtx4090 5090
rtx_6000_ada rtx_pro_6000 mi100 mi210 mi250 mi250x mi300x mi300a instinct_mi250x 1g.5gb 3g.20gb
"""
UNKNOWN = "gpu fast big titan rtx6000 rtx_6000 x100 node nvlink tpu"


@pytest.mark.parametrize(
    ("names", "answer"), [(WITHOUT, False), (WITH, True), (UNKNOWN, None)], ids=["no", "yes", "?"]
)
def test_bf16_support_is_derived_from_site_specific_gpu_names(
    names: str, answer: bool | None
) -> None:
    assert {name: has_bf16(name) for name in names.split()} == dict.fromkeys(names.split(), answer)


def test_mig_slices_are_distinguished_from_memory_sizes() -> None:
    slices = "1g.5gb a100_3g.20gb nvidia_a100_1g.5gb 1g.10gb+me h100_2g.24gb mig a100-mig 4g.40gb"
    slices += " a100_1g5gb 1c.3g.20gb MIG-1g.5gb"
    assert [name for name in slices.split() if not is_mig(name)] == []
    whole = "a100 a100-40gb a100_80gb v100-32gb h100-80gb-hbm3 migration rtx3090"
    assert [name for name in whole.split() if is_mig(name)] == []


TYPES = """
gpu_types:
  v100: {}
  old: {gres: tesla_t4}
  special: {gres: v100, bf16: true}
  slow: {gres: a100, bf16: false}
  a100: {constraint: ampere}
  thing: {gres: thing}
"""


@pytest.mark.parametrize(
    ("gpu_type", "profile", "precision"),
    [
        ("v100", "", "fp16"),
        ("tesla_t4", "", "fp16"),
        ("a100", "", "bf16"),
        ("thing", "", "bf16"),
        ("v100", TYPES, "fp16"),
        ("old", TYPES, "fp16"),
        ("special", TYPES, "bf16"),
        ("slow", TYPES, "fp16"),
        ("a100", TYPES, "bf16"),
        (None, TYPES, "bf16"),
        (None, "gpu_types: {v100: {}, t4: {}}", "fp16"),
        (None, "gpu_types: {'*': {}}", "bf16"),
        ("v100", "accelerator: cpu", "bf16"),
    ],
)
def test_default_precision_follows_from_the_gpu_type(
    gpu_type: str | None, profile: str, precision: str
) -> None:
    asked = f"resources: {{gpu_type: {gpu_type}}}\n" if gpu_type else ""
    made = plan(f"script: a.py\ndeepspeed: {{zero_stage: 2}}\n{asked}", profile)
    assert made.precision == precision == variables(made)["HPCRUN_PRECISION"]
    assert made.deepspeed_config is not None
    assert made.deepspeed_config[precision]["enabled"] is True
    own = plan(f"script: a.py\nprecision: fp32\n{asked}", profile)
    assert own.precision == "fp32"


def test_precision_of_deepspeed_config_is_checked_against_the_gpu() -> None:
    made = plan("script: a.py\ndeepspeed: {config: {fp16: {enabled: true}}}")
    assert made.precision == "fp16" == variables(made)["HPCRUN_PRECISION"]
    with pytest.raises(SpecError, match="bf16, and v100 has no bf16 units"):
        plan(
            "script: a.py\nresources: {gpu_type: v100}\n"
            "deepspeed: {config: {bf16: {enabled: true}}}"
        )


def test_bf16_is_refused_on_gpus_without_bf16_units() -> None:
    text = "script: a.py\nprecision: bf16\nresources: {gpu_type: v100}"
    with pytest.raises(SpecError) as caught:
        plan(text)
    assert "precision: bf16, and v100 has no bf16 units; set fp16" in str(caught.value)
    assert plan(text, "gpu_types: {v100: {bf16: true}}").precision == "bf16"


@pytest.mark.parametrize(
    ("text", "profile", "checked"),
    [
        ("script: a.py\nprecision: bf16", "", True),
        ("script: a.py\ndeepspeed: {}", "", True),
        ("script: a.py\nframework: accelerate\nprecision: bf16", "", True),
        ("script: a.py\nframework: accelerate", "", False),
        ("script: a.py\nframework: transformers\ndeepspeed: {}", "", False),
        ("script: a.py\nargs: ['{precision}']", "", True),
        ("script: a.py\nenv: {DTYPE: '{precision}'}", "", True),
        ("{}", "", True),
        # The script does not read hpcrun's decision and chooses its own precision.
        ("script: a.py", "", False),
        ("command: [nvidia-smi]", "", False),
        ("script: a.py\nprecision: fp16", "", False),
        ("script: a.py\nprecision: bf16\nresources: {gpu_type: a100}", "", False),
        ("script: a.py\nprecision: bf16\nresources: {gpus_per_node: 0}", "", False),
        ("script: a.py\nprecision: bf16", "accelerator: cpu", False),
    ],
)
def test_unknown_gpus_are_checked_for_bf16_on_the_node(
    text: str, profile: str, checked: bool
) -> None:
    assert ("HPCRUN_NEEDS_BF16" in variables(plan(text, profile))) is checked


def test_gpus_dropped_by_torch_have_a_note() -> None:
    def notes(gpu_type: str) -> list[str]:
        made = plan(f"script: a.py\nresources: {{gpu_type: {gpu_type}}}")
        return [note for note in made.notes if "cu126" in note]

    assert len(notes("tesla_v100-sxm2-16gb")) == len(notes("p100")) == 1
    assert notes("t4") == notes("a100") == []


def test_default_gpu_type_of_the_profile_applies_to_jobs_without_one() -> None:
    profile = (
        "gpu_type: h100\n"
        "partitions: {p: {gpus_per_node: 4, cpus_per_node: 48, memory_per_node: 400G}}\n"
        "gpu_types:\n"
        "  h100: {gres: h100}\n"
        "  small: {gres: 1g.10gb, cpus_per_gpu: 2, memory_per_gpu: 9G}\n"
    )

    def asked(resources: str) -> dict[str, str | None]:
        given = dict(plan(f"script: a.py\nresources: {{{resources}}}", profile).directives)
        return {key: given.get(key) for key in ("gres", "cpus-per-task", "mem")}

    assert asked("gpus_per_node: 2")["gres"] == "gpu:h100:2"
    assert asked("gpu_type: small") == {
        "gres": "gpu:1g.10gb:1", "cpus-per-task": "2", "mem": "9216M",
    }  # fmt: skip
    assert asked("gpus_per_node: 0")["gres"] is None

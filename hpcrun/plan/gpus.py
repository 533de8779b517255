"""Capabilities of GPUs by the name of their type, in any site's spelling."""

from __future__ import annotations

import re

from msgspec import structs

from hpcrun.plan.findings import Findings
from hpcrun.plan.types import Section
from hpcrun.spec import Cluster, GpuType, JobSpec

# Models by architecture, as they appear in names reduced to letters and digits.
_ARCHITECTURES = {
    "kepler": r"k[1248]0m?|kepler",
    "maxwell": r"m(4|6|10|40|60)|(geforce)?(gtx)?9[5678]0(ti)?|(geforce)?(gtx)?titanx|maxwell",
    "pascal": r"p(4|40|100)|gp100|(quadro)?p[12456]000|(geforce)?(gtx)?10[5678]0(ti)?|titanxp"
    r"|pascal",
    "volta": r"v100[sl]?|gv100|titanv|volta",
    "turing": r"t4g?|(geforce)?(rtx)?20[678]0(ti|s|super)?|(geforce)?(gtx)?16[56]0(ti|s|super)?"
    r"|titanrtx|quadrortx[4568]000|rtx8000|turing",
    "ampere": r"a(2|10g?|16|30|40|100|800)|(rtx)?a[2456][05]00|(geforce)?(rtx)?30[5-9]0(ti)?"
    r"|ampere",
    "ada": r"l(2|4|20|40s?)|(geforce)?(rtx)?40[5-9]0(ti|s|super|d)?|rtx[0-9]+ada|ada|lovelace",
    "hopper": r"g?h(20|100|200|800)|hopper",
    "blackwell": r"g?b[123]00|(geforce)?(rtx)?50[5-9]0(ti|d)?|rtxpro[0-9]+|blackwell",
    "gcn": r"mi(25|50|60)",
    "cdna": r"mi(100|2[15]0x?|3[0-9]{2}[ax]?)",
}
# bf16 units exist from compute capability 8.0 (CUDA C++ Programming Guide, Arithmetic Instructions)
# and from AMD's CDNA on.
_WITHOUT_BF16 = ("kepler", "maxwell", "pascal", "volta", "turing", "gcn")
# torch >= 2.11 has no kernels for them in its builds for CUDA 12.8 and later (pytorch#172352).
_LEFT_BY_TORCH = ("kepler", "maxwell", "pascal", "volta")
_MIG = re.compile(r"(?<![0-9a-z])([0-9]c[._-]?)?[0-9]g[._-]?[0-9]+gb|(?<![a-z])mig(?![a-z])")
_VENDORS = {"nvidia", "amd", "gpu", "tesla", "instinct", "gres"}


def is_mig(name: str) -> bool:
    """Return True if a type's name is that of a MIG slice.

    >>> [is_mig(name) for name in ("1g.5gb", "a100_3g.20gb", "a100", "a100-40gb")]
    [True, True, False, False]
    """
    return _MIG.search(name.lower()) is not None


def architecture(name: str) -> str | None:
    """Return a type's architecture; None for an unknown name.

    >>> [architecture(name) for name in ("V100-SXM2-32GB", "tesla_t4", "rtx2080ti", "fastgpu")]
    ['volta', 'turing', 'turing', None]
    """
    return _find_model(name)[0] or (
        "ampere" if is_mig(name) else None
    )  # MIG exists from the A100 on


def model(name: str) -> str | None:
    """Return a type's model, such as h100; None for an unknown name.

    >>> [model(name) for name in ("nvidia_a100-sxm4-80gb", "Tesla_V100-PCIE", "gpu-h100", "fast")]
    ['a100', 'v100', 'h100', None]
    """
    return _find_model(name)[1]


def _find_model(name: str) -> tuple[str | None, str | None]:
    """Find architecture and model by the longest known sequence of words in a name."""
    words = [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _VENDORS]
    for length in (4, 3, 2, 1):  # the longest: "titan xp" before "titan"
        for start in range(len(words) - length + 1):
            word = "".join(words[start : start + length])
            for found, models in _ARCHITECTURES.items():
                if re.fullmatch(models, word):  # compiled on first use, because few jobs need it
                    return found, word
    return None, None


def has_bf16(name: str) -> bool | None:
    """Return True if a type has bf16 units; None for an unknown name.

    >>> [has_bf16(name) for name in ("v100", "a100_3g.20gb", "fastgpu")]
    [False, True, None]
    """
    found = architecture(name)
    return None if found is None else found not in _WITHOUT_BF16


def with_gpu_type(spec: JobSpec, cluster: Cluster) -> JobSpec:
    """Return the job with the profile's GPU type if it has GPUs and names no type."""
    resources = spec.resources
    if resources.gpu_type or not resources.gpus_per_node or not cluster.gpu_type:
        return spec
    return structs.replace(spec, resources=structs.replace(resources, gpu_type=cluster.gpu_type))


def _types_of(spec: JobSpec, cluster: Cluster) -> list[tuple[GpuType, list[str]]]:
    """Return each GPU type that the job may get, with the profile's and the site's name for it."""
    types = cluster.gpu_types
    if wanted := spec.resources.gpu_types:
        types = {one: types.get(one) or types.get("*") or GpuType() for one in wanted}
    return [
        (one, [word for word in (name, one.gres, one.constraint) if word and word != "*"])
        for name, one in types.items()
    ]


def _bf16_of(spec: JobSpec, cluster: Cluster) -> bool | None:
    """Return True if all GPUs that the job may get have bf16 units; None: unknown, or only some."""
    answers = set()
    for one, names in _types_of(spec, cluster):
        known = [one.bf16] if one.bf16 is not None else [has_bf16(name) for name in names]
        answers.add(next((answer for answer in known if answer is not None), None))
    return answers.pop() if len(answers) == 1 else None


def decide_precision(spec: JobSpec, cluster: Cluster, found: Findings) -> str:
    """Decide the number format: the job's, else bf16, or fp16 on GPUs without bf16 units."""
    lacks = cluster.accelerator == "cuda" and _bf16_of(spec, cluster) is False
    if spec.precision is None:
        return "fp16" if lacks else "bf16"
    if spec.precision == "bf16" and lacks:
        kind = ", ".join(spec.resources.gpu_types or cluster.gpu_types)
        found.refuse("precision", f"bf16, and {kind} has no bf16 units; set fp16, or leave it out")
    return spec.precision


def gpu_notes(spec: JobSpec, cluster: Cluster) -> list[str]:
    """Return notes about the GPUs that the job requests."""
    types = _types_of(spec, cluster) if spec.resources.gpu_types else []
    old = [names[0] for _, names in types if any(architecture(n) in _LEFT_BY_TORCH for n in names)]
    if not old:
        return []
    return [
        f"{', '.join(old)}: torch 2.11 and later runs on it only as a build for CUDA 12.6 (cu126)"
    ]


def gpu_section(spec: JobSpec, cluster: Cluster, precision: str) -> Section | None:
    """Let the harness check each node's GPUs if the plan does not know their capabilities."""
    if precision != "bf16" or cluster.accelerator == "cpu" or _bf16_of(spec, cluster):
        return None
    return Section(
        block="environment",
        title="GPUs",
        variables={"HPCRUN_NEEDS_BF16": "1"},
        reasons={"HPCRUN_NEEDS_BF16": "the harness stops on GPUs without"},
    )

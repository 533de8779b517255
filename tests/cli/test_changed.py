"""Messages name --set as the source of a problem, even if it is found later."""

from __future__ import annotations

from tests.cli.calling import Caller
from tests.cli.job_checks import errors, set_profile

PLAIN = "script: train.py\nresources: {nodes: 1, gpus_per_node: 1}"
TOLD = "precision: bf16, and v100 has no bf16 units; set fp16, or leave it out"


def test_problem_of_an_override_names_set_instead_of_the_file(hpcrun: Caller) -> None:
    set_profile(hpcrun, "python3")
    profile = hpcrun.project / "hpcrun.yaml"
    profile.write_text(profile.read_text() + "gpu_types: {v100: {gres: v100}}\n")
    hpcrun.write("train.py", "")
    hpcrun.write("ds.json", '{"fp16": {"enabled": true}}')
    assert errors(hpcrun, f"{PLAIN}\nprecision: bf16") == [TOLD]
    assert errors(hpcrun, PLAIN, "--set", "precision=bf16") == [f"error: --set: {TOLD}"]
    sweep = f'{PLAIN}\nargs: ["{{lr}}"]\nsweep: {{lr: [1, 2]}}'
    assert errors(hpcrun, sweep, "--set", "precision=bf16") == [f"error: --set: {TOLD}"]
    deepspeed = f"{PLAIN}\nframework: deepspeed\ndeepspeed: {{config_file: ds.json}}"
    found = errors(hpcrun, deepspeed, "--set", "precision=fp32")
    assert len(found) == 1 and found[0].endswith("precision: fp16 (--set precision)"), found

"""Fixes with the numbers of a job: commands that can be typed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from hpcrun.why.rule import Cause

# The name of a job that has none on the command line.
PLACEHOLDER = "JOB"
# The default time limit if the job states none, in seconds.
_DEFAULT_LIMIT_S = 43200
# Fixes that begin so are of no use for a job that hpcrun did not submit.
_ONLY_OWN_JOBS = (
    "`--set",
    "`setup:",
    "`resources.",
    "`survive:",
    "`hpcrun submit",
    "`local_dir:",
)
# Modules that are often misspelled or imported by a name that differs from the package's.
_KNOWN_MODULES = {
    "accelerate",
    "apex",
    "bitsandbytes",
    "cv2",
    "datasets",
    "deepspeed",
    "diffusers",
    "einops",
    "evaluate",
    "flash_attn",
    "huggingface_hub",
    "hydra",
    "jax",
    "lightning",
    "matplotlib",
    "mpi4py",
    "numba",
    "numpy",
    "omegaconf",
    "onnx",
    "pandas",
    "peft",
    "PIL",
    "pyarrow",
    "pydantic",
    "pytorch_lightning",
    "ray",
    "requests",
    "safetensors",
    "scipy",
    "seaborn",
    "sentencepiece",
    "skimage",
    "sklearn",
    "tensorboard",
    "tensorflow",
    "timm",
    "tokenizers",
    "torch",
    "torchaudio",
    "torchmetrics",
    "torchvision",
    "tqdm",
    "transformers",
    "triton",
    "trl",
    "vllm",
    "wandb",
    "webdataset",
    "xformers",
    "yaml",
}
# The package that provides a module of another name.
_PACKAGES = {
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
    "flash_attn": "flash-attn",
    "pytorch_lightning": "pytorch-lightning",
    "hydra": "hydra-core",
}


class JobSettings(Struct, frozen=True, kw_only=True):
    """The settings of a job that its fixes use; None if unknown.

    Attributes:
        name: How the job is named on the command line.
        is_run: hpcrun submitted it.
        has_checkpoints: Its checkpoint directory contains something.
        accepts_accumulation: hpcrun's number of accumulation steps reaches the program.
        framework: The framework of the job; "" if hpcrun did not submit it.
        zero_stage: The ZeRO stage in the DeepSpeed configuration that hpcrun generates.
        offload: What that configuration offloads: "optimizer", "param".
        arguments: The arguments of the program.
        memory_mib: Host memory per node.
        limit: The time limit in seconds.
        exclude: The nodes that the job excludes.
        gpu_memory: The estimated GiB per GPU of an option of DeepSpeed; empty if unknown.
        zero_keys: The keys of the job that change a setting of ZeRO, as in the plan.
        deepspeed_file: The DeepSpeed JSON that the script reads instead of hpcrun's; "" for that.
    """

    name: str = PLACEHOLDER
    is_run: bool = False
    has_checkpoints: bool = False
    micro_batch: int | None = None
    accumulation: int | None = None
    accepts_accumulation: bool = True
    framework: str = ""
    zero_stage: int | None = None
    offload: Sequence[str] = ()
    arguments: Sequence[str] = ()
    memory_mib: int | None = None
    limit: float | None = None
    exclude: str = ""
    gpu_memory: Mapping[str, float] = {}
    zero_keys: Mapping[str, list[str]] = {}
    deepspeed_file: str = ""


def fixes_for(fixes: Sequence[str], cause: Cause, job: JobSettings) -> list[str]:
    """Fill in the fixes of a rule, without those that are of no use for this job."""
    if not job.is_run:
        fixes = [fix for fix in fixes if not fix.startswith(_ONLY_OWN_JOBS)]
    if job.name == PLACEHOLDER:  # only logs are known, so hpcrun's commands have no job
        fixes = [fix for fix in fixes if PLACEHOLDER not in fix]
    filled = [each for fix in fixes for each in _fill_in(fix, job, cause)]
    return list(dict.fromkeys(each for each in filled if each))


def _fill_in(fix: str, job: JobSettings, cause: Cause) -> Iterator[str]:
    if fix == "{less_memory}":
        yield from less_memory(job)
    else:
        yield fill_in(fix, job, cause.host, cause.rank)


def fill_in(fix: str, job: JobSettings, host: str | None, rank: int | None = None) -> str:
    """Insert the job's own numbers into a fix.

    >>> job = JobSettings(name="4711", is_run=True, micro_batch=4, accumulation=2)
    >>> fill_in("{smaller_batch}", job, None).partition("  #")[0].split(" --set ")[1:]
    ['batch.micro_batch_per_gpu=2', 'batch.gradient_accumulation_steps=4']
    >>> fill_in("{without_node}", job, "n3")
    'hpcrun resubmit 4711 --set slurm.exclude=n3'
    """
    text = re.sub(r"^\{(\w+)\}", lambda found: _command(found[1], job, host) or found[0], fix)
    text = text.replace("{of_rank}", "" if rank is None else f"--rank {rank} ")
    if job.is_run:  # there is a run that takes the options
        text = text.replace("`hpcrun submit JOB", "`hpcrun resubmit JOB")
    # A command ends at a #, as in a shell.
    text = re.sub(r"^`(hpcrun [^`]+)`[:;,]? *(?=\S)", r"\1  # ", text)
    return re.sub(rf"\b{PLACEHOLDER}\b", job.name, text.replace("`", ""))


def _command(name: str, job: JobSettings, host: str | None) -> str:
    again = f"hpcrun resubmit {job.name}"
    if not job.is_run:
        return _WITHOUT_HPCRUN.get(name, "")
    if name == "again":
        return again
    if name == "without_node":
        nodes = ",".join(filter(None, [job.exclude, host]))
        return f"{again} --set slurm.exclude={nodes or 'NODE'}"
    if name == "more_time":
        minutes, seconds = divmod(round(2 * (job.limit or _DEFAULT_LIMIT_S)), 60)
        time = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
        resumes = "  # resumes from the checkpoints" if job.has_checkpoints else ""
        return f"{again} --time {time}{resumes}"
    if name == "more_memory":
        if not job.memory_mib:
            return "increase resources.memory_per_node"
        return f"{again} --set resources.memory_per_node={2 * job.memory_mib}M"
    if name == "smaller_batch":
        return _smaller_batch(job)
    return ""


def _smaller_batch(job: JobSettings) -> str:
    if not job.micro_batch or not job.accumulation:
        return _WITHOUT_HPCRUN["smaller_batch"]
    if job.micro_batch == 1:
        return "the micro batch is 1 already: use shorter sequences or smaller inputs"
    factor = next(n for n in range(2, job.micro_batch + 1) if job.micro_batch % n == 0)
    micro = job.micro_batch // factor
    command = f"hpcrun resubmit {job.name} --set batch.micro_batch_per_gpu={micro}"
    if not job.accepts_accumulation:
        return f"{command}  # smaller effective batch: no gradient accumulation in the script"
    steps = job.accumulation * factor
    return f"{command} --set batch.gradient_accumulation_steps={steps}  # same effective batch"


def less_memory(job: JobSettings) -> Iterator[str]:
    """Yield the ways to use less GPU memory, the cheapest first, without those in use.

    >>> sizes = {"deepspeed.zero_stage=3": 17.8}
    >>> job = JobSettings(name="7", is_run=True, zero_stage=2, gpu_memory=sizes)
    >>> print([*less_memory(job)][1])
    hpcrun resubmit 7 --set deepspeed.zero_stage=3  # shards more; about 18 GiB per GPU
    >>> [each.partition("  #")[0] for each in less_memory(job)][1:]
    ['hpcrun resubmit 7 --set deepspeed.zero_stage=3', \
'hpcrun resubmit 7 --set deepspeed.offload.optimizer=cpu']
    """
    again = f"hpcrun resubmit {job.name}"
    arguments = " ".join(job.arguments)
    options = []
    if job.is_run and job.zero_stage is not None:
        options = [*smaller_options(job.zero_stage, job.offload)]
    if options and job.zero_stage in (0, 1):  # ZeRO-2 costs nothing
        yield _change_zero(job, *options.pop(0))
    if not re.search(r"(?:gradient|activation)_?-?checkpoint", arguments):
        if job.is_run and job.framework == "transformers":
            yield f"{again} -- --gradient_checkpointing true  # recomputes activations"
        else:
            yield "enable activation checkpointing in the model"
    for option, effect in options:
        yield _change_zero(job, option, effect)


def _change_zero(job: JobSettings, option: str, effect: str) -> str:
    """Return the command, or the edit of the script's own JSON, for an option of DeepSpeed."""
    if option in job.gpu_memory:
        effect += f"; about {job.gpu_memory[option]:.0f} GiB per GPU"
    name, _, value = option.removeprefix("deepspeed.").partition("=")
    if job.deepspeed_file:
        path = "stage" if name == "zero_stage" else f"{name.replace('.', '_')}.device"
        return f"set zero_optimization.{path} to {value} in {job.deepspeed_file}  # {effect}"
    keys = job.zero_keys.get(name, [f"deepspeed.{name}"])
    changes = " ".join(f"--set {key}={value}" for key in keys)
    return f"hpcrun resubmit {job.name} {changes}  # {effect}"


def smaller_options(zero_stage: int, offload: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of DeepSpeed that use less GPU memory, and their effect.

    >>> [option for option, _ in smaller_options(2, [])]
    ['deepspeed.zero_stage=3', 'deepspeed.offload.optimizer=cpu']
    """
    if zero_stage < 3:
        yield f"deepspeed.zero_stage={max(zero_stage + 1, 2)}", "shards more"
    if "optimizer" not in offload and zero_stage:
        yield "deepspeed.offload.optimizer=cpu", "slower steps, needs host memory"
    elif "param" not in offload and zero_stage == 3:
        yield "deepspeed.offload.param=cpu", "slowest, needs host memory"


def similar_module(name: str) -> str:
    """Return a sentence on the module that was probably meant; "" if there is none.

    >>> similar_module("nunpy"), similar_module("sklearn"), similar_module("my_model")
    ('did you mean numpy?', 'the package is called scikit-learn', '')
    """
    name = name.partition(".")[0]
    if name in _PACKAGES:
        return f"the package is called {_PACKAGES[name]}"
    close = difflib.get_close_matches(name, sorted(_KNOWN_MODULES), 1, cutoff=0.8)
    return f"did you mean {close[0]}?" if close and close[0] != name else ""


# For jobs that hpcrun did not submit.
_WITHOUT_HPCRUN = {
    "again": "submit it again",
    "without_node": "submit it again with --exclude=NODE",
    "more_time": "submit it again with more --time",
    "more_memory": "submit it again with more --mem",
    "smaller_batch": "reduce the batch size per GPU and accumulate gradients instead",
}
# In docs/faq.md, where there is no job.
GENERIC = {
    "{again}": "`hpcrun resubmit JOB`",
    "{without_node}": "`hpcrun resubmit JOB --set slurm.exclude=NODE`",
    "{more_time}": "`hpcrun resubmit JOB --time 24:00:00`: resumes from the checkpoints",
    "{more_memory}": "`hpcrun resubmit JOB --set resources.memory_per_node=200G`",
    "{smaller_batch}": "`hpcrun resubmit JOB --set batch.micro_batch_per_gpu=1`, and "
    "`gradient_accumulation_steps` up for the same effective batch",
    "{less_memory}": "activation checkpointing in the model; a higher `deepspeed.zero_stage`, then "
    "`deepspeed.offload`",
}

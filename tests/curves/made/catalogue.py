"""The table of logs written by real frameworks."""

from __future__ import annotations

from tests.curves.made.runs import Run

PREEMPTED = (
    "slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2026-11-20T08:14:55 DUE TO PREEMPTION,"
    " SIGNAL_KILLED ***\n"
)
HF5, HF4 = ("transformers==5", "torch"), ("transformers==4", "torch")
REFERENCE = "hpcrun/workloads/reference/train_gpt.py"
KEEPING = "--steps 20 --seq-len 32 --precision fp32 --checkpoint-dir kept --checkpoint-every 5"
RESUMED = ("--eval-steps 20 --die-after 47", "--eval-steps 20 --die-after 200 --resume")

RUNS = (
    Run("hf5_bar", "hf_trainer", ("--eval-steps 20",), HF5),
    Run("hf5_plain", "hf_trainer", ("--eval-steps 20 --plain",), HF5, stepless=True),
    Run("hf5_resumed", "hf_trainer", RESUMED, HF5, between=PREEMPTED),
    Run("hf5_out_err", "hf_trainer", ("",), HF5, apart=True, stepless=True,
        note="the dicts are in .out, the bar in .err: no order joins them"),
    Run("hf5_buffered", "hf_trainer", ("",), HF5, buffered=True, stepless=True,
        ambiguous=("step",), note="stdout is written when its buffer is full or at the end"),
    Run("hf5_every_step", "hf_trainer", ("--logging-steps 1 --steps 40",), HF5, cut=100,
        note="cut off in its last line"),
    Run("hf5_nan", "hf_trainer", ("--nan-after 40",), HF5, warnings=("nan",)),
    Run("hf5_trainer_state", "hf_trainer", ("--eval-steps 20 --every-digit",), HF5,
        collect="checkpoints/trainer_state.json"),
    Run("hf4_bar", "hf_trainer", ("--eval-steps 20",), HF4),
    Run("hf4_plain", "hf_trainer", ("--eval-steps 20 --plain",), HF4, stepless=True),
    Run("hf4_resumed", "hf_trainer", RESUMED, HF4, between=PREEMPTED),
    Run("hf4_nan", "hf_trainer", ("--nan-after 40 --plain",), HF4, stepless=True,
        warnings=("nan",)),
    Run("hf4_trainer_state", "hf_trainer", ("--eval-steps 20",), HF4,
        collect="checkpoints/trainer_state.json"),
    Run("lightning_tqdm", "lightning_fit", ("tqdm",), ("lightning==2",),
        note="the bar counts within the epoch it names; val_loss stands in every later redraw"),
    Run("lightning_rich", "lightning_fit", ("rich",), ("lightning==2", "rich"),
        ambiguous=("eval_loss",),
        note="not a terminal: rich draws the last state alone"),
    Run("lightning_metrics_csv", "lightning_fit", ("csv",), ("lightning==2",),
        collect="logs/run/version_0/metrics.csv"),
    Run("accelerate_steps", "accelerate_loop", ("steps",), ("accelerate==1", "tqdm")),
    Run("accelerate_epochs", "accelerate_loop", ("epochs",), ("accelerate==1", "tqdm"),
        ambiguous=("count", "step", "first"),
        note="set_postfix comes before the bar counts the batch; each closing redraw repeats it"),
    Run("accelerate_text", "accelerate_loop", ("text",), ("accelerate==1", "tqdm"),
        ambiguous=("step",), note="the step is the epoch"),
    Run("deepspeed_loss", "deepspeed_engine", ("loss",), ("deepspeed==0.19",), "torchrun"),
    Run("deepspeed_silent", "deepspeed_engine", ("silent",), ("deepspeed==0.19",), "torchrun"),
    Run("deepspeed_pipeline", "deepspeed_engine", ("pipeline",), ("deepspeed==0.19",), "torchrun"),
    Run("ddp_torchrun", "ddp_prints", ("",), ("torch",), "torchrun"),
    Run("ddp_tee", "ddp_prints", ("",), ("torch",), "tee"),
    Run("ddp_srun_label", "ddp_prints", ("",), ("torch",), "srun"),
    Run("ddp_mean", "ddp_prints", ("--mean",), ("torch",), "srun"),
    Run("ddp_failed", "ddp_prints", ("--fail",), ("torch",), "torchrun", fails=True),
    Run("reference", REFERENCE, ("--steps 20 --eval-every 5 --seq-len 32 --precision fp32",),
        ("torch",), json_lines=True),
    Run("reference_resumed", REFERENCE, (f"{KEEPING} --fail-at 13:0:exception", KEEPING),
        ("torch",), json_lines=True, between=PREEMPTED),
    Run("trl_sft", "trl_trainer", ("sft",), ("trl", "transformers==5", "datasets", "peft")),
    Run("trl_dpo", "trl_trainer", ("dpo",), ("trl", "transformers==5", "datasets", "peft")),
    Run("trl_grpo", "trl_trainer", ("grpo",), ("trl", "transformers==5", "datasets", "peft")),
    Run("mmengine_epochs", "mmengine_runner", ("epochs",), ("mmengine", "torch")),
    Run("mmengine_iters", "mmengine_runner", ("iters",), ("mmengine", "torch")),
    Run("mlperf_mllog", "mllog", ("",), ("mlperf-logging",), note="the step counts samples"),
    Run("sb3_table", "sb3_table", ("",), ("stable-baselines3",),
        note="a box of | name | value | rows for each iteration"),
    Run("keras_lines", "keras_fit", ("2",), ("keras==3", "torch"), ambiguous=("step",),
        note="the epoch stands on the line before"),
    Run("keras_bar", "keras_fit", ("1",), ("keras==3", "torch"), ambiguous=("step", "count"),
        note="each redraw has the mean of its epoch so far; the last one is the epoch's"),
    Run("torchtune_stdout", "torchtune_logger", ("stdout",), ("torchtune", "tqdm")),
    Run("torchtune_disk", "torchtune_logger", ("disk",), ("torchtune", "tqdm"),
        collect="logs/log_1763622900.txt"),
    Run("torchtitan", "torchtitan_metrics", ("",), ("torchtitan",)),
    Run("composer_console", "composer_console", ("",), ("mosaicml",),
        note="the batch counts within the epoch and stands on the line before the metrics"),
    Run("ultralytics_bars", "ultralytics_yolo", ("bars",), ("ultralytics",),
        ambiguous=("train/box_loss", "train/cls_loss", "train/dfl_loss", "points"),
        note="three losses in columns below a header; the bar redraws the running mean"),
    Run("ultralytics_results_csv", "ultralytics_yolo", ("csv",), ("ultralytics",),
        collect="runs/yolo/results.csv", ambiguous=("points", "step"),
        note="three training losses and no sum of them; the step is the epoch"),
)  # fmt: skip

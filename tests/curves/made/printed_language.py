"""Logs of programs that train language models, in their own formats."""

from __future__ import annotations

import json

from tests.curves.made.printed import TRACEBACK, Log, bar, printed
from tests.curves.made.truth import RESTART


@printed(
    "nanogpt",
    "karpathy/nanoGPT train.py 3adf61e (2025-11)",
    note="its step lines are evaluations: their train loss is no training point",
)
def nanogpt(out: Log) -> None:
    """Print iterations, evaluations and the script's own configuration; the end is cut off."""
    out.line("Overriding config with config/train_gpt2.py:\nlearning_rate = 6e-4\nmax_iters = 600")
    out.line("tokens per iteration will be: 491,520\nnumber of parameters: 123.59M")
    for index, loss in enumerate(out.losses(60, 10.9, 3.2)):
        step, milliseconds = index * 10, out.near(25000 if index % 20 == 0 else 260)
        if step % 200 == 0:
            kept = f"{loss + 0.02:.4f}"
            out.line(f"step {step}: train loss {loss:.4f}, val loss {kept}")
            out.note(step, eval_loss=kept)
            if step:
                out.line("saving checkpoint to out")
        mfu = -100.0 if index < 5 else out.near(38.4)
        out.line(f"iter {step}: loss {loss:.4f}, time {milliseconds:.2f}ms, mfu {mfu:.2f}%")
        out.note(step, loss=f"{loss:.4f}")
    out.text += "iter 600: lo"


@printed(
    "build_nanogpt",
    "karpathy/build-nanogpt train_gpt2.py ec39245 (2024)",
    note="a validation loss stands before the step that it belongs to",
)
def build_nanogpt(out: Log) -> None:
    """Print every step, with samples of text between."""
    out.line("total desired batch size: 524288\n=> calculated gradient accumulation steps: 8")
    for step, loss in enumerate(out.losses(120, 10.95, 4.1)):
        if step % 50 == 0:
            out.line(f"validation loss: {loss + 0.03:.4f}")
            out.line("rank 0 sample 0: Hello, I'm a language model, step 7 of loss 3.2 is easy")
            out.line("HellaSwag accuracy: 2463/10042=0.2453")
        lr, norm, speed = 6e-4 * min(1, (step + 1) / 60), out.near(0.9, 0.5), out.near(185000)
        shown = f"lr {lr:.4e} | norm: {norm:.4f} | dt: {524288 / speed * 1000:.2f}ms"
        out.line(f"step {step:5d} | loss: {loss:.6f} | {shown} | tok/sec: {speed:.2f}")
        out.note(step, loss=f"{loss:.6f}", lr=f"{lr:.4e}", tokens_per_second=f"{speed:.2f}")


@printed("llmc_stdout", "karpathy/llm.c train_gpt2.cu f1e2ace (2025-05)")
def llmc_stdout(out: Log) -> None:
    """Print the lines of the CUDA program."""
    out.line("| max_sequence_length T | 1024                                               |")
    out.line("| learning rate (LR)    | 6.000000e-04                                       |")
    for step, loss in enumerate(out.losses(74, 4.37, 3.5), 1):
        if step % 20 == 1:
            out.line(f"val loss {loss + 0.1:f}")
        norm, lr, milliseconds = out.near(1.4, 0.4), 6e-4 * min(1, step / 20), out.near(1312)
        speed = 524288 / milliseconds * 1000
        head = f"step {step:4d}/74 | loss {loss:7.6f} ({out.random.gauss(0, 1):+.2f}z)"
        mid = f"| norm {norm:6.4f} ({out.random.gauss(0, 1):+.2f}z)| lr {lr:.2e}"
        tail = f"{milliseconds:.2f} ms | {out.near(52):.1f}% bf16 MFU | {speed:.0f} tok/s"
        out.line(f"{head}{mid} | {tail}")
        out.note(step, loss=f"{loss:7.6f}", lr=f"{lr:.2e}", tokens_per_second=f"{speed:.0f}")


@printed(
    "llmc_main_log",
    "karpathy/llm.c llmc/logger.h f1e2ace (2025-05)",
    note="trl is the training loss, tel that on test data",
)
def llmc_main_log(out: Log) -> None:
    """Write the file main.log."""
    for step, loss in enumerate(out.losses(100, 11.0, 4.6)):
        if step % 25 == 0:
            out.line(f"s:{step} tel:{loss + 0.05:.4f}")
            out.line(f"s:{step} eval:0.2481")
            out.note(step, eval_loss=f"{loss + 0.05:.4f}")
        lr, norm = 6e-4 * min(1, (step + 1) / 70), out.near(1.5, 0.5)
        out.line(f"s:{step} trl:{loss:.4f} lr:{lr:.6f} norm:{norm:.2f}")
        out.note(step, loss=f"{loss:.4f}", lr=f"{lr:.6f}", grad_norm=f"{norm:.2f}")


def _megatron(out: Log, step: int, loss: str, scale: float, norm: str, skipped: int = 0) -> str:
    """Return the line of an iteration, Megatron-LM megatron/training/training.py training_log."""
    time, lr = out.near(5120.0), f"{1.5e-4 * min(1, step / 100):.6E}"
    now = out.wait(time / 1000 * 10).strftime("%Y-%m-%d %H:%M:%S.%f")
    middle = f" lm loss: {loss} |" if loss else ""
    after = f" grad norm: {norm} |" if loss else ""
    out.note(step, lr=lr, **({"loss": loss, "grad_norm": norm} if loss else {}))
    return (
        f" [{now}] iteration {step:8d}/{250000:8d} | consumed samples: {step * 1024:12d} |"
        f" elapsed time per iteration (ms): {time:.1f} |"
        f" throughput per GPU (TFLOP/s/GPU): {out.near(402):.1f} | learning rate: {lr} |"
        f" global batch size: {1024:5d} |{middle} loss scale: {scale:.1f} |{after}"
        f" number of skipped iterations: {skipped:3d} | number of nan iterations: {0:3d} |"
    )


@printed("megatron_lm", "NVIDIA/Megatron-LM megatron/training/training.py d98e8a6 (2026-08)")
def megatron_lm(out: Log) -> None:
    """Print the last rank's iterations behind torchrun's prefix, validations, a resumption."""
    out.line("using world size: 8, data-parallel size: 4, tensor-model-parallel size: 2")
    out.line("------------------------ arguments ------------------------")
    out.line("  lr .............................................. 0.00015")
    out.line("  loss_scale ...................................... None")
    out.line("-------------------- end of arguments ---------------------")
    losses = list(out.losses(40, 10.8, 2.9))
    for index in [*range(27), *range(20, 40)]:
        step = (index + 1) * 10
        if index == 20 and out.notes[-1] != RESTART and step < out.notes[-1]["step"]:
            out.notes.append(RESTART)
            out.line(TRACEBACK)
            out.line("  successfully loaded checkpoint from checkpoints [ t 1/2, p 1/1 ] at it 200")
        loss, norm = f"{losses[index]:.6E}", f"{out.near(0.8, 0.4):.3f}"
        out.line(f"[default7]:{_megatron(out, step, loss, 1.0, norm)}")
        if step % 100 == 0:
            kept = f"{losses[index] + 0.04:.6E}"
            out.line("[default7]:" + "-" * 98)
            shown = f"lm loss value: {kept} | lm loss PPL: {18.2:.6E} | "
            out.line(f"[default7]: validation loss at iteration {step} | {shown}")
            out.line("[default7]:" + "-" * 98)
            out.note(step, eval_loss=kept)
        if step % 100 == 50:
            out.line("[default0]:(min, max) time across ranks (ms):")
            out.line("[default0]:    forward-backward ...............: (4310.11, 4312.40)")


@printed(
    "megatron_loss_scale",
    "NVIDIA/Megatron-LM megatron/training/training.py d98e8a6 (2026-08)",
    warnings=("loss-scale",),
    note="fp16: from iteration 310 on every step is skipped and the scale falls to 1",
)
def megatron_loss_scale(out: Log) -> None:
    """Print an fp16 run that overflows for good."""
    for index, loss in enumerate(out.losses(40, 10.8, 3.4)):
        step, scale = (index + 1) * 10, 2.0 ** max(0, 16 - max(0, index - 29) * 2)
        broken = index >= 30
        norm = f"{out.near(0.8, 0.3):.3f}"
        out.line(_megatron(out, step, "" if broken else f"{loss:.6E}", scale, norm, 10 * broken))


@printed(
    "megatron_deepspeed",
    "deepspeedai/Megatron-DeepSpeed megatron/training.py 4efb479d "
    "(2025-07), DeepSpeed 0.19.8 runtime/pipe/engine.py",
    note="DeepSpeed's pipeline engine prints each step too: one point, not two",
)
def megatron_deepspeed(out: Log) -> None:
    """Print each step twice, as the two engines do, on two nodes behind pdsh's names."""
    for step, loss in enumerate(out.losses(30, 12.6, 7.3), 1):
        seconds, lr, norm = out.near(15.2), f"{2e-7 * step:.3E}", f"{out.near(8, 0.5):.3f}"
        shown = f"iter time (s): {seconds:0.3f} samples/sec: {16 / seconds:0.3f}"
        out.line(f"node1: steps: {step} loss: {loss:0.4f} {shown}")
        out.line(
            f"node2:  iteration {step:8d}/{500:8d} | consumed samples: {step * 16:12d} | consumed "
            f"tokens: {step * 32768:12d} | elapsed time per iteration (ms): {seconds * 1000:.1f} | "
            f"learning rate: {lr} | global batch size: {16:5d} | lm loss: {loss:.6E} | loss scale: "
            f"{1:.1f} | grad norm: {norm} | actual seqlen: {2048:5d} | number of skipped "
            f"iterations: {0:3d} | number of nan iterations: {0:3d} | samples per second: "
            f"{16 / seconds:.3f} | tokens per gpu per second (tgs): {2048 / seconds:.3f} | TFLOPs: "
            f"{7.97:.2f} |"
        )
        speed = f"{16 / seconds:.3f}"
        out.note(step, loss=f"{loss:.6E}", lr=lr, grad_norm=norm, samples_per_second=speed)


@printed(
    "nemo2",
    "NVIDIA/NeMo nemo/lightning/pytorch/callbacks/progress_printer.py 01f7dbc",
    note="iteration and global_step both stand in the line; the latter counts from 0",
)
def nemo2(out: Log) -> None:
    """Print NeMo 2's lines."""
    out.line(
        "[NeMo W 2026-11-20 08:04:09 nemo_logging:405] "
        "`resume_from_checkpoint` is not set: loss is fresh, step 0"
    )
    for index, loss in enumerate(out.losses(30, 9.8, 1.24)):
        step = (index + 1) * 10 - 1
        shown = {
            "lr": 3e-5,
            "global_batch_size": 32.0,
            "global_step": float(step),
            "reduced_train_loss": loss,
            "train_step_timing in s": out.near(0.4),
        }
        if step >= 99:
            shown["val_loss"] = 4.106
        line = f"Training epoch 0, iteration {step + 1}/300"
        for name, value in shown.items():
            whole = value.is_integer()
            line += f" | {name}: {int(value)}" if whole else f" | {name}: {value:.4}"
        out.line(line)
        out.note(step, loss=f"{loss:.4}", lr="3e-05")


@printed(
    "nemo1_bar",
    "NeMo 1 on Lightning's TQDMProgressBar, as in NVIDIA/NeMo-Framework-Launcher#55",
    ambiguous=("value",),
    note="global_step as a float, v_num empty; loss is a mean, reduced_train_loss the step's",
)
def nemo1_bar(out: Log) -> None:
    """Draw NeMo 1's bar; the values of a redraw are of the step that it counts."""
    out.line("[NeMo I 2026-11-20 08:04:09 exp_manager:396] Experiments will be logged at results")
    for step, loss in enumerate(out.losses(60, 10.9, 3.1), 1):
        shown = f", loss={loss + 0.01:.3g}, v_num=, reduced_train_loss={loss:.3f}, "
        shown += f"global_step={step - 1:.1f}, consumed_samples={step * 256:.2e}"
        out.text += "\r" + bar(step, 60, step * 41.36, shown, "Epoch 0: ")
        out.note(step - 1, loss=f"{loss:.3f}")
    out.line()


@printed(
    "nemo2_bar",
    "NVIDIA/NeMo nemo/lightning/pytorch/callbacks/progress_bar.py 7468268",
    note="redrawn before the postfix is set: the loss is of global_step, not of the bar's count",
)
def nemo2_bar(out: Log) -> None:
    """Draw the bar of NeMo's own MegatronProgressBar, which has no rate."""
    shown = ""
    for step, loss in enumerate(out.losses(60, 10.9, 3.1), 1):
        head, _, _ = bar(step, 60, step * 1.94, "", "Epoch 0: : ").rpartition(",")
        out.text += f"\r{head}{shown}]"
        shown = f", v_num=0, reduced_train_loss={loss:.3g}, global_step={step - 1:.3f}, "
        shown += f"consumed_samples={step * 256.0}, train_step_timing in s=1.940"
        if step < 60:
            out.note(step - 1, loss=f"{loss:.3g}")
    out.line()


@printed(
    "nemo_automodel",
    "NVIDIA-NeMo/Automodel nemo_automodel/recipes/llm/train_ft.py 36044ad (2026-08)",
    note="names and values with nothing between them",
)
def nemo_automodel(out: Log) -> None:
    """Print Automodel's lines."""
    for step, loss in enumerate(out.losses(50, 2.1, 0.64)):
        out.wait(0.8)
        norm, speed, tokens = f"{out.near(1.2, 0.3):.4f}", out.near(6574), out.random.randint(9, 30)
        shown = (
            f"loss {loss:.4f} | grad_norm {norm} | lr 1.00e-05 | mem 31.55 GiB | tps {speed:.2f}"
        )
        head = f"{out.clock:%Y-%m-%d %H:%M:%S} | INFO | root | step {step} | epoch 0"
        out.line(f"{head} | {shown}({speed / 8:.2f}/gpu) | num_label_tokens {tokens * 1000}")
        out.note(step, loss=f"{loss:.4f}", grad_norm=norm, lr="1.00e-05")


@printed(
    "litgpt",
    "Lightning-AI/litgpt litgpt/pretrain.py 2685705 (2026-06)",
    note="iter counts micro batches, step the optimizer's; val is n/a until measured",
)
def litgpt(out: Log) -> None:
    """Print litgpt's lines, each the first micro batch of four."""
    val = "n/a"
    for index, loss in enumerate(out.losses(40, 10.8, 5.2)):
        step = index + 1
        shown = f"iter time: {out.near(350):.2f} ms (step) remaining time: 0:{40 - index:02d}:10"
        out.line(
            f"Epoch 1 | iter {step * 4} step {step} | loss train: {loss:.3f}, val: {val} | {shown}"
        )
        out.note(step, loss=f"{loss:.3f}")
        if step % 15 == 0:
            val = f"{loss + 0.05:.3f}"


@printed(
    "olmo", "allenai/OLMo olmo/train.py 59a53e3 (2025-09)", note="a block of lines for each step"
)
def olmo(out: Log) -> None:
    """Print OLMo's blocks."""
    for step, loss in enumerate(out.losses(30, 11.2, 6.3), 1):
        out.wait(2)
        stamp = f"{out.clock:%Y-%m-%d %H:%M:%S}.{out.random.randint(0, 999):03d}"
        norm = f"{out.near(0.62, 0.3):.4f}"
        out.line(f"{stamp}\tnode01:0\tolmo.train:968\tINFO\t[step={step}/30,epoch=0]")
        out.line(f"    optim/total_grad_norm={norm}")
        out.line(
            f"    train/CrossEntropyLoss={loss:.3f}"
            if loss <= 10
            else f"    train/CrossEntropyLoss={loss:.2f}"
        )
        out.line("    train/Perplexity=1,205\n    throughput/total_tokens=4,194,304")
        out.line("    throughput/device/tokens_per_second=11,274")
        shown = f"{loss:.3f}" if loss <= 10 else f"{loss:.2f}"
        out.note(step, loss=shown, grad_norm=norm)


@printed(
    "nanotron",
    "huggingface/nanotron src/nanotron/trainer.py 2411b02 (2026-04)",
    note="values shortened by K and M",
)
def nanotron(out: Log) -> None:
    """Print nanotron's lines."""
    for step, loss in enumerate(out.losses(40, 11.3, 4.2), 1):
        out.wait(2)
        head = f"{out.clock:%m/%d/%Y %H:%M:%S} [INFO|DP=0|PP=0|TP=0|node01]: iteration: {step} / 40"
        speed = f"{out.near(201):.3g}K"
        out.line(
            f"{head} | consumed_tokens: {step * 1.05:.3g}M | time_per_iteration_ms: 5.21K | "
            f"tokens_per_sec: {speed} | tokens_per_sec_per_gpu: 25.1K | global_batch_size: "
            f"1.05M | lm_loss: {loss:.3g} | lr: 0.0003 | model_tflops_per_gpu: 206 | "
            f"eta: 0:03:20 | grad_norm: {2 / step:.3g}"
        )
        out.note(step, loss=f"{loss:.3g}", lr="0.0003", grad_norm=f"{2 / step:.3g}")


@printed(
    "maxtext", "AI-Hypercomputer/maxtext src/maxtext/common/metric_logger.py e591f30 (2026-08)"
)
def maxtext(out: Log) -> None:
    """Print MaxText's lines."""
    for step, loss in enumerate(out.losses(50, 10.9, 3.3)):
        seconds = out.near(1.84)
        out.line(
            f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: "
            f"{out.near(210):.3f}, Tokens/s/device: {8192 / seconds:.3f}, total_weights: 65536"
            f", loss: {loss:.3f}, lm_loss: {loss:.3f}, perplexity: {27.1:.3f}"
        )
        out.note(step, loss=f"{loss:.3f}")
        if step % 20 == 19:
            out.line(
                f"Completed eval after train step {step}, loss={loss + 0.06:.3f}, "
                f"perplexity={29.4:.3f}, total_weights=65536, avg_z_loss=0.000"
            )
            out.note(step, eval_loss=f"{loss + 0.06:.3f}")


@printed(
    "llamafactory_jsonl",
    "hiyouga/LLaMA-Factory src/llamafactory/train/callbacks.py ff6d4d1 "
    "(2026-08), trainer_log.jsonl",
)
def llamafactory_jsonl(out: Log) -> None:
    """Write LLaMA-Factory's file."""
    for index, loss in enumerate(out.losses(40, 1.75, 1.37)):
        step, lr = (index + 1) * 5, 5e-5 * (1 - index / 40)
        shown = {
            "current_steps": step,
            "total_steps": 200,
            "loss": round(loss, 4),
            "lr": lr,
            "epoch": round(step / 100, 2),
            "percentage": step / 2,
            "elapsed_time": "4 days, 7:18:24",
            "remaining_time": "0:12:30",
        }
        out.line(json.dumps(shown))
        out.note(step, loss=str(shown["loss"]), lr=str(lr))

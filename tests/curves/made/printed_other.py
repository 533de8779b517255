"""Logs of vision, speech and reinforcement learning, in their own formats."""

from __future__ import annotations

import json

from tests.curves.made.printed import Log, bar, printed


@printed(
    "mmcv_text",
    "open-mmlab/mmcv mmcv/runner/hooks/logger/text.py v1.7.1",
    note="the counter starts again with each epoch, of 400 steps; a comma stands within the eta",
)
def mmcv_text(out: Log) -> None:
    """Print mmcv's lines of three epochs."""
    losses = out.losses(24, 4.6, 0.9)
    for epoch in range(1, 4):
        for index in range(1, 9):
            loss, step = next(losses), index * 50
            out.wait(21)
            parts = f"loss_cls: {loss * 0.6:.4f}, loss_bbox: {loss * 0.4:.4f}, loss: {loss:.4f}"
            out.line(
                f"{out.stamp()} - mmdet - INFO - Epoch [{epoch}][{step}/400]\tlr: 2.000e-02, "
                f"eta: 1 day, 14:05:50, time: 0.421, data_time: 0.012, memory: 3868, {parts}, "
                f"grad_norm: {loss * 2:.4f}"
            )
            whole = (epoch - 1) * 400 + step
            out.note(whole, loss=f"{loss:.4f}", lr="2.000e-02", grad_norm=f"{loss * 2:.4f}")
        out.line(f"{out.stamp()} - mmdet - INFO - Epoch(val) [{epoch}][625]\tbbox_mAP: 0.3120")


@printed(
    "fairseq_simple",
    "facebookresearch/fairseq fairseq/logging/progress_bar.py 3d262bb (2025-09)",
    note="num_updates is the step, not the place within the epoch",
)
def fairseq_simple(out: Log) -> None:
    """Print fairseq's simple format: lines within an epoch, summaries at its end."""
    losses = out.losses(40, 12.4, 4.6)
    for epoch in (1, 2):
        out.line(f"{out.stamp()[:19]} | INFO | fairseq.trainer | begin training epoch {epoch}")
        for index in range(1, 21):
            loss, step = next(losses), (epoch - 1) * 2000 + index * 100
            out.wait(30)
            head = f"{out.stamp()[:19]} | INFO | train_inner | epoch {epoch:03d}:  {index * 100:5d}"
            shown = f"loss={loss:.3f}, nll_loss={loss - 1:.3f}, ppl={2 ** (loss - 1):.2f}"
            gnorm = f"{out.near(1.5, 0.4):.3f}"
            out.line(
                f"{head} / 2000 {shown}, wps=52922.3, ups=3.21, wpb=16482.1, bsz=512, "
                f"num_updates={step}, lr={step / 4e6:g}, gnorm={gnorm}, loss_scale=8, "
                f"train_wall=31, gb_free=21.4, wall={step // 3}"
            )
            out.note(step, loss=f"{loss:.3f}", lr=f"{step / 4e6:g}", grad_norm=gnorm)
        kept = f"{loss + 0.2:.3f}"
        now = out.stamp()[:19]
        out.line(
            f'{now} | INFO | valid | epoch {epoch:03d} | valid on "valid" subset | '
            f"loss {kept} | nll_loss {loss - 0.8:.3f} | ppl 12.1 | wps 137211 | wpb 6541 | "
            f"bsz 201 | num_updates {step} | best_loss {kept}"
        )
        out.line(
            f"{now} | INFO | train | epoch {epoch:03d} | loss {loss + 2:.3f} | nll_loss "
            f"{loss + 1:.3f} | ppl 80.2 | wps 52711 | num_updates {step} | lr {step / 4e6:g}"
        )
        out.note(step, eval_loss=kept)


@printed(
    "fairseq_json",
    "facebookresearch/fairseq fairseq/logging/progress_bar.py 3d262bb (2025-09)",
    note="JSON behind a prefix, its numbers are text",
)
def fairseq_json(out: Log) -> None:
    """Print fairseq's json format."""
    for index, loss in enumerate(out.losses(40, 12.4, 4.6)):
        step, gnorm = (index + 1) * 100, f"{out.near(1.5, 0.4):.3f}"
        out.wait(30)
        shown = {
            "epoch": 1,
            "update": round(step / 4000, 3),
            "loss": f"{loss:.3f}",
            "nll_loss": f"{loss - 1:.3f}",
            "wps": "52922.3",
            "num_updates": str(step),
            "lr": f"{step / 4e6:g}",
            "gnorm": gnorm,
            "loss_scale": "8",
        }
        out.line(f"{out.stamp()[:19]} | INFO | train_inner | {json.dumps(shown)}")
        out.note(step, loss=f"{loss:.3f}", lr=f"{step / 4e6:g}", grad_norm=gnorm)
    kept = f"{loss + 0.2:.3f}"
    shown = {"epoch": 1, "valid_loss": kept, "valid_nll_loss": "3.9", "valid_num_updates": "4000"}
    out.line(f"{out.stamp()[:19]} | INFO | valid | {json.dumps(shown)}")
    out.note(4000, eval_loss=kept)


@printed(
    "detectron2_console", "facebookresearch/detectron2 detectron2/utils/events.py 02b5c4e (2026-06)"
)
def detectron2_console(out: Log) -> None:
    """Print detectron2's coloured lines: the total and its parts, each a smoothed loss."""
    for index, loss in enumerate(out.losses(40, 2.4, 0.6)):
        step, lr = index * 20 + 19, f"{0.00025 * min(1, (index + 1) / 20):.5g}"
        out.wait(9)
        parts = f"loss_cls: {loss * 0.5:.4g}  loss_box_reg: {loss * 0.5:.4g}"
        out.line(
            f"\x1b[32m[{out.clock:%m/%d %H:%M:%S} d2.utils.events]: \x1b[0m eta: 0:05:12  "
            f"iter: {step}  total_loss: {loss:.4g}  {parts}    time: 0.4412  last_time: 0.439"
            f"  data_time: 0.0112  last_data_time: 0.0051   lr: {lr}  max_mem: 3021M"
        )
        out.note(step, loss=f"{loss:.4g}", lr=lr)


@printed(
    "verl_console",
    "volcengine/verl verl/utils/logger/aggregate_logger.py b178a3c (2026-01)",
    ambiguous=("loss",),
    note="which of the actor's losses is the loss is open",
)
def verl_console(out: Log) -> None:
    """Print verl's lines behind Ray's coloured name of the actor."""
    for step in range(1, 31):
        loss, norm = out.random.gauss(0, 0.02), out.near(0.3, 0.5)
        shown = {
            "actor/pg_loss": loss,
            "actor/kl_loss": abs(loss) / 10,
            "actor/entropy": 0.41,
            "actor/grad_norm": norm,
            "actor/lr": 1e-06,
            "critic/score/mean": 0.2 + step / 60,
            "perf/throughput": out.near(1200.0),
            "perf/time_per_step": out.near(31.0),
            "training/global_step": step,
            "training/epoch": 0,
        }
        line = " - ".join(f"{name}:{value!r}" for name, value in shown.items())
        out.line(f"\x1b[36m(TaskRunner pid=4711)\x1b[0m step:{step} - {line}")
        out.note(step, loss=repr(loss), lr="1e-06", grad_norm=repr(norm))


@printed(
    "openrlhf_bar",
    "OpenRLHF/OpenRLHF openrlhf/trainer/sft_trainer.py v0.11.0",
    ambiguous=("step", "count"),
    note="set_postfix comes before update: the bar counts one less; two bars",
)
def openrlhf_bar(out: Log) -> None:
    """Draw OpenRLHF's bars."""
    out.text += "\r" + bar(0, 1, 0, "", "Train epoch: ") + "\n"
    for index, loss in enumerate(out.losses(40, 2.2, 1.1)):
        norm, lr = out.near(1.1, 0.3), 5e-6 * min(1, (index + 1) / 10)
        shown = f", gpt_loss={loss:.3g}, lr={lr:.3g}, grad_norm={norm:.3g}"
        label = "Train step of epoch 0: "
        out.text += "\r" + bar(index, 40, index * 1.31, shown, label)
        out.text += "\r" + bar(index + 1, 40, (index + 1) * 1.31, shown, label)
        out.note(index + 1, loss=f"{loss:.3g}", lr=f"{lr:.3g}", grad_norm=f"{norm:.3g}")
    out.text += "\r" + bar(1, 1, 52.4, "", "Train epoch: ") + "\n"


@printed(
    "open_clip",
    "mlfoundations/open_clip src/open_clip_train/train.py 89fb801 (2026-06)",
    note="the step counts samples within the epoch; in brackets a running mean",
)
def open_clip(out: Log) -> None:
    """Print open_clip's lines behind srun's right-aligned labels."""
    out.line(" 0: Running with a single process. Device cuda:0.\n13: [W socket.cpp] retrying")
    mean = 8.4
    for index, loss in enumerate(out.losses(40, 8.4, 2.1)):
        seen, lr = 4096 + index * 409600, f"{5e-4 * min(1, index / 20):5f}"
        mean = 0.9 * mean + 0.1 * loss
        out.wait(70)
        shown = f"Contrastive_loss: {loss:#.5g} ({mean:#.5g}) Loss: {loss:#.5g} ({mean:#.5g})"
        out.line(
            f" 0: {out.clock:%Y-%m-%d,%H:%M:%S} | INFO | Train Epoch: 0 [{seen:>8}/16777216 "
            f"({100 * seen / 16777216:.0f}%)] Data (t): 0.309 Batch (t): 0.687, 5881.76/s, "
            f"367.610/s/gpu LR: {lr} Logit Scale: 14.286 {shown}"
        )
        out.note(seen, loss=f"{loss:#.5g}", lr=lr)


@printed(
    "timm_train",
    "huggingface/pytorch-image-models train.py aa4b585 (2026-08)",
    note="the counter starts again with each epoch, of 500 steps; Test lines are no training",
)
def timm_train(out: Log) -> None:
    """Print timm's lines."""
    losses = out.losses(30, 6.95, 3.1)
    mean = 6.95
    for epoch in range(3):
        for index in range(10):
            loss = next(losses)
            mean, update = 0.9 * mean + 0.1 * loss, index * 50
            out.line(
                f"Train: {epoch} [{update:>4d}/500 ({100 * (update + 1) / 500:>3.0f}%)]  "
                f"Loss: {loss:#.3g} ({mean:#.3g})  Time: 0.412s, {1242.7:>7.2f}/s  (0.421s, "
                f"{1216.2:>7.2f}/s)  LR: 1.000e-03  Data: 0.012 (0.020)"
            )
            out.note(epoch * 500 + update, loss=f"{loss:#.3g}", lr="1.000e-03")
        out.line(
            f"Test: [  48/48]  Time: 0.211 (0.250)  Loss: {3.012:>7.3f} ({3.1:>6.3f})  Acc@1: "
            f"{41.2:>7.3f} ({40.8:>7.3f})  Acc@5: {66.7:>7.3f} ({66.0:>7.3f})"
        )


@printed(
    "axolotl_dicts",
    "axolotl-ai-cloud/axolotl src/axolotl/core/trainers/base.py 067b021 "
    "(2026-07) on transformers 5",
    stepless=True,
)
def axolotl_dicts(out: Log) -> None:
    """Print the Trainer's dicts with what axolotl adds to them."""
    out.line(
        "[2026-11-20 08:04:09,098] [INFO] [axolotl.train.train:183] [PID:4711] [RANK:0] "
        "Starting trainer..."
    )
    for index, loss in enumerate(out.losses(30, 1.9, 0.8)):
        norm = f"{out.near(0.6, 0.4):.4g}"
        shown = {
            "loss": f"{loss:.4g}",
            "grad_norm": norm,
            "learning_rate": "0.0002",
            "ppl": "2.718",
            "memory/max_active (GiB)": "17.2",
            "memory/max_allocated (GiB)": "17.2",
            "memory/device_reserved (GiB)": "18.9",
            "tokens/train_per_sec_per_gpu": "1503",
            "tokens/total": 65536 * (index + 1),
            "epoch": f"{index / 30:.4g}",
        }
        out.line(str(shown))
        out.note(index, loss=f"{loss:.4g}", grad_norm=norm, lr="0.0002")


@printed(
    "examples_mnist",
    "pytorch/examples mnist/main.py 77f55b9 (2025-08)",
    ambiguous=("eval_loss",),
    note="the step counts samples, here through both epochs; the test's loss is its mean",
)
def examples_mnist(out: Log) -> None:
    """Print the lines of the MNIST example."""
    losses = out.losses(20, 2.3, 0.05)
    for epoch in (1, 2):
        for index in range(10):
            loss, seen = abs(next(losses)), index * 6400
            head = f"Train Epoch: {epoch} [{seen}/60000 ({100 * seen / 60000:.0f}%)]"
            out.line(f"{head}\tLoss: {loss:.6f}")
            out.note((epoch - 1) * 60000 + seen, loss=f"{loss:.6f}")
        out.line(f"\nTest set: Average loss: {loss + 0.01:.4f}, Accuracy: 9801/10000 (98%)\n")
        out.note(None, eval_loss=f"{loss + 0.01:.4f}")


@printed(
    "examples_imagenet",
    "pytorch/examples imagenet/main.py 77f55b9 (2025-08)",
    note="in brackets a mean; Test lines are no training",
)
def examples_imagenet(out: Log) -> None:
    """Print the meters of the ImageNet example."""
    losses = out.losses(30, 7.0, 3.4)
    mean = 7.0
    for epoch in range(3):
        for index in range(10):
            loss, batch = next(losses), index * 10 + 1
            mean = 0.8 * mean + 0.2 * loss
            meters = [
                "Time  0.412 ( 0.520)",
                "Data  0.011 ( 0.108)",
                f"Loss {loss:.4e} ({mean:.4e})",
                "Acc@1   1.56 (  0.78)",
                "Acc@5   6.25 (  4.30)",
            ]
            out.line("\t".join([f"Epoch: [{epoch}][{batch:3d}/100]", *meters]))
            out.note(epoch * 100 + batch, loss=f"{loss:.4e}")
        out.line("Test: [ 1/10]\tTime  1.2 ( 1.2)\tLoss 3.1012e+00 (3.1012e+00)\tAcc@1  30.08")
        out.line(" *   Acc@1 30.080 Acc@5 55.110")


@printed(
    "examples_word_language_model",
    "pytorch/examples word_language_model/main.py 77f55b9 (2025-08)",
    ambiguous=("eval_step",),
)
def examples_word_language_model(out: Log) -> None:
    """Print the lines of the language model example."""
    losses = out.losses(30, 7.2, 4.9)
    for epoch in (1, 2, 3):
        for index in range(1, 11):
            loss, batch = next(losses), index * 200
            out.line(
                f"| epoch {epoch:3d} | {batch:5d}/ 2983 batches | lr {20:02.2f} | ms/batch "
                f"{12.31:5.2f} | loss {loss:5.2f} | ppl {2.718**loss:8.2f}"
            )
            out.note((epoch - 1) * 2983 + batch, loss=f"{loss:5.2f}", lr="20.00")
        out.line("-" * 89)
        out.line(
            f"| end of epoch {epoch:3d} | time: {38.2:5.2f}s | valid loss {loss:5.2f} | "
            f"valid ppl {2.718**loss:8.2f}"
        )
        out.line("-" * 89)
        out.note(None, eval_loss=f"{loss:5.2f}")


@printed(
    "deit_meters",
    "facebookresearch/deit utils.py MetricLogger 7e160fe (2024-03)",
    note="median and, in brackets, mean; Total time closes an epoch",
)
def deit_meters(out: Log) -> None:
    """Print the lines of DeiT, DINO, MAE and their many children."""
    losses = out.losses(20, 6.95, 5.2)
    for epoch in (0, 1):
        for index in range(10):
            loss, batch = next(losses), index * 10
            out.line(
                f"Epoch: [{epoch}]  [{batch:4d}/1251]  eta: 0:10:22  lr: 0.000001  loss: "
                f"{loss:.4f} ({loss + 0.1:.4f})  time: 0.4912  data: 0.0101  max mem: 9911"
            )
            out.note(epoch * 1251 + batch, loss=f"{loss:.4f}", lr="0.000001")
        out.line(f"Epoch: [{epoch}] Total time: 0:10:14 (0.4911 s / it)")
        out.line(f"Averaged stats: lr: 0.000001  loss: {loss:.4f} ({loss + 0.1:.4f})")


@printed(
    "speechbrain_epochs",
    "speechbrain/speechbrain speechbrain/utils/train_logger.py 9c826ef (2026-04)",
    ambiguous=("step",),
    note="the step is the epoch",
)
def speechbrain_epochs(out: Log) -> None:
    """Write a line for each epoch."""
    for epoch, loss in enumerate(out.losses(20, 9.5, 1.3), 1):
        line = f"epoch: {epoch}, lr: 9.00e-04 - train loss: {loss:.2f}"
        out.line(f"{line} - valid loss: {loss + 0.2:.2f}, valid WER: 21.30")
        out.note(epoch, loss=f"{loss:.2f}", lr="9.00e-04", eval_loss=f"{loss + 0.2:.2f}")


@printed(
    "deepspeed_overflow",
    "deepspeed 0.19.8 runtime/fp16/loss_scaler.py, runtime/engine.py, utils/timer.py",
    note="fp16 finds its scale in the first steps: nothing to worry",
)
def deepspeed_overflow(out: Log) -> None:
    """Print the engine's lines of an fp16 run that begins, as all do, with a few overflows."""

    def message(level: str, where: str, text: str) -> None:
        out.line(f"[{out.stamp()}] [{level}] [{where}] {text}")

    for index, loss in enumerate(out.losses(40, 8.1, 3.0)):
        step = (index + 1) * 10
        out.wait(4)
        for power in (16, 15, 14, 13) if index == 0 else ():
            message(
                "INFO",
                "loss_scaler.py:187:update_scale",
                f"[deepspeed] OVERFLOW! Rank 0 Skipping"
                f" step. Attempted loss scale: {2**power}, reducing to {2 ** (power - 1)}",
            )
        lr, speed = f"{1e-4 * min(1, step / 100):.6g}", f"{out.near(171.9):.6f}"
        message(
            "INFO",
            "logging.py:107:log_dist",
            f"[Rank 0] step={step}, skipped=4, lr=[{lr}], mom=[(0.9, 0.999)]",
        )
        message(
            "INFO",
            "timer.py:264:stop",
            f"epoch=0/micro_step={step * 4}/global_step={step}, "
            f"RunningAvgSamplesPerSec=171.901, CurrSamplesPerSec={speed}, MemAllocated=4.31GB, "
            "MaxMemAllocated=11.07GB",
        )
        out.line(f"Epoch 0 Step {step} Loss {loss:.4f}")
        out.note(step, loss=f"{loss:.4f}", lr=lr)

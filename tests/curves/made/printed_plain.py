"""Logs of plain loops: healthy, damaged or problematic ones, and of programs without training."""

from __future__ import annotations

from tests.curves.made.printed import Log, printed


def _plain(out: Log, step: int, loss: float, speed: float = 41200.0) -> None:
    """Print the output of a typical loop."""
    text = f"step {step}/600 | loss {loss:.4f} | lr 3.00e-04 | {out.near(speed):.0f} tokens/s"
    out.line(f"{out.clock:%Y-%m-%d %H:%M:%S} INFO train.py:88 {text}")
    out.note(step, loss=f"{loss:.4f}", lr="3.00e-04")


@printed("plain_spike", "a plain loop", warnings=("spike",))
def plain_spike(out: Log) -> None:
    """Let the loss jump at step 400 and recover."""
    for index, loss in enumerate(out.losses(60, 9.8, 3.2)):
        step = (index + 1) * 10
        out.wait(12)
        _plain(out, step, loss + max(0.0, 5.5 - 1.2 * (index - 39)) * (index >= 39))


@printed("plain_divergence", "a plain loop", warnings=("divergence",))
def plain_divergence(out: Log) -> None:
    """Let the loss rise from step 300 on without recovering."""
    for index, loss in enumerate(out.losses(60, 9.8, 3.2)):
        out.wait(12)
        _plain(out, (index + 1) * 10, loss + max(0, index - 29) * 0.15)


@printed("plain_stall", "a plain loop", warnings=("stall",))
def plain_stall(out: Log) -> None:
    """Insert fifty minutes between two lines that are otherwise twelve seconds apart."""
    for index, loss in enumerate(out.losses(60, 9.8, 3.2)):
        out.wait(3000 if index == 40 else 12)
        _plain(out, (index + 1) * 10, loss)


@printed("plain_slower", "a plain loop", warnings=("throughput",))
def plain_slower(out: Log) -> None:
    """Reduce the speed to a third from step 400 on."""
    for index, loss in enumerate(out.losses(60, 9.8, 3.2)):
        slow = index >= 39
        out.wait(36 if slow else 12)
        _plain(out, (index + 1) * 10, loss, 13700 if slow else 41200)


@printed("plain_healthy", "a plain loop")
def plain_healthy(out: Log) -> None:
    """Warm up, with noise, occasional saves and a short slowdown: no reason to warn."""
    for index, loss in enumerate(out.losses(60, 9.8, 3.2)):
        out.wait(45 if index % 20 == 19 else 12)
        _plain(out, (index + 1) * 10, loss + out.random.gauss(0, 0.08), out.near(40000, 0.1))
        if index % 20 == 19:
            out.line(f"saving checkpoint to ckpt/step_{(index + 1) * 10}.pt (1.24 GB) took 32.1 s")


@printed("plain_dirt", "a plain loop", note="CRLF, NUL, bytes that are no UTF-8, colours, ranks")
def plain_dirt(out: Log) -> None:
    """Damage the log as screen, script and a full disk do."""
    out.line('Script started on 2026-11-20 08:04:09+00:00 [TERM="xterm"]\r')
    for index, loss in enumerate(out.losses(40, 9.8, 3.2)):
        step = index + 1
        text = f"\x1b[1mstep\x1b[0m={step} \x1b[33mloss={loss:.5f}\x1b[0m lr=1.00e-04"
        out.line(f"[rank0]:[rank0]: {text}\r")
        out.note(step, loss=f"{loss:.5f}", lr="1.00e-04")
        if step % 10 == 5:
            out.line("\x00\x00\x00\udcff\udcfe\udc80 step\r")
        if step % 10 == 7:
            out.line(f"[rank1]: W1120 08:04:09 retrying, loss of connection {step}.\r")


@printed("no_training", "programs that train nothing", note="not one number here was measured")
def no_training(out: Log) -> None:
    """Print words of a training log without any training."""
    out.line("Namespace(lr=0.0003, loss='mse', step=100, epochs=3, grad_norm=1.0, batch_size=32)")
    out.line("config:\n  optimizer:\n    lr: 3.0e-4\n  loss: cross_entropy\n  eval_loss: true")
    out.line("  max_steps: 600\n  log_every: 10\n  loss_weight: 0.5\n  loss_scale: 65536")
    out.line('{"train_batch_size": 64, "gradient_clipping": 1.0, "fp16": {"loss_scale": 0}}')
    out.line("    for step, batch in enumerate(loader):\n        loss = model(batch).loss")
    out.line('        print(f"step {step} | loss {loss.item():.4f} | lr {lr:.2e}")')
    out.line("Usage: train.py [OPTIONS]\n  --lr FLOAT      learning rate [default: 0.001]")
    out.line("  --loss TEXT     loss=mse or loss=l1 [default: mse]")
    out.line("Downloading shards: 100%|██████████| 2/2 [00:41<00:00, 20.6s/it]")
    out.line("Collecting packages: lossless-1.2.3 step-2.0 epoch-0.4")
    out.line("Epoch 3 of the calendar: loss of 12 seconds, step 4 of 9")
    out.line("slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0")

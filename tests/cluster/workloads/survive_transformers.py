"""The Trainer that saves and ends when it is asked to, as docs/survive.md has it."""

# mypy: ignore-errors
from __future__ import annotations

import signal

import curve
import torch
import torch.distributed as dist
import transformers
from transformers import HfArgumentParser, TrainerCallback, TrainingArguments


# doc: transformers
class SaveWhenAsked(TrainerCallback):
    """Save on all ranks at the end of the step in which one of them received SIGTERM."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.asked = []
        signal.signal(signal.SIGTERM, lambda *_: self.asked.append(1))

    def on_step_end(self, args, state, control, **kwargs):
        flag = torch.tensor(len(self.asked), device=args.device)
        if args.world_size > 1:
            dist.all_reduce(flag)
        if flag:
            control.should_save = control.should_training_stop = True


# end


class Trainer(transformers.Trainer):
    """One that prints each step's loss to the last bit."""

    def training_step(self, model, inputs, *args):
        loss = super().training_step(model, inputs, *args)
        curve.tell(self.state.global_step + 1, loss)
        return loss


def main() -> None:
    """Train."""
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    model = curve.Model()
    data = {"train_dataset": curve.Samples()}
    # doc: transformers
    trainer = Trainer(model, args, **data, callbacks=[SaveWhenAsked()])
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    # end
    step = trainer.state.global_step
    del trainer
    curve.leave(model, step)


if __name__ == "__main__":
    main()

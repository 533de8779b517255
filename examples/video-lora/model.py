"""A video transformer of diffusers with frozen weights and LoRA adapters."""

from __future__ import annotations

import argparse

from diffusers import WanTransformer3DModel
from peft import LoraConfig
from torch import Tensor, nn

from data import COLOURS, TEXT_DIM

# Attention and feed-forward, as usual. A base that was never trained also needs the second line:
# the layers into and out of the transformer.
USUAL = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
WAYS_IN_AND_OUT = ("patch_embedding", "linear_1", "linear_2", "time_proj", "proj_out")


def build(args: argparse.Namespace) -> nn.Module:
    """Load the base from args.base or create a random one, freeze it, and add the adapters.

    Raises OSError if args.base is no model.
    """
    if args.base:
        model = WanTransformer3DModel.from_pretrained(args.base)
    else:
        model = WanTransformer3DModel(
            patch_size=(1, args.patch, args.patch),
            num_attention_heads=args.heads,
            attention_head_dim=args.head_dim,
            in_channels=COLOURS,
            out_channels=COLOURS,
            text_dim=TEXT_DIM,
            ffn_dim=4 * args.heads * args.head_dim,
            num_layers=args.layers,
        )
    model.requires_grad_(False)
    targets = list(USUAL if args.base else USUAL + WAYS_IN_AND_OUT)
    alpha = 2 * args.rank if args.alpha is None else args.alpha
    model.add_adapter(
        LoraConfig(r=args.rank, lora_alpha=alpha, lora_dropout=args.dropout, target_modules=targets)
    )
    if args.activation_checkpointing == "true":
        model.enable_gradient_checkpointing()
    return model.train()  # a loaded base would disable dropout


def adapters_of(model: nn.Module) -> list[nn.Parameter]:
    """List the parameters that are trained."""
    return [each for each in model.parameters() if each.requires_grad]


def base_of(model: nn.Module) -> list[nn.Parameter]:
    """List the parameters that are frozen."""
    return [each for each in model.parameters() if not each.requires_grad]


def flow_matching_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean squared error of the flow from clip to noise, at each sample's time.

    ``batch`` is a sample of data.Clips with an additional first dimension.
    """
    dtype = next(model.parameters()).dtype  # under DeepSpeed bf16 or fp16
    time = batch["time"].view(-1, 1, 1, 1, 1)
    mixed = (1 - time) * batch["clip"] + time * batch["noise"]
    (flow,) = model(
        mixed.to(dtype),
        timestep=1000 * batch["time"],  # the time scale of this model
        encoder_hidden_states=batch["text"].to(dtype),
        return_dict=False,
    )
    return nn.functional.mse_loss(flow.float(), batch["noise"] - batch["clip"])


def size(parameters: list[nn.Parameter]) -> int:
    """Count parameters, including those in the shards of other ranks under ZeRO-3."""
    return sum(getattr(each, "ds_numel", each.numel()) for each in parameters)

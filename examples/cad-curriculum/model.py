"""A causal LM of Transformers with points and a picture as tokens before the caption."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from data import IGNORED, PIXELS, VOCABULARY

# `small` is for tests. The others have the widths and depths of Qwen2-0.5B and 1.5B (Qwen2
# Technical Report, arXiv 2407.10671, table 1), but are smaller because the vocabulary is tiny.
SIZES: dict[str, dict[str, Any]] = {
    "small": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 4, "intermediate_size": 256,
              # With the usual 0.02, a model this narrow hardly learns to attend within 80 steps.
              "initializer_range": 0.1},
    "0.4b": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2, "intermediate_size": 4864},
    "1.3b": {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
             "num_key_value_heads": 2, "intermediate_size": 8960},
}  # fmt: skip


class PointEncoder(nn.Module):
    """Encode each point separately, then take the maximum (PointNet, Qi et al., 1612.00593)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 128), nn.SiLU(), nn.Linear(128, 128))
        self.project = nn.Sequential(nn.SiLU(), nn.LayerNorm(128), nn.Linear(128, width))

    def forward(self, points: Tensor) -> Tensor:
        """Turn (batch, points, 3) into (batch, 1, width)."""
        found: Tensor = self.project(self.each(points).amax(dim=1, keepdim=True))
        return found


class PictureEncoder(nn.Module):
    """Two layers over all pixels; pictures this small need no convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.read = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS * PIXELS, 128))
        self.project = nn.Sequential(nn.SiLU(), nn.LayerNorm(128), nn.Linear(128, width))

    def forward(self, pictures: Tensor) -> Tensor:
        """Turn (batch, 1, PIXELS, PIXELS) into (batch, 1, width)."""
        found: Tensor = self.project(self.read(pictures)).unsqueeze(1)
        return found


class CadModel(nn.Module):
    """Predicts a CAD program from a caption and, if given, from points and a picture."""

    def __init__(
        self,
        size: str,
        *,
        pretrained: str | None = None,
        lora: int = 0,
        activation_checkpointing: bool = False,
    ) -> None:
        """Create a random model of a size, or load a causal LM from a folder or the hub.

        The embeddings of a loaded model are truncated to the vocabulary of this example. If
        ``lora`` (a rank) is set, only peft's adapters and the embeddings are trained.
        """
        super().__init__()
        self.lm: Any
        if pretrained:
            self.lm = AutoModelForCausalLM.from_pretrained(pretrained, torch_dtype=torch.float32)
            self.lm.resize_token_embeddings(len(VOCABULARY))
            self.lm.config.use_cache = False
        else:
            config = Qwen2Config(vocab_size=len(VOCABULARY), use_cache=False, **SIZES[size])
            self.lm = Qwen2ForCausalLM(config)
        if lora:
            from peft import LoraConfig, inject_adapter_in_model  # needed only here

            adapters = LoraConfig(r=lora, lora_alpha=2 * lora, target_modules="all-linear")
            self.lm = inject_adapter_in_model(adapters, self.lm)
            self.lm.get_input_embeddings().requires_grad_(True)
            self.lm.get_output_embeddings().requires_grad_(True)
        self.point_encoder = PointEncoder(self.lm.config.hidden_size)
        self.picture_encoder = PictureEncoder(self.lm.config.hidden_size)
        if activation_checkpointing:
            # Use the model's own switch; DeepSpeed's JSON block of that name would have no effect.
            switch: Any = self.lm.gradient_checkpointing_enable
            switch({"use_reentrant": False})

    def train_for(self, stage: int) -> None:
        """Freeze the encoders of later stages, for which Adam then needs no states."""
        self.point_encoder.requires_grad_(stage >= 2)
        self.picture_encoder.requires_grad_(stage >= 3)

    def forward(
        self,
        tokens: Tensor,
        labels: Tensor,
        points: Tensor | None = None,
        pictures: Tensor | None = None,
    ) -> Tensor:
        """Return the loss in nats per token: the mean over programs of each program's mean.

        Each program has the same weight, so the distribution of a batch over the ranks does not
        matter. ``data.Shapes`` documents the tensor shapes. Padding is at the end of a sequence,
        where no token of the loss can attend to it.
        """
        embedded = self.lm.get_input_embeddings()(tokens)
        before = []
        if pictures is not None:
            before.append(self.picture_encoder(pictures.to(embedded.dtype)))
        if points is not None:
            before.append(self.point_encoder(points.to(embedded.dtype)))
        whole = torch.cat([*before, embedded], dim=1)
        found = self.lm(inputs_embeds=whole).logits[:, -tokens.shape[1] : -1]
        wanted = labels[:, 1:]
        losses = nn.functional.cross_entropy(
            found.mT.float(), wanted, ignore_index=IGNORED, reduction="none"
        )
        return (losses.sum(dim=1) / (wanted != IGNORED).sum(dim=1)).mean()

"""The dimensions of a model that determine its memory, and its number of parameters."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hpcrun.errors import InputError

# rms: LlamaRMSNorm; rms_fp32: GemmaRMSNorm, which multiplies by the weight in fp32; rms_t5:
# T5LayerNorm.
Norm = Literal["layer", "rms", "rms_fp32", "rms_t5"]


class Stack(Struct, frozen=True, kw_only=True):
    """Equal transformer blocks in a row: an encoder, or a decoder.

    Attributes:
        kv_heads: Key-value heads; fewer than ``heads`` with grouped-query attention.
        ffn: Width of the feed-forward network, for one expert.
        gated: The network has a gate (SwiGLU, GEGLU), so three matrices instead of two.
        activation: The name of the activation function in the model's configuration.
        norm: Kind of the normalization.
        norms: Normalizations in a block.
        head_norms: Queries and keys are normalized per head (Qwen3).
        cross_attention: A second attention reads the encoder.
        experts: Number of routed experts; 1 without a mixture of experts.
        active_experts: Experts that process a token.
        shared_ffn: Width of experts that process every token; 0 without.
        shared_gate: The output of these experts has a gate (Qwen2-MoE).
        norm_bias: Layer norms have a bias.
        given_attention: Parameters of one attention of another kind, such as that with latent
            vectors of DeepSeek; 0 for those of plain projections.
        bias: Linear layers have a bias.
        qkv_bias: Only queries, keys and values have a bias (Qwen2).
        dropout: Dropout of the residual connections is active during training.
        attention_dropout: Dropout of the attention is active during training.
        softmax_fp32: eager attention computes the softmax in fp32.
        causal: Positions attend only to earlier ones.
        fused_projections: Queries, keys and values are one matrix multiplication, and the gate and
            the other projection too.
        position_bias: Scores have a trained bias, for which fused kernels keep all scores (T5).
        length: Fixed sequence length, as of images or audio; None: that of the batch.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool = True
    activation: str = "silu"
    norm: Norm = "rms"
    norms: int = 2
    head_norms: bool = False
    causal: bool = True
    cross_attention: bool = False
    experts: int = 1
    active_experts: int = 1
    shared_ffn: int = 0
    shared_gate: bool = False
    norm_bias: bool = True
    given_attention: int = 0
    bias: bool = False
    qkv_bias: bool = False
    dropout: bool = False
    attention_dropout: bool = False
    softmax_fp32: bool = True
    fused_projections: bool = False
    position_bias: bool = False
    length: int | None = None

    @property
    def attention_parameters(self) -> int:
        """Count the parameters of one attention."""
        if self.given_attention:
            return self.given_attention
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        count = self.hidden * (q + 2 * kv) + q * self.hidden
        if self.bias or self.qkv_bias:
            count += q + 2 * kv
        if self.bias:
            count += self.hidden
        return count + (2 * self.head_dim if self.head_norms else 0)

    @property
    def norm_parameters(self) -> int:
        """Count the parameters of one normalization."""
        return self.hidden * (2 if self.norm == "layer" and self.norm_bias else 1)

    def _network_parameters(self, width: int) -> int:
        matrices = 3 if self.gated else 2
        biases = (matrices - 1) * width + self.hidden if self.bias else 0
        return matrices * self.hidden * width + biases

    @property
    def layer_parameters(self) -> int:
        """Count the parameters of one block.

        >>> llama = Stack(layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336)
        >>> llama.layer_parameters
        218112000
        """
        norm = self.norm_parameters
        count = self.attention_parameters + self.norms * norm
        if self.cross_attention:
            count += self.attention_parameters + norm
        if self.experts > 1:
            count += self.hidden * self.experts + self.experts * self._network_parameters(self.ffn)
            if self.shared_ffn:
                count += self._network_parameters(self.shared_ffn)
                count += self.hidden if self.shared_gate else 0
        else:
            count += self._network_parameters(self.ffn)
        return count


class TracedActivations(Struct, frozen=True, kw_only=True):
    """Bytes that a trace of a training step found besides the states of the model.

    Attributes:
        kept: At the start of the backward pass.
        peak: The maximum before the optimizer's step.
        at_end: When all gradients exist.
        in_step: The maximum that the optimizer's step of torch adds.
    """

    kept: int
    peak: int
    at_end: int
    in_step: int


class ModelShape(Struct, frozen=True, kw_only=True):
    """A model as its memory sees it.

    Attributes:
        stacks: The encoder and decoder, or one of them; empty if only a number is known.
        vocab: Size of the vocabulary whose logits are computed; 0 without a language model head.
        other_parameters: Embeddings, heads and everything else outside the blocks.
        given_parameters: The number of parameters that was given, instead of the counted one.
        embedding_parameters: Parameters of the input embedding.
        tied: The input embedding is also the weight of the head.
        stem_numbers: Numbers of each sample that layers before the blocks keep.
        sample_numbers: Numbers of each sample of images or audio in the data loader.
        upcast_logits: The loss converts the logits to fp32.
        given_layer: Parameters of the largest block, if they were counted in a trace.
        given_tensor: Numbers in the largest tensor, if they were counted in a trace.
        traced: The activations of a trace, for its batch and settings.
        positions: Number of learned positions; 0 without.
        is_counted: The number of parameters is that of the model's class, of its weights or of a
            trace; otherwise it is computed by the names of the keys, and nothing is said about
            whether the training fits.
        notes: What was assumed.
    """

    name: str = ""
    stacks: list[Stack] = []
    vocab: int = 0
    other_parameters: int = 0
    embedding_parameters: int = 0
    tied: bool = False
    given_parameters: int | None = None
    stem_numbers: int = 0
    sample_numbers: int = 0
    upcast_logits: bool = True
    given_layer: int = 0
    given_tensor: int = 0
    traced: TracedActivations | None = None
    positions: int = 0
    is_counted: bool = True
    notes: list[str] = []

    @property
    def parameters(self) -> int:
        """Count all parameters."""
        if self.given_parameters is not None:
            return self.given_parameters
        return self.other_parameters + sum(
            stack.layers * stack.layer_parameters for stack in self.stacks
        )

    @property
    def largest_parameter(self) -> int:
        """Count the numbers in the largest tensor."""
        matrices = [stack.hidden * stack.ffn for stack in self.stacks]
        return max([self.given_tensor, self.embedding_parameters, *matrices])

    @property
    def largest_layer(self) -> int:
        """Count the parameters of the largest block or embedding, which ZeRO-3 gathers at once."""
        if not self.stacks:
            return self.given_layer
        return max([stack.layer_parameters for stack in self.stacks] + [self.embedding_parameters])


def build_shape(
    *,
    parameters: int | None = None,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    ffn: int | None = None,
    vocab: int | None = None,
    head_dim: int | None = None,
    experts: int | None = None,
    active_experts: int | None = None,
    tied: bool = False,
) -> ModelShape:
    """Build the shape of a decoder of Llama's kind from numbers.

    Raises:
        InputError: The heads do not divide the width, or each other.

    >>> shape = build_shape(layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064)
    >>> shape.parameters
    7615487488
    """
    if layers is None or hidden is None:
        return ModelShape(given_parameters=parameters, vocab=vocab or 0)
    heads = heads or max(hidden // 128, 1)
    if head_dim is None and hidden % heads:
        raise InputError(f"{heads} heads do not divide a width of {hidden}")
    if heads % (kv_heads or heads):
        raise InputError(f"{kv_heads} key-value heads do not divide {heads} heads")
    stack = Stack(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads or heads,
        head_dim=head_dim or hidden // heads,
        ffn=ffn or 4 * hidden,
        gated=ffn is not None,
        activation="silu" if ffn is not None else "gelu",
        norm="rms" if ffn is not None else "layer",
        experts=experts or 1,
        active_experts=active_experts or 1,
    )
    embedding = (vocab or 0) * hidden
    other = embedding * (1 if tied else 2) + hidden
    counted = other + layers * stack.layer_parameters
    notes = []
    if parameters is not None and not 0.7 < counted / parameters < 1.4:
        notes.append(
            f"the dimensions have {counted / 1e9:.3g} B parameters instead of "
            f"{parameters / 1e9:.3g} B: only activations follow from them"
        )
    return ModelShape(
        stacks=[stack],
        vocab=vocab or 0,
        other_parameters=other,
        embedding_parameters=embedding,
        tied=tied,
        given_parameters=parameters,
        notes=notes,
    )

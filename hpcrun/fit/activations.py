"""Memory of activations: what autograd keeps between the forward and the backward pass."""

from __future__ import annotations

from msgspec import Struct, structs

from hpcrun.fit.settings import Training
from hpcrun.fit.shape import ModelShape, Stack

# Tensors of the width of the feed-forward network that autograd keeps for an activation function,
# without its output, which the next matrix multiplication keeps. relu keeps only its output;
# functions that transformers composes of several operations keep their intermediate results
# (transformers/activations.py: NewGELUActivation, QuickGELUActivation, BloomGelu is one function).
_KEPT_BY_ACTIVATION = {
    "relu": 0,
    "gelu": 1,
    "gelu_pytorch_tanh": 1,
    "silu": 1,
    "swish": 1,
    "gelu_new": 4,
    "gelu_fast": 4,
    "quick_gelu": 2,
}


class Activations(Struct, frozen=True, kw_only=True):
    """Bytes of activations of one rank.

    Attributes:
        kept: Kept until the backward pass.
        logits: Logits, their fp32 copies and gradients.
        transient: The largest of the tensors that exist only while one block is computed.
        at_end: What still exists when nearly all gradients are computed.
        weight_copies: 16-bit copies of the weights that autocast keeps.
    """

    kept: float
    logits: float
    transient: float
    at_end: float
    weight_copies: float = 0


def compute_activations(shape: ModelShape, training: Training) -> Activations | None:
    """Compute the activations of one rank; None without dimensions or a sequence length.

    The approach is that of Korthikanti et al. (arXiv 2205.05198, section 4.1): sum up the tensors
    that each operation keeps for its backward pass, and divide nothing by the data-parallel ranks.
    The operations are those of transformers' blocks instead of Megatron's. With checkpointing,
    only the input of each block is kept, and one block is recomputed at a time.
    """
    if shape.traced is not None:
        return Activations(
            kept=shape.traced.kept,
            logits=0,
            transient=shape.traced.peak - shape.traced.kept,
            at_end=shape.traced.at_end,
        )
    if not shape.stacks:
        return None
    lengths = [stack.length or training.sequence for stack in shape.stacks]
    if None in lengths:
        return None
    kept = transient = 0.0
    for index, stack in enumerate(shape.stacks):
        length = lengths[index] or 0
        tokens = training.micro_batch * length
        source = training.micro_batch * (lengths[0] or 0) if stack.cross_attention else 0
        block = _block_bytes(stack, training, tokens, length, source, lengths[0] or 0)
        backward = _backward_bytes(stack, training, tokens, length)
        stream = tokens * stack.hidden * _stream_width(training)
        if training.checkpointing:
            kept += stack.layers * stream
            transient = max(transient, block + backward)
        else:
            kept += stack.layers * block
            transient = max(transient, backward)
        kept += _norm_bytes(stack, training, tokens * stack.hidden)
    kept += shape.stem_numbers * training.micro_batch * training.width
    logits = _logit_bytes(shape, training, training.micro_batch * (lengths[-1] or 0))
    copies = 0.0
    if training.weights == "autocast" and training.width == 2 and training.strategy != "fsdp":
        # Of the weights of matrix multiplications, until the end of the backward pass
        # (aten/src/ATen/autocast_mode.cpp, cached_cast).
        copies = 2.0 * (shape.parameters - shape.embedding_parameters)
    return Activations(
        kept=kept, logits=logits, transient=transient, at_end=transient, weight_copies=copies
    )


def scale_activations(found: Activations, factor: float) -> Activations:
    """Scale everything that a trace or a formula contributes, except copies of weights."""
    names = ("kept", "logits", "transient", "at_end")
    return structs.replace(found, **{name: factor * getattr(found, name) for name in names})


def _stream_width(training: Training) -> int:
    """Return the bytes of a number of the residual stream, which autocast leaves in fp32."""
    return 4 if training.weights == "autocast" else training.width


def _norm_bytes(stack: Stack, training: Training, numbers: float) -> float:
    """Compute what one normalization keeps, with its output, the next operation's input.

    An RMS norm of transformers keeps an fp32 copy of its input, and the normalized values to
    multiply them by the weight (models/llama/modeling_llama.py, LlamaRMSNorm.forward), in fp32 in
    models/gemma/modeling_gemma.py; T5LayerNorm also keeps its input. layer_norm keeps its input
    (tools/autograd/derivatives.yaml, native_layer_norm). Under autocast the output is in fp32, and
    the next matrix multiplication keeps its 16-bit copy.
    """
    stream, width = _stream_width(training), training.width
    kept = {
        "layer": stream,
        "rms": 4 + stream,
        "rms_fp32": 8,
        "rms_t5": 4 + 2 * stream if stream < 4 else 8,
    }
    return numbers * (kept[stack.norm] + width)


def _attention_bytes(
    stack: Stack, training: Training, tokens: float, keys: float, pairs: float
) -> float:
    """Compute what one attention keeps, without its input.

    Args:
        tokens: Queries of all samples.
        keys: Keys of all samples.
        pairs: Pairs of a query and a key, per head.

    Fused kernels keep queries, keys, values, the output and a log-sum-exp
    (derivatives.yaml, _scaled_dot_product_flash_attention). eager attention keeps the softmax, and
    with dropout a mask of one byte and the result of dropout: 5as^2b of the paper with a softmax in
    16 bits. In many models the softmax is in fp32 (modeling_llama.py, eager_attention_forward), and
    in all of them under autocast (aten/src/ATen/autocast_mode.h, AT_FORALL_FP32_SET_OPT_DTYPE);
    then a 16-bit copy is kept, of the result of dropout if there is one.
    """
    width = training.width
    q, kv = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
    if training.attention == "eager" or stack.position_bias:
        is_cast = width == 2 and (stack.softmax_fp32 or training.weights == "autocast")
        each = 4 if is_cast else width
        if is_cast or stack.attention_dropout:
            each += width
        if stack.attention_dropout:
            each += 1
        scores = stack.heads * pairs * each
        # Keys and values are repeated for each query head.
        return width * (2 * q * tokens + 2 * q * keys) + scores
    return width * (2 * q * tokens + 2 * kv * keys) + 4 * stack.heads * tokens


def _network_bytes(stack: Stack, training: Training, tokens: float) -> float:
    """Compute what the feed-forward network keeps, without its input.

    Gated: the gate, its activation, the other projection and their product. Otherwise: the input
    and the output of the activation function. Each expert keeps the same for its tokens, besides
    their gathered input and output (models/mixtral/modeling_mixtral.py, MixtralExperts.forward).
    """
    width = training.width
    extra = _KEPT_BY_ACTIVATION.get(stack.activation, 1)
    tensors = 3 + extra if stack.gated else 1 + extra
    each = width * tensors * stack.ffn
    if stack.experts > 1:
        routed = each + width * 2 * stack.hidden
        total = tokens * stack.active_experts * routed + tokens * stack.experts * (4 + width)
        if stack.shared_ffn:
            total += tokens * width * (tensors * stack.shared_ffn + stack.hidden)
        return total
    return tokens * each


def _block_bytes(
    stack: Stack,
    training: Training,
    tokens: float,
    length: float,
    source: float,
    source_length: float,
) -> float:
    """Compute what one block keeps for its backward pass."""
    hidden, width = tokens * stack.hidden, training.width
    total = stack.norms * _norm_bytes(stack, training, hidden)
    total += _attention_bytes(stack, training, tokens, tokens, tokens * length)
    if stack.head_norms:
        heads = tokens * stack.head_dim * (stack.heads + stack.kv_heads)
        total += heads * (4 + width)
    if stack.cross_attention:
        total += _norm_bytes(stack, training, hidden)
        total += _attention_bytes(stack, training, tokens, source, tokens * source_length)
    total += _network_bytes(stack, training, tokens)
    if stack.dropout:  # masks of one byte per number
        branches = 3 if stack.cross_attention else 2
        total += branches * hidden
    return total


def _backward_bytes(stack: Stack, training: Training, tokens: float, length: float) -> float:
    """Compute how much memory the backward pass of one block adds to what the block keeps.

    Autograd frees what an operation keeps as soon as its gradient is computed. The block's
    feed-forward network comes first: the gradient of its product replaces the product, and those of
    its factors are added. When the attention follows, the network's tensors are already free; eager
    attention then has several gradients of the scores at a time.
    """
    width = training.width
    inner = tokens * stack.ffn * (stack.active_experts if stack.experts > 1 else 1)
    network = inner * width * (2 if stack.gated else 1)
    attention = 4.0 * width * tokens * stack.heads * stack.head_dim
    if training.attention == "eager" or stack.position_bias:
        # In fp32 the gradients of the softmax and of its input, while its 16-bit copy is free;
        # otherwise also the gradient of the scores before their scaling.
        each = 2 * 4 - width if stack.softmax_fp32 and width == 2 else 3 * width
        attention = float(each * stack.heads * tokens * length)
    freed = _network_bytes(stack, training, tokens)
    freed += _norm_bytes(stack, training, tokens * stack.hidden)
    stream = 2 * tokens * stack.hidden * _stream_width(training)
    return stream + max(network, attention - freed)


def _logit_bytes(shape: ModelShape, training: Training, tokens: float) -> float:
    """Compute the logits at the start of the backward pass.

    The loss of causal models in transformers converts logits to fp32 (loss/loss_utils.py,
    ForCausalLMLoss). cross_entropy keeps the result of log_softmax, and its backward pass has the
    gradients of that result and of its input at the same time (aten/src/ATen/native/LossNLL.cpp,
    SoftMax.cpp): three tensors besides the logits.
    """
    if training.width == 4 or not shape.upcast_logits:
        return tokens * shape.vocab * training.width * 4
    return tokens * shape.vocab * (training.width + 3 * 4)

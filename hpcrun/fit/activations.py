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
# NewGELUActivation calls torch.pow, which autocast runs in fp32 (aten/src/ATen/autocast_mode.h,
# AT_FORALL_FP32). In fp32 the input of pow, tanh and 1 + tanh are kept, in 16 bits half the input.
_GELU_NEW_AUTOCAST_BYTES = 3 * 4 + 2


class Activations(Struct, frozen=True, kw_only=True):
    """Bytes of activations of one rank.

    Attributes:
        kept: Kept until the backward pass, with the logits in the format of the computation, to
            which a variable of the script refers.
        logits: The result of log_softmax, and the gradients of the logits; with checkpointing also
            autocast's copy of the head's weight.
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
    kept = transient = at_end = forward = 0.0
    for index, stack in enumerate(shape.stacks):
        length = lengths[index] or 0
        tokens = training.micro_batch * length
        source = training.micro_batch * (lengths[0] or 0) if stack.cross_attention else 0
        block = _block_bytes(stack, training, tokens, length, source, lengths[0] or 0)
        added = _backward_bytes(stack, training, tokens, length)
        stream = tokens * stack.hidden * _stream_width(training)
        if training.checkpointing:
            kept += stack.layers * stream
            transient = max(transient, added + block)
        else:
            kept += stack.layers * block
            transient = max(transient, added)
        # The first block, whose backward pass is the last one, still has what it kept.
        at_end = max(at_end, added + block)
        forward = max(forward, _forward_bytes(stack, training, tokens, length))
        kept += _norm_bytes(stack, training, tokens * stack.hidden, 1)
    kept += shape.stem_numbers * training.micro_batch * training.width
    numbers = float(training.micro_batch * (lengths[-1] or 0) * shape.vocab)
    kept += numbers * training.width
    logits = 3 * numbers * _loss_width(shape, training)
    head, copies = _weight_copies(shape, training)
    if copies and training.checkpointing:
        # All copies exist until the region of autocast ends, at first with tensors of the last
        # block, then with the logits in fp32 and the result of log_softmax. The backward pass
        # starts with that of the head, and makes those of each block again.
        transient = max(transient, copies + max(forward, 2 * logits / 3))
        logits += head
        copies = 0.0
    return Activations(
        kept=kept, logits=logits, transient=transient, at_end=at_end, weight_copies=copies
    )


def scale_activations(found: Activations, factor: float) -> Activations:
    """Scale everything that a trace or a formula contributes.

    Copies of weights that exist all the time are exact. With checkpointing they are not apart.
    """
    names = ("kept", "logits", "transient", "at_end")
    return structs.replace(found, **{name: factor * getattr(found, name) for name in names})


def _is_autocast(training: Training) -> bool:
    """Tell whether operations run in different formats."""
    return training.weights == "autocast" and training.width == 2


def _stream_width(training: Training) -> int:
    """Return the bytes of a number of the residual stream.

    Autocast leaves the output of an fp32 embedding and what is added to it in fp32. FSDP gathers
    weights in 16 bits (MixedPrecisionPolicy, param_dtype), so the embedding's output has 16 bits;
    Accelerate (accelerator.py, prepare_model) and Lightning run the model under autocast also then.
    """
    return 4 if _copies_weights(training) else training.width


def _copies_weights(training: Training) -> bool:
    """Tell whether autocast copies the weights of matrix multiplications."""
    return _is_autocast(training) and training.strategy != "fsdp"


def _weight_copies(shape: ModelShape, training: Training) -> tuple[float, float]:
    """Compute the 16-bit copies of the weights of the head and of all matrix multiplications.

    Autocast makes each once in a region (aten/src/ATen/autocast_mode.cpp, cached_cast), and
    autograd keeps those of all layers that are not recomputed. An embedding is copied only if it is
    also the head.
    """
    if not _copies_weights(training):
        return 0.0, 0.0
    multiplied = shape.parameters - shape.embedding_parameters
    if shape.tied and shape.vocab:
        multiplied = shape.parameters
    return 2.0 * shape.embedding_parameters if shape.vocab else 0.0, 2.0 * multiplied


def _norm_bytes(stack: Stack, training: Training, numbers: float, readers: int) -> float:
    """Compute what one normalization keeps, with its output, the next operation's input.

    An RMS norm of transformers keeps an fp32 copy of its input, and the normalized values to
    multiply them by the weight (models/llama/modeling_llama.py, LlamaRMSNorm.forward), in fp32 in
    models/gemma/modeling_gemma.py; T5LayerNorm also keeps its input. layer_norm keeps its input
    (tools/autograd/derivatives.yaml, native_layer_norm), which autocast converts to fp32
    (autocast_mode.h, AT_FORALL_FP32).

    Args:
        readers: Matrix multiplications that read the output. If it is in fp32, each of them makes
            its own 16-bit copy: cached_cast shares only copies of leaves, that is of weights.
    """
    stream, width = _stream_width(training), training.width
    is_autocast = _is_autocast(training)
    kept = {
        "layer": 4 if is_autocast else stream,
        "rms": 4 + stream,
        "rms_fp32": 8,
        "rms_t5": 4 + 2 * stream if stream < 4 else 8,
    }
    is_fp32 = is_autocast and (stream == 4 or stack.norm == "layer")
    return numbers * (kept[stack.norm] + width * (readers if is_fp32 else 1))


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


def _hidden_bytes(stack: Stack, training: Training) -> int:
    """Compute what the feed-forward network keeps for each number of its hidden layer.

    Gated: the gate, its activation, the other projection and their product. Otherwise: the input
    and the output of the activation function.
    """
    width = training.width
    total = width * ((3 if stack.gated else 1) + _KEPT_BY_ACTIVATION.get(stack.activation, 1))
    if not _is_autocast(training):
        return total
    if stack.activation == "gelu_new":
        # A gated network also keeps the function's fp32 result, the other projection and the copy
        # of their product.
        total = _GELU_NEW_AUTOCAST_BYTES + (4 + 2 * width if stack.gated else width)
    elif stack.norm == "rms_t5" and not stack.gated:
        # T5DenseActDense converts the result of relu to the format of the weights and back.
        total += width
    return total


def _network_bytes(stack: Stack, training: Training, tokens: float) -> float:
    """Compute what the feed-forward network keeps, without its input.

    Each expert keeps the same for its tokens, besides their gathered input and output
    (models/mixtral/modeling_mixtral.py, MixtralExperts.forward).
    """
    width, each = training.width, _hidden_bytes(stack, training)
    if stack.experts > 1:
        routed = each * stack.ffn + width * 2 * stack.hidden
        total = tokens * stack.active_experts * routed + tokens * stack.experts * (4 + width)
        if stack.shared_ffn:
            total += tokens * (each * stack.shared_ffn + width * stack.hidden)
        return total
    return tokens * each * stack.ffn


def _network_readers(stack: Stack) -> int:
    """Count the matrix multiplications that read the input of the feed-forward network."""
    if stack.experts > 1:  # the router; the shared expert's two and its gate
        return 4 if stack.shared_ffn else 1
    return 2 if stack.gated and not stack.fused_projections else 1


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
    projections = 1 if stack.fused_projections else 3
    total = _norm_bytes(stack, training, hidden, projections)
    total += (stack.norms - 1) * _norm_bytes(stack, training, hidden, _network_readers(stack))
    total += _attention_bytes(stack, training, tokens, tokens, tokens * length)
    if stack.head_norms:
        heads = tokens * stack.head_dim * (stack.heads + stack.kv_heads)
        total += heads * (4 + width)
    if stack.cross_attention:
        total += _norm_bytes(stack, training, hidden, 1)
        if _stream_width(training) > width:  # of the encoder's output, for keys and for values
            total += 2 * width * source * stack.hidden
        total += _attention_bytes(stack, training, tokens, source, tokens * source_length)
    total += _network_bytes(stack, training, tokens)
    if stack.dropout:  # masks of one byte per number
        branches = 3 if stack.cross_attention else 2
        total += branches * hidden
    return total


def _forward_bytes(stack: Stack, training: Training, tokens: float, length: float) -> float:
    """Compute what one block has at a time in the forward pass if autograd keeps nothing of it.

    The inputs and the output of the activation function while the last weight has no copy yet, or
    the scores and their softmax in fp32; and the normalized input.
    """
    active = stack.active_experts if stack.experts > 1 else 1
    inner = tokens * stack.ffn * active * training.width * (3 if stack.gated else 2)
    inner -= 2 * stack.hidden * stack.ffn
    scores = 0.0
    if training.attention == "eager" or stack.position_bias:
        scores = 8.0 * stack.heads * tokens * length
    return max(inner, scores) + tokens * stack.hidden * _stream_width(training)


def _backward_bytes(stack: Stack, training: Training, tokens: float, length: float) -> float:
    """Compute how much memory the backward pass of one block adds to what the block keeps.

    Autograd frees what an operation keeps as soon as its gradient is computed. The block's
    feed-forward network comes first: the gradient of its product replaces the product, and those of
    its factors are added. When the attention follows, the network's tensors are already free; eager
    attention then has several gradients of the scores at a time. Of a recomputed block, autocast's
    copies of its weights are freed in the same order.
    """
    width = training.width
    inner = tokens * stack.ffn * (stack.active_experts if stack.experts > 1 else 1)
    network = inner * width * (2 if stack.gated else 1)
    attention = 4.0 * width * tokens * stack.heads * stack.head_dim
    if training.attention == "eager" or stack.position_bias:
        # The gradients of the softmax and of its input, while its copy or the result of dropout,
        # which the product with the values kept, is free.
        each = 2 * width
        if width == 2 and (stack.softmax_fp32 or _is_autocast(training)):
            each = 2 * 4 - width
        elif stack.attention_dropout:
            each = width
        attention = float(each * stack.heads * tokens * length)
    if training.checkpointing and _copies_weights(training):
        last = stack.hidden * stack.ffn * stack.experts
        network += 2.0 * (stack.layer_parameters - last)
        attention += 2.0 * stack.attention_parameters
    freed = _network_bytes(stack, training, tokens)
    freed += _norm_bytes(stack, training, tokens * stack.hidden, _network_readers(stack))
    stream = 2 * tokens * stack.hidden * _stream_width(training)
    return stream + max(network, attention - freed)


def _loss_width(shape: ModelShape, training: Training) -> int:
    """Return the bytes of each of three tensors of the size of the logits.

    The loss of causal models in transformers converts logits to fp32 (loss/loss_utils.py,
    ForCausalLMLoss), and autocast does so for all losses. cross_entropy keeps the result of
    log_softmax, and its backward pass has the gradients of that result and of its input at the same
    time (aten/src/ATen/native/LossNLL.cpp, SoftMax.cpp).
    """
    return 4 if shape.upcast_logits or _is_autocast(training) else training.width

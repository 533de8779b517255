"""The dimensions of a model from its Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from hpcrun.errors import InputError
from hpcrun.fit.shape import ModelShape, Norm, Stack

# The same dimension under the names that transformers' configuration classes use.
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "hidden_dim")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads")
_FFN = ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "ffn_hidden_size")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
# Widths of an embedding that is projected to that of the blocks (ELECTRA, OPT 350M).
_EMBEDDING = ("embedding_size", "word_embed_proj_dim")


class Family(Struct, frozen=True, kw_only=True):
    """What a ``config.json`` omits, because the model's class in transformers implies it.

    Attributes:
        positions: The key with the number of learned positions.
        segments: Number of segment embeddings.
        dropout: The keys of dropout with their defaults.
    """

    gated: bool = True
    norm: Norm = "rms"
    bias: bool = False
    qkv_bias: bool = False
    head_norms: bool = False
    norms: int = 2
    causal: bool = True
    activation: str = "silu"
    positions: str = ""
    segments: int = 0
    embedding_norm: bool = False
    norm_bias: bool = True
    softmax_fp32: bool = True
    fused_projections: bool = False
    upcast_logits: bool = True
    dropout: tuple[str, float] = ("", 0.0)
    attention_dropout: tuple[str, float] = ("", 0.0)


# Types whose class in transformers 5 has tie_word_embeddings=True as its default, so that a
# config.json of a model with tied embeddings omits the key.
_TIED = {
    *("albert", "bart", "bert", "bert-generation", "big_bird", "bigbird_pegasus", "biogpt"),
    *("blenderbot", "blenderbot-small", "blip_text_model", "bloom", "camembert", "canary"),
    *("cohere", "cohere2", "cohere2_moe", "cohere_compass_text", "convbert", "cpmant"),
    *("csm", "ctrl", "data2vec-text", "deberta", "deberta-v2", "diffusion_gemma_text"),
    *("distilbert", "electra", "ernie", "ernie4_5", "ernie4_5_moe", "ernie4_5_vl_moe_text"),
    *("esm", "falcon", "falcon_mamba", "flaubert", "fnet", "funnel", "gemma", "gemma2"),
    *("gemma3_text", "gemma3n_text", "gemma4_assistant", "gemma4_text"),
    *("gemma4_unified_text", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neo"),
    *("gpt_neox_japanese", "granite_docling_text", "granite_speech5_ctc", "granite_swa"),
    *("gte", "hunyuan_vl_text", "ibert", "jetmoe", "jina_embeddings_v3"),
    *("kosmos_2_5_text_model", "kosmos_2_text_model", "layoutlm", "led", "lfm2"),
    *("lfm2_moe", "lfm3", "longformer", "longt5", "luke", "lxmert", "m2m_100", "mamba"),
    *("marian", "mbart", "megatron-bert", "minicpm3", "mobilebert", "modernbert"),
    *("modernbert-decoder", "moonshine", "mpnet", "mpt", "mra", "mt5", "mvp", "neomme"),
    *("nllb-moe", "nomic_bert", "nystromformer", "openai-gpt", "opt", "ovis2"),
    *("paddleocr_vl_text", "paligemma", "pegasus", "pegasus_x", "plbart", "pop2piano"),
    *("prophetnet", "qwen2_5_omni_text", "qwen3_vl_moe_text", "recurrent_gemma", "roberta"),
    *("roberta-prelayernorm", "roc_bert", "roformer", "seamless_m4t", "seamless_m4t_v2"),
    *("smollm3", "speech_to_text", "speecht5", "squeezebert", "starcoder2"),
    *("switch_transformers", "t5", "t5_gemma_module", "t5gemma", "t5gemma2"),
    *("t5gemma2_decoder", "t5gemma2_text", "tapas", "trocr", "udop", "umt5", "vaultgemma"),
    *("vilt", "visual_bert", "whisper", "xglm", "xlm", "xlm-roberta", "xlm-roberta-xl"),
    *("xlnet", "xmod", "yoso", "youtu", "zamba", "zamba2", "zaya"),
}

_LLAMA = Family()
_GPT2 = Family(
    fused_projections=True,
    gated=False,
    norm="layer",
    bias=True,
    activation="gelu_new",
    positions="n_positions",
    softmax_fp32=False,
    dropout=("resid_pdrop", 0.1),
    attention_dropout=("attn_pdrop", 0.1),
)
_BERT = Family(
    gated=False,
    norm="layer",
    bias=True,
    causal=False,
    activation="gelu",
    positions="max_position_embeddings",
    segments=2,
    embedding_norm=True,
    softmax_fp32=False,
    upcast_logits=False,
    dropout=("hidden_dropout_prob", 0.1),
    attention_dropout=("attention_probs_dropout_prob", 0.1),
)
_MODERN = Family(
    norm="layer",
    norm_bias=False,
    causal=False,
    activation="gelu",
    embedding_norm=True,
    softmax_fp32=False,
    upcast_logits=False,
)
_FAMILIES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "qwen2": Family(qkv_bias=True),
    "qwen2_vl": Family(qkv_bias=True),
    "qwen2_vl_text": Family(qkv_bias=True),
    "qwen2_5_vl": Family(qkv_bias=True),
    "qwen2_5_vl_text": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias=True),
    "qwen3": Family(head_norms=True),
    "qwen3_moe": Family(head_norms=True),
    "phi3": Family(fused_projections=True),
    "olmo": _LLAMA,
    "smollm3": _LLAMA,
    # Attention and network read the same norm, a layer norm in fp32 without bias (CohereLayerNorm).
    "cohere": Family(norm="rms_fp32", norms=1),
    "cohere2": Family(norm="rms_fp32", norms=1),
    "starcoder2": Family(
        gated=False,
        norm="layer",
        bias=True,
        activation="gelu_pytorch_tanh",
        dropout=("residual_dropout", 0.0),
        attention_dropout=("attention_dropout", 0.0),
    ),
    "gemma": Family(norm="rms_fp32", activation="gelu_pytorch_tanh"),
    "gemma2": Family(norm="rms_fp32", activation="gelu_pytorch_tanh", norms=4),
    "gemma3_text": Family(
        norm="rms_fp32", activation="gelu_pytorch_tanh", norms=4, head_norms=True
    ),
    "gpt2": _GPT2,
    "gpt_bigcode": structs.replace(_GPT2, activation="gelu_pytorch_tanh"),
    "gpt_neox": Family(
        gated=False, norm="layer", bias=True, activation="gelu", fused_projections=True
    ),
    "opt": Family(
        gated=False,
        norm="layer",
        bias=True,
        activation="relu",
        positions="max_position_embeddings",
        dropout=("dropout", 0.1),
        attention_dropout=("attention_dropout", 0.0),
    ),
    "bloom": Family(
        fused_projections=True,
        gated=False,
        norm="layer",
        bias=True,
        activation="gelu",
        embedding_norm=True,
        dropout=("hidden_dropout", 0.0),
        attention_dropout=("attention_dropout", 0.0),
    ),
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "ernie": _BERT,
    "data2vec-text": _BERT,
    "distilbert": structs.replace(
        _BERT, segments=0, dropout=("dropout", 0.1), attention_dropout=("attention_dropout", 0.1)
    ),
    "electra": _BERT,
    "modernbert": _MODERN,
    "modernbert-decoder": structs.replace(_MODERN, causal=True),
    "falcon": Family(
        gated=False,
        norm="layer",
        activation="gelu",
        fused_projections=True,
        dropout=("hidden_dropout", 0.0),
        attention_dropout=("attention_dropout", 0.0),
    ),
    "deepseek_v2": _LLAMA,
    "deepseek_v3": _LLAMA,
    "minicpm3": _LLAMA,
    "glm4_moe": _LLAMA,
    "ernie4_5_moe": _LLAMA,
    "bitnet": Family(activation="relu2"),
    "vit": Family(
        gated=False,
        norm="layer",
        bias=True,
        causal=False,
        activation="gelu",
        dropout=("hidden_dropout_prob", 0.0),
        attention_dropout=("attention_probs_dropout_prob", 0.0),
    ),
}


class _EncoderDecoder(Struct, frozen=True, kw_only=True):
    """Which layers an encoder and a decoder of BART's kind have around their blocks.

    Attributes:
        positions: Each side has this number of positions more than the configuration says; None
            if positions are computed without parameters.
        embedding_norm: Embeddings are normalized.
        final_norm: The output of each side is normalized.
    """

    positions: int | None
    embedding_norm: bool
    final_norm: bool


# models/*/modeling_*.py. Sinusoidal positions of Marian and Pegasus are frozen parameters.
_LIKE_BART = {
    "bart": _EncoderDecoder(positions=2, embedding_norm=True, final_norm=False),
    "mbart": _EncoderDecoder(positions=2, embedding_norm=True, final_norm=True),
    "plbart": _EncoderDecoder(positions=2, embedding_norm=True, final_norm=False),
    "marian": _EncoderDecoder(positions=0, embedding_norm=False, final_norm=False),
    "pegasus": _EncoderDecoder(positions=0, embedding_norm=False, final_norm=True),
    "blenderbot": _EncoderDecoder(positions=0, embedding_norm=False, final_norm=True),
    "blenderbot-small": _EncoderDecoder(positions=0, embedding_norm=True, final_norm=False),
    "m2m_100": _EncoderDecoder(positions=None, embedding_norm=False, final_norm=True),
}


# Models whose memory only a trace tells: state-space, convolutional and recurrent ones, those that
# train an encoder of images together with one of texts, and encoders of raw audio, whose
# convolutions keep more than their blocks; and those whose blocks share weights, or have attention
# or networks of another kind than any family here.
_NOT_TRANSFORMERS = {
    *("clip", "chinese_clip", "altclip", "siglip", "siglip2", "clap", "align", "flava", "blip"),
    *("groupvit", "owlvit", "owlv2", "clipseg", "wav2vec2", "wav2vec2-conformer", "wavlm"),
    *("hubert", "data2vec-audio", "unispeech", "unispeech-sat", "sew", "encodec", "dac"),
    *("mamba", "mamba2", "falcon_mamba", "zamba", "zamba2", "jamba", "bamba", "rwkv"),
    *("albert", "longformer", "led", "big_bird", "bigbird_pegasus", "reformer", "funnel", "fnet"),
    *(
        "mobilebert",
        "squeezebert",
        "convbert",
        "xlnet",
        "xlm",
        "flaubert",
        "luke",
        "ctrl",
        "canine",
    ),
    *("rembert", "xmod", "jetmoe", "lfm2", "lfm2_moe", "gemma3n_text", "minimax", "youtu"),
    *("recurrent_gemma", "xlstm", "resnet", "convnext", "convnextv2", "regnet", "efficientnet"),
    *(
        "mobilenet_v1",
        "mobilenet_v2",
        "segformer",
        "swin",
        "swinv2",
        "timm_wrapper",
        "timm_backbone",
    ),
    *("beit", "cpmant", "doge", "evolla", "gemma4_text", "gemma4_unified_text", "git", "gte"),
    *("hrm_text", "imagegpt", "layoutlm", "llama4_text", "longcat_flash", "moshi", "neomme"),
    *("roc_bert", "tapas", "yoso"),
}


# Families of which the number of parameters is computed by their keys, and is within 1 % of that of
# the class in transformers 5.23 for its default configuration and for a smaller one.
_COUNTED = {
    *("afmoe", "apertus", "arcee", "aria_text", "axk1", "bert-generation", "biogpt", "codegen"),
    *("cohere2_moe", "cwm", "deberta", "deberta-v2", "diffllama", "ernie4_5", "esmc", "eurobert"),
    *("exaone4", "exaone_moe", "flex_olmo", "flint", "glm", "glm4", "gpt_neo"),
    *("gpt_neox_japanese", "gpt_oss", "gptj", "granite", "granite_swa", "granitemoe"),
    *("granitemoe_swa", "granitemoeshared", "helium", "hy_v3", "hyperclovax", "ibert"),
    *("internlm3", "iquestcoder", "jais2", "jina_embeddings_v3", "kolibri1", "laguna"),
    *("megatron-bert", "mellum", "mimo_v2_flash", "minimax_m2", "minimax_m3_vl_text"),
    *("ministral3", "mistral4", "mpt", "mra", "nanochat", "nomic_bert", "nystromformer", "olmo2"),
    *("olmo3", "olmoe", "openai-gpt", "persimmon", "phi", "phimoe", "roberta-prelayernorm"),
    *("roformer", "seed_oss", "solar_open", "stablelm", "ultrabert", "vaultgemma"),
    *("xlm-roberta-xl",),
}


class _Fields:
    """The keys of a configuration under any of their names, with errors that name the keys."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config, self.source = config, source

    def find(self, names: tuple[str, ...], default: int | None = None) -> int:
        for name in names:
            value = self.config.get(name)
            if value is None or value == 0:  # such as num_local_experts of a model without experts
                continue
            if type(value) is int and value > 0:
                return value
            raise InputError(
                f"{self.source}: {name} is {repr(value)[:40]}, not one number for all blocks, "
                "which a memory estimate needs",
                fix="trace the script that trains it: hpcrun fit JOB --trace; or for the model "
                "states alone: --params with its number of parameters",
            )
        if default is not None:
            return default
        kind = self.config.get("model_type")
        about = f"{kind} has" if kind else "it has no model_type of transformers, and"
        raise InputError(
            f"{self.source}: {about} no {' or '.join(names[:3])}, which a memory estimate needs",
            fix="give numbers: --layers 32 --hidden 4096 --heads 32 --ffn 11008 --vocab 32000; or "
            "for a model that is no transformer: hpcrun fit JOB --trace",
        )

    def number(self, name: str, default: float = 0) -> float:
        value = self.config.get(name, default)
        return value if isinstance(value, int | float) else default

    def is_active(self, dropout: tuple[str, float]) -> bool:
        return self.number(*dropout) > 0


def read_model_config(config: Mapping[str, Any], source: str) -> ModelShape:
    """Read the dimensions of a model from its configuration.

    The formulas for the number of parameters follow the modules of transformers 5
    (``models/*/modeling_*.py``).

    Args:
        config: The content of ``config.json``.
        source: Its path, for messages.

    Raises:
        InputError: A dimension is missing, or the model is no transformer.

    >>> config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12}
    >>> read_model_config({**config, "vocab_size": 50257, "n_positions": 1024}, "x").parameters
    124439808
    """
    kind = str(config.get("model_type") or config.get("_class_name") or "")
    # Configurations of diffusers have _class_name. Only that of ViT is known of those of images.
    has_text = any(key in config for key in ("vocab_size", "text_config", "llm_config"))
    is_of_images = kind not in ("", "vit") and "image_size" in config and not has_text
    if kind in _NOT_TRANSFORMERS or "_class_name" in config or is_of_images:
        reason = "it is not one stack of plain transformer blocks"
        if is_of_images and kind not in _NOT_TRANSFORMERS:
            reason = "of encoders of images, hpcrun knows only ViT"
        raise _refuse(source, kind, reason)
    for part in ("text_config", "llm_config"):  # a model for text and images
        inner = config.get(part)
        if isinstance(inner, Mapping) and "model_type" in inner:
            outer = {
                key: config[key]
                for key in ("tie_word_embeddings",)
                if isinstance(config.get(key), bool)
            }
            shape = read_model_config({**inner, **outer}, source)
            note = f"only the language model ({part}) is counted, not the encoder of images"
            return structs.replace(
                shape,
                name=str(config.get("model_type", shape.name)),
                is_counted=False,
                notes=[*shape.notes, note],
            )
    fields = _Fields(config, source)
    if kind in ("t5", "mt5", "umt5"):
        return _read_t5(fields, kind)
    if kind == "whisper":
        return _read_whisper(fields)
    if kind == "vit":
        return _read_vit(fields)
    if kind in _LIKE_BART:
        return _read_bart(fields, kind, _LIKE_BART[kind])
    if "decoder_layers" in config or config.get("is_encoder_decoder"):
        known = f"of encoders with a decoder, hpcrun knows T5, Whisper and {', '.join(_LIKE_BART)}"
        raise _refuse(source, kind or "this model", known)
    if kind == "falcon":
        return _read_stack(fields, kind, _read_falcon_family(config), [])
    family, notes = _FAMILIES.get(kind), []
    is_counted = family is not None or kind in _COUNTED
    if family is None:
        _refuse_other_blocks(config, kind, source)
        family, like = _guess_family(config)
        notes = [f"model_type {kind or '(none)'} is unknown to hpcrun: computed like {like}"]
    for part, encoder in (("vision_config", "images"), ("audio_config", "audio")):
        if isinstance(config.get(part), Mapping):
            notes.append(f"the encoder of {encoder} ({part}) is not counted")
            is_counted = False
    return structs.replace(_read_stack(fields, kind, family, notes), is_counted=is_counted)


# Beginnings of keys of blocks that are neither attention nor a feed-forward network.
_OTHER_KEYS = (
    "mamba_",
    "ssm_",
    "linear_num_",
    "linear_conv",
    "conv_l_",
    "lru_",
    "rwkv",
    "zero_exp",
)
# Kinds of blocks that layer_types and the like name.
_ATTENTIONS = {"full_attention", "sliding_attention", "chunked_attention", "attention", "global"}


def _refuse_other_blocks(config: Mapping[str, Any], kind: str, source: str) -> None:
    """Raise InputError for an unknown type whose keys name other blocks than a transformer's."""
    found = next((key for key in config if key.lower().startswith(_OTHER_KEYS)), "")
    for key in ("layer_types", "layers_block_type"):
        types = config.get(key)
        if isinstance(types, list) and not all(each in _ATTENTIONS for each in map(str, types)):
            found = key
    if found:
        raise _refuse(source, kind, f"its {found} has other blocks than those of a transformer")


def _refuse(source: str, kind: str, reason: str) -> InputError:
    return InputError(
        f"{source}: the memory of {kind} cannot be computed from its configuration: {reason}",
        fix="trace the script that trains it: hpcrun fit JOB --trace; or for the model states "
        "alone: --params with its number of parameters",
    )


def _read_falcon_family(config: Mapping[str, Any]) -> Family:
    """Read the layers of Falcon, which its keys determine (modeling_falcon.py)."""
    is_new = bool(config.get("new_decoder_architecture"))
    norms = 2
    if config.get("parallel_attn", True):
        norms = config.get("num_ln_in_parallel_attn") or (2 if is_new else 1)
    return structs.replace(_FAMILIES["falcon"], norms=norms, bias=bool(config.get("bias")))


def _guess_family(config: Mapping[str, Any]) -> tuple[Family, str]:
    """Choose a known kind of blocks for a model of an unknown type, and describe it."""
    activation = next(
        (str(config[key]) for key in ("hidden_act", "activation_function") if config.get(key)), ""
    )
    has_rms = "rms_norm_eps" in config
    if "type_vocab_size" in config and activation.startswith("gelu") and not has_rms:
        is_rotary = "rope_parameters" in config or "rotary_value" in config
        family = structs.replace(_BERT, segments=int(bool(config["type_vocab_size"])))
        return structs.replace(family, positions="" if is_rotary else family.positions), "BERT"
    # Networks with these functions have no gate (models/nemotron, arcee and apertus).
    is_gated = activation in ("silu", "swish") or (has_rms and activation not in ("relu2", "xielu"))
    matrices = "gated" if is_gated else "two matrices"
    if has_rms:
        like = "Llama" if is_gated else "GPT"
        return Family(gated=is_gated), f"{like} (RMS norm, {matrices})"
    family = Family(gated=is_gated, norm="layer", bias=not is_gated)
    return family, f"GPT (layer norm, {matrices})"


def _read_stack(fields: _Fields, kind: str, family: Family, notes: list[str]) -> ModelShape:
    """Read a model that is one encoder or decoder."""
    config = fields.config
    hidden, layers = fields.find(_HIDDEN), fields.find(_LAYERS)
    heads = fields.find(_HEADS)
    kv_heads = fields.find(("num_key_value_heads", "num_kv_heads"), heads)
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        kv_heads = 1
    experts = fields.find(_EXPERTS, 1)
    ffn = fields.find(("hidden_dim",) if kind == "distilbert" else _FFN, 4 * hidden)
    dense_ffn, shared, latent = ffn, 0, 0
    if experts > 1:
        ffn = fields.find(("moe_intermediate_size",), ffn)
        shared = fields.find(_SHARED, 0) * ffn
        shared = fields.find(
            ("shared_expert_intermediate_size", "shared_intermediate_size"), shared
        )
    vocab = fields.find(("vocab_size",))
    head_dim = fields.find(("head_dim",), hidden // heads)
    if heads % kv_heads or ("head_dim" not in config and hidden % heads):
        raise InputError(
            f"{fields.source}: {heads} heads do not divide {hidden}, or {kv_heads} key-value heads "
            f"do not divide {heads} heads",
            fix="correct the file, or give numbers: --layers 32 --hidden 4096 --heads 32",
        )
    if config.get("kv_lora_rank"):
        latent, head_dim = _count_latent_attention(fields, hidden, heads)
        kv_heads = heads
    stack = Stack(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        gated=family.gated,
        activation=_activation(config, family),
        norm=family.norm,
        norms=family.norms,
        head_norms=family.head_norms,
        causal=family.causal,
        experts=experts,
        active_experts=fields.find(_ACTIVE, 1),
        shared_ffn=shared,
        shared_gate="shared_expert_intermediate_size" in config,
        norm_bias=family.norm_bias,
        given_attention=latent,
        bias=family.bias or bool(config.get("attention_bias") and config.get("mlp_bias")),
        qkv_bias=family.qkv_bias or bool(config.get("attention_bias")),
        dropout=fields.is_active(family.dropout),
        attention_dropout=fields.is_active(family.attention_dropout),
        softmax_fp32=family.softmax_fp32,
        fused_projections=family.fused_projections,
    )
    width = fields.find(_EMBEDDING, hidden)
    norm = stack.norm_parameters
    embedding = vocab * width
    tied = bool(config.get("tie_word_embeddings", kind in _TIED))
    other = embedding * (1 if tied else 2) + norm
    positions = fields.find((family.positions,), 1024) if family.positions else 0
    reserved = 2 if kind == "opt" else 0  # of OPTLearnedPositionalEmbedding
    # ELECTRA projects the sum of its embeddings, OPT those of tokens and the last block's output.
    segments = fields.find(("type_vocab_size",), family.segments) if family.segments else 0
    other += (positions + reserved + segments) * (width if kind == "electra" else hidden)
    other += norm * width // hidden if family.embedding_norm else 0
    if width != hidden:
        other += width * hidden * (1 if kind == "electra" else 2)
        other += hidden if kind == "electra" else 0
    if config.get("do_layer_norm_before") is False or config.get("_remove_final_layer_norm"):
        other -= norm
    if family.embedding_norm and family.norm_bias and not family.causal:  # of BERT's kind
        # No final norm; a head of one linear layer, a norm and a bias (BertLMPredictionHead).
        other += hidden * width + width + vocab - norm + 2 * width
    if kind.startswith("modernbert"):
        # A head with a norm and a bias; the first block has no norm of its attention.
        other += hidden * hidden + vocab
    stacks = [stack]
    if dense := _count_dense_layers(config, layers) if experts > 1 else 0:
        plain = structs.replace(
            stack, layers=dense, experts=1, active_experts=1, shared_ffn=0, ffn=dense_ffn
        )
        stacks = [plain, structs.replace(stack, layers=layers - dense)]
    return ModelShape(
        name=kind,
        stacks=[each for each in stacks if each.layers],
        vocab=vocab,
        other_parameters=other,
        embedding_parameters=embedding,
        tied=tied,
        upcast_logits=family.upcast_logits,
        positions=positions,
        notes=notes,
    )


def _count_latent_attention(fields: _Fields, hidden: int, heads: int) -> tuple[int, int]:
    """Count the parameters of one attention with latent vectors, and the numbers of one head.

    As in modeling_deepseek_v3.py, DeepseekV3Attention.__init__; q_lora_rank is null without latent
    vectors of the queries.
    """
    nope, rope = fields.find(("qk_nope_head_dim",)), fields.find(("qk_rope_head_dim",))
    value, rank = fields.find(("v_head_dim",)), fields.find(("kv_lora_rank",))
    queries = hidden * heads * (nope + rope)
    if query_rank := fields.find(("q_lora_rank",), 0):
        queries = query_rank * (hidden + 1 + heads * (nope + rope))
    keys_and_values = hidden * (rank + rope) + rank + rank * heads * (nope + value)
    return queries + keys_and_values + heads * value * hidden, nope + rope


def _count_dense_layers(config: Mapping[str, Any], layers: int) -> int:
    """Count the blocks with a plain feed-forward network in a mixture of experts.

    >>> _count_dense_layers({"first_k_dense_replace": 3}, 61)
    3
    >>> _count_dense_layers({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, 8)
    5
    """
    for key, dense in (("mlp_layer_types", "dense"), ("moe_layer_freq", 0)):
        types = config.get(key)
        if isinstance(types, list) and len(types) == layers:
            return types.count(dense)
    for key in ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"):
        if isinstance(first := config.get(key), int):
            return min(first, layers)
    step, only = config.get("decoder_sparse_step") or 1, config.get("mlp_only_layers") or []
    if not isinstance(step, int) or not isinstance(only, list):
        return 0
    return sum(index in only or (index + 1) % step != 0 for index in range(layers))


def _activation(config: Mapping[str, Any], family: Family) -> str:
    for key in ("hidden_act", "activation_function", "hidden_activation"):
        if isinstance(config.get(key), str):
            return str(config[key])
    return family.activation


def _read_t5(fields: _Fields, kind: str) -> ModelShape:
    """Read T5's encoder and decoder (modeling_t5.py); its linear layers have no bias."""
    config = fields.config
    projection = str(config.get("feed_forward_proj", "relu" if kind == "t5" else "gated-gelu"))
    hidden, heads = fields.find(("d_model",)), fields.find(("num_heads",))
    encoder = Stack(
        layers=fields.find(("num_layers",)),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=fields.find(("d_kv",), hidden // heads),
        ffn=fields.find(("d_ff",)),
        gated=projection.startswith("gated"),
        activation="gelu_new" if projection.startswith("gated") else "relu",
        norm="rms_t5",
        position_bias=True,
        causal=False,
        dropout=fields.is_active(("dropout_rate", 0.1)),
        attention_dropout=fields.is_active(("dropout_rate", 0.1)),
        softmax_fp32=False,
    )
    decoder = structs.replace(
        encoder,
        layers=fields.find(("num_decoder_layers",), encoder.layers),
        causal=True,
        cross_attention=True,
    )
    vocab = fields.find(("vocab_size",))
    tied = bool(config.get("tie_word_embeddings", kind == "t5"))
    buckets = fields.find(("relative_attention_num_buckets",), 32)
    embedding = vocab * hidden
    return ModelShape(
        name=kind,
        stacks=[encoder, decoder],
        vocab=vocab,
        other_parameters=embedding * (1 if tied else 2) + 2 * hidden + 2 * buckets * heads,
        embedding_parameters=embedding,
        tied=tied,
        upcast_logits=False,
    )


def _read_side(fields: _Fields, side: str, *, dropout: float, **settings: Any) -> Stack:
    """Read the encoder or the decoder of BART's kind or of Whisper, which name their keys alike.

    Args:
        side: ``encoder`` or ``decoder``.
        dropout: The default of the model's class.
    """
    hidden, heads = fields.find(("d_model",)), fields.find((f"{side}_attention_heads",))
    return Stack(
        layers=fields.find((f"{side}_layers",)),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=fields.find((f"{side}_ffn_dim",)),
        gated=False,
        activation=str(fields.config.get("activation_function", "gelu")),
        norm="layer",
        bias=True,
        dropout=fields.is_active(("dropout", dropout)),
        attention_dropout=fields.is_active(("attention_dropout", 0.0)),
        softmax_fp32=False,
        **settings,
    )


def _read_bart(fields: _Fields, kind: str, layers: _EncoderDecoder) -> ModelShape:
    """Read an encoder and a decoder of BART's kind (modeling_bart.py and those derived from it)."""
    hidden = fields.find(("d_model",))
    vocab = fields.find(("vocab_size",))
    tied = bool(fields.config.get("tie_word_embeddings", kind in _TIED))
    other = vocab * hidden * (1 if tied else 2)
    positions = 0
    if layers.positions is not None:
        positions = fields.find(("max_position_embeddings",), 1024)
        other += 2 * (positions + layers.positions) * hidden
    other += 4 * hidden * (int(layers.embedding_norm) + int(layers.final_norm))
    return ModelShape(
        name=kind,
        stacks=[
            _read_side(fields, "encoder", dropout=0.1, causal=False),
            _read_side(fields, "decoder", dropout=0.1, cross_attention=True),
        ],
        vocab=vocab,
        other_parameters=other,
        embedding_parameters=vocab * hidden,
        tied=tied,
        upcast_logits=False,
        positions=positions,
        notes=["--seq is the length of the inputs and of the outputs"],
    )


def _read_whisper(fields: _Fields) -> ModelShape:
    """Read Whisper's encoder of audio frames and decoder of text (modeling_whisper.py)."""
    hidden = fields.find(("d_model",))
    frames = fields.find(("max_source_positions",), 1500)
    vocab, bins = fields.find(("vocab_size",)), fields.find(("num_mel_bins",), 80)
    targets = fields.find(("max_target_positions",), 448)
    convolutions = 3 * bins * hidden + hidden + 3 * hidden * hidden + hidden
    return ModelShape(
        name="whisper",
        stacks=[
            _read_side(fields, "encoder", dropout=0.0, causal=False, length=frames),
            _read_side(fields, "decoder", dropout=0.0, cross_attention=True),
        ],
        vocab=vocab,
        other_parameters=vocab * hidden + (frames + targets) * hidden + 4 * hidden + convolutions,
        embedding_parameters=vocab * hidden,
        tied=True,
        # Inputs and outputs of gelu after the two convolutions, the first at twice the frames.
        stem_numbers=6 * frames * hidden,
        sample_numbers=2 * frames * bins,
        upcast_logits=False,
        notes=[f"the encoder reads {frames} frames per sample; --seq is the length of the text"],
    )


def _read_vit(fields: _Fields) -> ModelShape:
    """Read an image classifier, whose sequence are patches (modeling_vit.py)."""
    hidden, heads = fields.find(("hidden_size",)), fields.find(("num_attention_heads",))
    image, patch = fields.find(("image_size",), 224), fields.find(("patch_size",), 16)
    patches = (image // patch) ** 2
    labels = fields.config.get("id2label")
    classes = len(labels) if isinstance(labels, Mapping) else 2
    channels = fields.find(("num_channels",), 3)
    family = _FAMILIES["vit"]
    stack = Stack(
        layers=fields.find(("num_hidden_layers",)),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=fields.find(("intermediate_size",)),
        gated=False,
        activation=_activation(fields.config, family),
        norm="layer",
        bias=True,
        causal=False,
        dropout=fields.is_active(family.dropout),
        attention_dropout=fields.is_active(family.attention_dropout),
        length=patches + 1,
    )
    patch_embedding = channels * patch * patch * hidden + hidden
    return ModelShape(
        name="vit",
        stacks=[stack],
        other_parameters=patch_embedding
        + (patches + 2) * hidden
        + 2 * hidden
        + classes * (hidden + 1),
        sample_numbers=channels * image * image,
        notes=[f"an image of {image} x {image} has {patches + 1} patches; --seq is not used"],
    )

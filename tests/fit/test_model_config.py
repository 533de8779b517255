"""The number of parameters from a config.json is that of the model of transformers."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.errors import InputError
from hpcrun.fit.estimate import estimate_memory
from hpcrun.fit.model_config import _TIED, read_model_config
from hpcrun.fit.settings import Training
from hpcrun.fit.shape import build_shape

CAUSAL = "AutoModelForCausalLM"
MODELS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", CAUSAL, {"num_key_value_heads": 8}),
    ("mistral", CAUSAL, {}),
    ("qwen2", CAUSAL, {"tie_word_embeddings": True}),
    ("qwen3", CAUSAL, {}),
    ("mixtral", CAUSAL, {}),
    ("qwen2_moe", CAUSAL, {}),
    ("qwen3_moe", CAUSAL, {}),
    ("phi3", CAUSAL, {"pad_token_id": 0}),
    ("gemma", CAUSAL, {}),
    ("gemma2", CAUSAL, {}),
    ("gpt2", CAUSAL, {}),
    ("gpt_neox", CAUSAL, {}),
    ("opt", CAUSAL, {}),
    ("bloom", CAUSAL, {"n_layer": 4, "hidden_size": 512}),
    ("bert", "AutoModelForMaskedLM", {}),
    ("roberta", "AutoModelForMaskedLM", {}),
    ("t5", "AutoModelForSeq2SeqLM", {}),
    ("mt5", "AutoModelForSeq2SeqLM", {}),
    ("whisper", "AutoModelForSpeechSeq2Seq", {}),
    ("vit", "AutoModelForImageClassification", {}),
]
MASKED, SEQ2SEQ = "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM"
# Families of which small models are built. Some have no rules of their own, and are computed by
# their keys.
SMALL = {
    **dict.fromkeys(("gemma3_text", "smollm3", "starcoder2", "cohere", "cohere2"), CAUSAL),
    **dict.fromkeys(("granite", "stablelm", "olmo2", "olmo3", "glm", "glm4", "helium"), CAUSAL),
    **dict.fromkeys(("seed_oss", "ernie4_5", "exaone4", "arcee", "phi", "persimmon"), CAUSAL),
    **dict.fromkeys(("gpt_bigcode", "gpt_neo", "vaultgemma", "falcon", "deepseek_v2"), CAUSAL),
    **dict.fromkeys(("deepseek_v3", "minicpm3", "ernie4_5_moe", "exaone_moe", "bitnet"), CAUSAL),
    **dict.fromkeys(("distilbert", "camembert", "ernie", "data2vec-text", "deberta-v2"), MASKED),
    **dict.fromkeys(("electra", "modernbert", "megatron-bert", "ibert", "roformer"), MASKED),
    **dict.fromkeys(("bart", "mbart", "marian", "pegasus", "blenderbot"), SEQ2SEQ),
    **dict.fromkeys(("blenderbot-small", "m2m_100", "plbart"), SEQ2SEQ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "factory", "changes"), MODELS, ids=[row[0] for row in MODELS])
def test_parameters_are_those_of_transformers(
    kind: str, factory: str, changes: dict[str, Any]
) -> None:
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(kind, **changes)
    with torch.device("meta"):
        model = getattr(transformers, factory).from_config(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    found = read_model_config(config.to_dict(), "config.json")
    assert found.parameters == pytest.approx(count, rel=2e-4 if kind == "whisper" else 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_parameters_of_small_models_are_those_of_transformers() -> None:
    """A configuration that is saved omits what is the default of its class."""
    import torch
    import transformers

    wrong = {}
    for kind, factory in SMALL.items():
        layers = {"encoder_layers": 2, "decoder_layers": 2}
        if factory != SEQ2SEQ:
            layers = {} if kind == "gpt_neo" else {"num_hidden_layers": 2}
        config = transformers.AutoConfig.for_model(kind, **layers)
        with torch.device("meta"):
            model = getattr(transformers, factory).from_config(config)
        count = sum(parameter.numel() for parameter in model.parameters())
        saved = {**config.to_dict(), "tie_word_embeddings": None}
        if config.tie_word_embeddings == type(config)().tie_word_embeddings:
            del saved["tie_word_embeddings"]
        found = read_model_config(saved, "config.json").parameters
        if abs(found / count - 1) > 0.01:
            wrong[kind] = f"{found / count - 1:+.2%}"
    assert not wrong


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_parameters_of_other_layers_within_a_family_are_those_of_transformers() -> None:
    import torch
    import transformers

    new = {"new_decoder_architecture": True, "num_attention_heads": 32, "hidden_size": 2048}
    old = {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}
    variants: list[tuple[str, dict[str, Any]]] = [
        ("FalconForCausalLM", {**new, "num_kv_heads": 8, "ffn_hidden_size": 8192}),
        ("FalconForCausalLM", {**new, **old, "new_decoder_architecture": False}),
        ("OPTForCausalLM", {"word_embed_proj_dim": 512, "do_layer_norm_before": False}),
        ("ElectraForMaskedLM", {"embedding_size": 256}),
        ("DeepseekV2ForCausalLM", {"q_lora_rank": None, "first_k_dense_replace": 1}),
        ("Qwen2MoeForCausalLM", {"decoder_sparse_step": 2, "mlp_only_layers": [0]}),
        ("RobertaForMaskedLM", {"type_vocab_size": 1}),
    ]
    for name, changes in variants:
        config = getattr(transformers, name).config_class(num_hidden_layers=3, **changes)
        with torch.device("meta"):
            model = getattr(transformers, name)(config)
        count = sum(parameter.numel() for parameter in model.parameters())
        assert read_model_config(config.to_dict(), "c").parameters == count, (name, changes)


def test_blocks_other_than_those_of_a_transformer_are_refused_by_their_keys() -> None:
    config = {"model_type": "new", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
    config |= {"num_attention_heads": 4, "rms_norm_eps": 1e-6}
    for keys in ({"mamba_d_state": 16}, {"layer_types": ["full_attention", "linear_attention"]}):
        with pytest.raises(InputError, match="other blocks than those of a transformer"):
            read_model_config({**config, **keys}, "config.json")
    assert read_model_config({**config, "layer_types": ["sliding_attention"] * 2}, "c").parameters


def test_number_of_parameters_that_was_never_compared_gives_no_verdict() -> None:
    config = {"model_type": "new", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
    config |= {"num_attention_heads": 4, "rms_norm_eps": 1e-6}
    for kind, is_comparable in (("new", False), ("olmo2", True), ("llama", True)):
        shape = read_model_config({**config, "model_type": kind}, "x")
        assert estimate_memory(shape, Training(sequence=128)).is_comparable == is_comparable


@pytest.mark.slow
def test_types_with_tied_embeddings_are_those_of_transformers() -> None:
    from transformers import CONFIG_MAPPING

    for kind in {*SMALL, *(row[0] for row in MODELS if row[0] != "vit")}:
        default = getattr(CONFIG_MAPPING[kind](), "tie_word_embeddings", False)
        assert (kind in _TIED) == bool(default), kind


@pytest.mark.parametrize("kind", ["albert", "longformer", "prophetnet"])
def test_models_with_other_blocks_are_refused(kind: str) -> None:
    config = {"model_type": kind, "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
    config |= {"num_attention_heads": 4, "is_encoder_decoder": kind == "prophetnet"}
    with pytest.raises(InputError, match="cannot be computed"):
        read_model_config(config, "config.json")


def test_encoder_of_images_beside_a_flat_configuration_has_a_note() -> None:
    config = {"model_type": "qwen2_5_vl", "hidden_size": 64, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "vocab_size": 100, "vision_config": {"depth": 2}}
    found = read_model_config(config, "x")
    assert found.notes == ["the encoder of images (vision_config) is not counted"]


def test_unknown_model_type_is_computed_by_its_keys_with_a_note() -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"vocab_size": 100, "intermediate_size": 128}
    gated = read_model_config({**config, "model_type": "new", "rms_norm_eps": 1e-6}, "x")
    plain = read_model_config({**config, "model_type": "new"}, "x")
    assert gated.stacks[0].gated and not plain.stacks[0].gated
    assert gated.notes == [
        "model_type new is unknown to hpcrun: computed like Llama (RMS norm, gated)"
    ]


def test_sequence_longer_than_the_learned_positions_has_a_note() -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    shape = read_model_config({**config, "n_positions": 128}, "x")
    assert not estimate_memory(shape, Training(sequence=128)).notes
    (note,) = estimate_memory(shape, Training(sequence=256)).notes
    assert note == "a sequence of 256 is longer than the 128 positions that the model has"


def test_dimensions_of_another_size_than_the_number_of_parameters_have_a_note() -> None:
    dimensions: dict[str, Any] = {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "ffn": 11008,
        "vocab": 32000,
    }
    assert not build_shape(parameters=7_000_000_000, **dimensions).notes
    (note,) = build_shape(parameters=70_000_000_000, **dimensions).notes
    assert note.startswith("the dimensions have 6.74 B parameters instead of 70 B")


def test_configuration_without_dimensions_is_refused() -> None:
    with pytest.raises(InputError, match="bert has no hidden_size or n_embd or d_model"):
        read_model_config({"model_type": "bert", "depths": [3, 4]}, "config.json")


def test_language_model_of_a_model_for_images_is_counted_with_a_note() -> None:
    text = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "vocab_size": 100, "intermediate_size": 128}
    found = read_model_config({"model_type": "llava", "text_config": text}, "x")
    assert found.parameters == read_model_config(text, "x").parameters
    assert "only the language model" in found.notes[0]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50280},
        # Its keys are those of Llama, but some of its blocks are state-space models.
        {"model_type": "jamba", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 9},
        {"_class_name": "UNet2DConditionModel", "sample_size": 64},
        {"_class_name": "WanTransformer3DModel", "num_layers": 30, "num_attention_heads": 12},
        {"model_type": "resnet", "hidden_sizes": [256, 512]},
        {"_class_name": "DiTTransformer2DModel", "num_layers": 28, "num_attention_heads": 16},
        # The encoder of images is trained too, and is not in the configuration of the text.
        {"model_type": "clip", "text_config": {"model_type": "clip_text_model"}},
        # Convolutions over raw audio come before the blocks.
        {"model_type": "wav2vec2", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 32},
        {"model_type": "dinov2", "hidden_size": 384, "image_size": 518, "patch_size": 14},
    ],
)
def test_models_without_plain_transformer_blocks_need_a_trace(config: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="cannot be computed") as raised:
        read_model_config(config, "config.json")
    assert "hpcrun fit JOB --trace" in (raised.value.fix or "")


def test_configuration_of_no_library_is_refused_with_the_way_to_trace() -> None:
    """The original DiT and timm have keys of their own, and no model_type."""
    for config in ({"depth": 28, "hidden_size": 1152}, {"architecture": "resnet50"}):
        with pytest.raises(InputError, match="no model_type of transformers, and no") as raised:
            read_model_config(config, "config.json")
        assert "--trace" in raised.value.fix


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate_size": [4096, 8192]}, "intermediate_size is [4096, 8192], not one number"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32', not one number"),
        ({"num_attention_heads": 7}, "7 heads do not divide 512"),
        ({"num_key_value_heads": 3}, "3 key-value heads do not divide 8 heads"),
    ],
)
def test_dimensions_that_are_not_one_number_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 1000,
    }
    assert read_model_config({**config, "num_local_experts": 0}, "c").parameters > 0
    with pytest.raises(InputError) as caught:
        read_model_config({**config, **changes}, "c")
    assert message in str(caught.value)

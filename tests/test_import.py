"""Hugging Face configurations become workload files, or are refused by the name of the key."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from archsim.catalog import CatalogError, read_text, validate
from archsim.workload.importer import Imported, import_config
from archsim.workload.model import Attention
from archsim.workload.quantization import expression
from archsim.workload.schema import WorkloadFile, load_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-05,
}
MOE = {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2, "model_type": "mixtral"}


def parameters(imported: Imported) -> int:
    total: int = yaml.safe_load(imported.text)["parameters"]["total"]
    return total


def faults(config: dict[str, Any], **options: Any) -> list[str]:
    with pytest.raises(CatalogError) as caught:
        import_config(config, **options)
    return [fault.message for fault in caught.value.faults]


# The package of configurations that NVIDIA publishes with aiconfigurator

SPEC = find_spec("aiconfigurator_core")
FOLDER = (
    Path(SPEC.submodule_search_locations[0]) / "model_configs" if SPEC and SPEC.submodule_search_locations else None
)
FILES = sorted(FOLDER.glob("*_config.json")) if FOLDER else []
CONFIGS = {path.name.removesuffix("_config.json"): path for path in FILES if "hf_quant" not in path.name}
needs_package = pytest.mark.skipif(not CONFIGS, reason="aiconfigurator_core is not installed")

TOTALS = {  # by part of the file's name, the longest that fits
    "MiniMax-M2": 228_689_764_864,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-235B-A22B": 235_093_634_560,
    "Qwen3-Coder-480B": 480_154_875_392,
    "Qwen3-VL-2B": 1_720_574_976,
    "Qwen3-VL-4B": 4_022_468_096,
    "Qwen3-VL-8B": 8_190_735_360,
    "Qwen3-VL-32B": 32_762_123_264,
    "Qwen3-VL-30B-A3B": 30_532_122_624,
    "Qwen3-VL-235B-A22B": 235_093_634_560,
    "Qwen3.5-122B": 122_111_526_912,
    "Qwen3.5-27B": 26_895_998_464,
    "Qwen3.5-35B": 34_660_610_688,
    "Qwen3.5-397B": 396_346_350_336,
    "Qwen3.6-27B": 26_895_998_464,
    "Qwen3.6-35B": 34_660_610_688,
    "MiMo-7B": 7_622_619_136,
    "MiMo-V2-Flash": 308_778_780_864,
    "DeepSeek-R1": 671_026_419_200,
    "DeepSeek-V3": 671_026_419_200,
    "DeepSeek-V3.1": 671_026_419_200,
    "DeepSeek-V3.2": 671_877_944_064,
    "Llama-4-Maverick": 400_711_848_960,
    "Llama-4-Scout": 107_769_861_120,
    "Llama-3.1-405B": 405_853_388_800,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3_3-Nemotron-Super-49B": 49_867_145_216,
    "Mixtral-8x22B": 140_620_634_112,
    "Mixtral-8x7B": 46_702_792_704,
    "Kimi-K2": 1_026_408_232_448,
    "GLM-5": 743_911_218_432,
    "GLM-5.1": 743_911_218_432,
    "GLM-5.2": 743_377_019_904,
    "GLM-5.3": 743_377_019_904,
    "Gemma-4-31B": 30_697_345_280,
    "Nemotron-3-Nano": 31_577_940_288,
    "Nemotron-3.5-Lightning": 31_577_940_288,
    "Nemotron-3-Super": 120_668_707_840,
    "Nemotron-3-Ultra": 549_308_993_536,
    "Nemotron-H-56B": 56_324_350_464,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "Step-3.7-Flash": 195_832_700_736,
}
REFUSED = {  # families that archsim does not lower, each by a key of its own
    "DeepSeek-V4": "compress_ratios",
    "Kimi-K3": "linear_attn_config",
    "MiniMax-M3": "sparse_attention_config",
    "emma-4-26B": "enable_moe_block",
}


def known(name: str) -> int | None:
    fitting = [part for part in TOTALS if part in name]
    return TOTALS[max(fitting, key=len)] if fitting else None


def refused(name: str) -> str | None:
    return next((key for part, key in REFUSED.items() if part in name), None)


@needs_package
@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_imports_to_its_count_or_is_refused_by_its_key(name: str) -> None:
    key = refused(name)
    if key:
        with pytest.raises(CatalogError) as caught:
            import_config(CONFIGS[name], text_only=True)
        assert any(fault.message.startswith(f"{key}:") for fault in caught.value.faults)
        return
    assert parameters(import_config(CONFIGS[name], text_only=True)) == known(name)


@needs_package
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("deepseek-ai--DeepSeek-V3", dict.fromkeys(("attention", "experts", "weights", "activations"), "fp8_block")),
        ("openai--gpt-oss-120b", {"experts": "mxfp4", "activations": "bf16"}),
        ("moonshotai--Kimi-K2.5", {"experts": "int4_g32", "activations": "bf16"}),
        ("nvidia--Qwen3.5-397B-A17B-NVFP4", {"experts": "nvfp4", "activations": "nvfp4", "kv": "fp8"}),
        ("nvidia--Llama-3.1-70B-Instruct-FP8", dict.fromkeys(("attention", "weights", "activations", "kv"), "fp8")),
        (  # experts weight-only, attention in fp8: activations follow the products that quantise them
            "nvidia--Qwen3.6-35B-A3B-NVFP4",
            {"attention": "fp8", "experts": "nvfp4", "weights": "nvfp4", "head": "nvfp4", "activations": "fp8"},
        ),
    ],
)
def test_checkpoint_formats_are_read(name: str, precision: dict[str, str]) -> None:
    found = yaml.safe_load(import_config(CONFIGS[name], text_only=True).text)["precision"]
    assert found == precision


@needs_package
@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("meta-llama--Meta-Llama-3.1-70B", "meta/llama-3.1-70b"),
        ("deepseek-ai--DeepSeek-V3.2", "deepseek/deepseek-v3.2"),
        ("Qwen--Qwen3.5-397B-A17B", "qwen/qwen3.5-397b-a17b"),
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nvidia/nemotron-3-nano-30b-a3b"),
        ("moonshotai--Kimi-K2.5", "moonshot/kimi-k2.5"),
        ("openai--gpt-oss-20b", "openai/gpt-oss-20b"),
        ("MiniMaxAI--MiniMax-M2.5", "minimax/minimax-m2.5"),
    ],
)
def test_an_import_agrees_with_the_catalogue(name: str, workload: str) -> None:
    imported, shipped = import_config(CONFIGS[name], text_only=True).model, load_model(workload)
    assert imported.blocks == shipped.blocks
    assert imported.sequence == shipped.sequence
    assert (imported.tied, imported.mtp_layers, imported.mtp) == (shipped.tied, shipped.mtp_layers, shipped.mtp)


@needs_package
def test_towers_are_refused_with_what_to_do() -> None:
    with pytest.raises(CatalogError) as caught:
        import_config(CONFIGS["Qwen--Qwen3-VL-2B-Instruct"])
    (fault,) = caught.value.faults
    assert fault.message == ("vision_config: the vision tower is not modelled; import the text part with --text-only")
    assert fault.line > 1
    assert "left out" in import_config(CONFIGS["Qwen--Qwen3-VL-2B-Instruct"], text_only=True).warnings[0]


# Any configuration


def test_the_text_is_a_workload_file() -> None:
    imported = import_config(LLAMA, name="mine")
    file = validate(WorkloadFile, read_text(imported.text, Path("mine.yaml")))
    assert (file.name, file.parameters.total, imported.warnings) == ("mine", 8_030_261_248, ())
    assert str(imported) == imported.text and imported.model.name == "mine"


def test_the_text_loads_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA, indent=2), encoding="utf-8")
    written = tmp_path / "mine.yaml"
    written.write_text(import_config(path, name="mine").text, encoding="utf-8")
    assert load_model(str(written)).layers == 32


def test_unknown_keys_are_refused_together_and_in_place(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "hc_mult": 4, "num_atention_heads": 1}, indent=2), encoding="utf-8")
    with pytest.raises(CatalogError) as caught:
        import_config(path)
    assert [(fault.line, fault.column) for fault in caught.value.faults] == [(14, 3), (15, 3)]
    first, second = caught.value.faults
    assert first.message == "hc_mult: unknown key, which may shape the computation"
    assert second.message.endswith("did you mean 'num_attention_heads'?")


def test_null_means_not_there() -> None:
    assert parameters(import_config({**LLAMA, "hc_mult": None, "sliding_window": None})) == 8_030_261_248


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"enable_moe_block": True}, "enable_moe_block: True is not modelled"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: True is not modelled"),
        ({"hidden_act": "situ"}, "hidden_act: unknown activation 'situ'"),
        ({"word_embed_proj_dim": 512}, "word_embed_proj_dim: a projected embedding is not modelled"),
        ({"lora_alpha": 16}, "lora_alpha: LoRA adapters are not modelled"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "quantization_config: unknown method 'bitsandbytes'",
        ),
        ({"num_attention_heads": 30}, "num_attention_heads: does not divide hidden_size"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers: expected a whole number"),
        ({"layer_types": ["full_attention"]}, "layer_types: expected 32 entries"),
        ({"layer_types": ["odd"] * 32}, "layer_types.0: expected"),
        ({"num_local_experts": 8}, "num_hidden_layers: routed experts need `num_experts_per_tok`"),
        ({"kv_lora_rank": 512}, "kv_lora_rank: latent attention needs `qk_nope_head_dim`"),
    ],
)
def test_refusals_name_the_key(more: dict[str, Any], message: str) -> None:
    assert any(found.startswith(message) for found in faults({**LLAMA, **more}))


def test_missing_keys_are_named() -> None:
    assert faults({key: value for key, value in LLAMA.items() if key != "vocab_size"}) == ["missing key 'vocab_size'"]


def test_an_adapter_is_refused() -> None:
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "x", "r": 16, "lora_alpha": 32}
    assert any("merge the adapter" in message for message in faults(adapter))


def test_an_unknown_family_with_known_keys_is_read_with_a_warning() -> None:
    imported = import_config({**LLAMA, "model_type": "lama"})
    (warning,) = imported.warnings
    assert warning.startswith("model_type: 'lama' is not a known family; its keys are read as those of a plain")
    assert warning.endswith("did you mean 'llama'?")


def test_latent_attention_is_found_by_its_keys_under_any_name() -> None:
    latent = {
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    for name in ("deepseek_v3", "renamed"):
        assert import_config({**LLAMA, **latent, "model_type": name}).model.kv_elements_per_token() == 32 * 576


def test_an_explicit_head_width_is_taken() -> None:
    (block,) = import_config({**LLAMA, "head_dim": 96}).model.blocks.values()
    assert isinstance(block.attention, Attention) and block.attention.width == 96


def test_counts_may_be_lists() -> None:
    widths, heads = [14336] * 31 + [7168], [8] * 30 + [4, 4]
    m = import_config({**LLAMA, "intermediate_size": widths, "num_key_value_heads": heads}).model
    assert [(count, block) for block, count in m.sequence] == [(30, "dense"), (1, "dense_2"), (1, "dense_3")]


@pytest.mark.parametrize(("declared", "warned"), [(8_030_261_248, 0), (8_100_000_000, 0), (7_000_000_000, 1)])
def test_a_declared_count_is_compared(declared: int, warned: int) -> None:
    warnings = import_config(LLAMA, declared=declared).warnings
    assert len(warnings) == warned
    assert all(text.startswith("parameters: 7,000,000,000 are declared") for text in warnings)


def test_a_count_beside_the_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    index = {"metadata": {"total_parameters": 5, "total_size": 10}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert "5 are declared" in import_config(tmp_path / "config.json").warnings[0]


@pytest.mark.parametrize(
    ("quantization", "precision"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, {"attention": "int4", "activations": "bf16"}),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, {"attention": "int4_g32", "activations": "bf16"}),
        ({"quant_method": "gptq", "bits": 8}, {"attention": "int8", "activations": "bf16"}),
        ({"quant_method": "fp8"}, {"attention": "fp8", "activations": "fp8", "experts": "fp8"}),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["self_attn"]},
            {"experts": "fp8_block", "activations": "fp8_block"},
        ),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, {"experts": "mxfp4"}),
        (
            {"config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}}},
            {"experts": "int8", "activations": "int8"},
        ),
        (
            {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
            {"experts": "nvfp4", "activations": "nvfp4", "kv": "fp8"},
        ),
        ({"quant_algo": "W4A16_AWQ"}, {"experts": "int4", "activations": "bf16"}),
        ({"quant_algo": "MXFP8"}, {"experts": "mxfp8", "activations": "mxfp8"}),
    ],
)
def test_ways_to_quantise(quantization: dict[str, Any], precision: dict[str, str]) -> None:
    found = import_config({**MOE, "quantization_config": quantization}).text
    read = yaml.safe_load(found)["precision"]
    assert precision.items() <= read.items()
    assert "head" not in read and ("self_attn" not in str(quantization) or "attention" not in read)


@pytest.mark.parametrize(
    ("pattern", "name", "meant"),
    [
        ("lm_head", "lm_head", True),
        ("re:.*self_attn.*", "model.layers.3.self_attn.q_proj", True),
        ("model.language_model.layers.1.mlp*", "model.layers.1.mlp.down_proj", True),
        ("model.layers.1.mlp*", "model.layers.11.mlp.down_proj", False),
        ("model.layers.10.block_sparse_moe.gate", "model.layers.10.mlp.experts.0.down_proj", False),
        ("*.mlp.shared_expert.*", "model.layers.0.mlp.shared_experts.down_proj", True),
        ("gate", "model.layers.0.mlp.gate_proj", False),
    ],
)
def test_patterns_of_modules(pattern: str, name: str, meant: bool) -> None:
    assert (re.search(expression(pattern), name) is not None) == meant

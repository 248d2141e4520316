"""The command that launches a plan, parsed by the argument list of each tool as its documentation gives it."""

import argparse
import shlex
from typing import Any

import pytest
import yaml
from scenarios import DEEPSEEK, LLAMA_8B, LLAMA_70B, scenario

from archsim.catalog import names
from archsim.explore.run import run
from archsim.mapping.split import Split, split
from archsim.report.html import to_html
from archsim.report.launch import launch_command
from archsim.report.terminal import console, print_answer
from archsim.workload.schema import load_model

WHOLE, SHARE, SWITCH = {"type": int}, {"type": float}, {"action": "store_true"}

# What each tool takes, as its own documentation or the source that prints its help has it. Lists of choices are whole.

# vLLM, "Engine Arguments": https://docs.vllm.ai/en/latest/configuration/engine_args/ (2026); the degree of decode
# context parallelism: https://docs.vllm.ai/en/latest/serving/context_parallel_deployment/. --quantization:
# QuantizationMethods of vllm/model_executor/layers/quantization/__init__.py, commit 05d90956 (2026), without those it
# calls deprecated; --kv-cache-dtype: CacheDType of vllm/config/cache.py, commit 002f10e0 (2026).
VLLM_WEIGHTS = (
    "awq fp8 modelopt modelopt_fp4 gguf gptq_marlin awq_marlin gptq compressed-tensors bitsandbytes quark moe_wna16 "
    "torchao inc mxfp4 mxfp8 cpu_awq"
)
VLLM_CACHE = (
    "auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4_ds_mla turboquant_k8v4 turboquant_4bit_nc "
    "turboquant_k3v4_nc turboquant_3bit_nc int4_per_token_head int8_per_token_head fp8_per_token_head nvfp4 "
    "nvfp4_4over6"
)
VLLM: dict[tuple[str, ...], dict[str, Any]] = {
    ("--tensor-parallel-size", "-tp"): WHOLE,
    ("--pipeline-parallel-size", "-pp"): WHOLE,
    ("--data-parallel-size", "-dp"): WHOLE,
    ("--enable-expert-parallel", "-ep"): SWITCH,
    ("--decode-context-parallel-size", "-dcp"): WHOLE,
    ("--quantization", "-q"): {"choices": VLLM_WEIGHTS.split()},
    ("--kv-cache-dtype",): {"choices": VLLM_CACHE.split()},
    ("--max-num-seqs",): WHOLE,
    ("--max-model-len",): WHOLE,
    ("--max-num-batched-tokens",): WHOLE,
    ("--gpu-memory-utilization",): SHARE,
}
# SGLang, "Server Arguments": https://docs.sglang.io/docs/advanced_features/server_arguments, its source
# docs/advanced_features/server_arguments.md, commit 004813e1 (2026); --dcp-size, "Decode Context Parallelism":
# https://docs.sglang.io/docs/advanced_features/dcp (2026)
SGLANG_WEIGHTS = (
    "awq fp8 gptq marlin gptq_marlin awq_marlin bitsandbytes gguf modelopt modelopt_fp8 modelopt_fp4 petit_nvfp4 "
    "w8a8_int8 w8a8_fp8 moe_wna16 qoq w4afp8 mxfp4 mxfp8 auto-round compressed-tensors modelslim quark_int4fp8_moe"
)
SGLANG: dict[tuple[str, ...], dict[str, Any]] = {
    ("--model-path", "--model"): {},
    ("--tensor-parallel-size", "--tp-size"): WHOLE,
    ("--pipeline-parallel-size", "--pp-size"): WHOLE,
    ("--data-parallel-size", "--dp-size"): WHOLE,
    ("--enable-dp-attention",): SWITCH,
    ("--expert-parallel-size", "--ep-size", "--ep"): WHOLE,
    ("--decode-context-parallel-size", "--dcp-size"): WHOLE,
    ("--quantization",): {"choices": SGLANG_WEIGHTS.split()},
    ("--kv-cache-dtype",): {"choices": ["auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16", "fp4_e2m1"]},
    ("--max-running-requests",): WHOLE,
    ("--context-length",): WHOLE,
    ("--chunked-prefill-size",): WHOLE,
    ("--mem-fraction-static",): SHARE,
}
# TensorRT-LLM: https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html ("Syntax"), which is made
# from the options in tensorrt_llm/commands/serve.py, commit 00209af1 (2026). Configuration file: enable_attention_dp
# and kv_cache_config of its LLM arguments; dtype is any text, of which "auto", "fp8" and "nvfp4" mean something:
# https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html
TENSORRT: dict[tuple[str, ...], dict[str, Any]] = {
    ("--tensor_parallel_size", "--tp_size"): WHOLE,
    ("--pipeline_parallel_size", "--pp_size"): WHOLE,
    ("--moe_expert_parallel_size", "--ep_size"): WHOLE,
    ("--max_batch_size",): WHOLE,
    ("--max_num_tokens",): WHOLE,
    ("--max_seq_len",): WHOLE,
    ("--free_gpu_memory_fraction", "--kv_cache_free_gpu_memory_fraction"): SHARE,
    ("--config", "--extra_llm_api_options"): {},
}
# llama.cpp: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md ("Usage"), commit 00dc8057 (2026)
KV = {"choices": ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]}
LLAMA_CPP: dict[tuple[str, ...], dict[str, Any]] = {
    ("-m", "--model"): {},
    ("-c", "--ctx-size"): WHOLE,
    ("-np", "--parallel"): WHOLE,
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): {},
    ("-b", "--batch-size"): WHOLE,
    ("-ub", "--ubatch-size"): WHOLE,
    ("-ctk", "--cache-type-k"): KV,
    ("-ctv", "--cache-type-v"): KV,
    ("-sm", "--split-mode"): {"choices": ["none", "layer", "row", "tensor"]},
}
TOOLS = {
    "vllm": (["vllm", "serve"], VLLM, True),
    "sglang": (["python", "-m", "sglang.launch_server"], SGLANG, False),
    "tensorrt-llm": (["trtllm-serve"], TENSORRT, True),
    "llama.cpp": (["llama-server"], LLAMA_CPP, False),
}
SPLITS = {
    "tensor": {"tensor": 8},
    "pipeline": {"tensor": 4, "pipeline": 2},
    "replicas": {"tensor": 2, "data": 4},
    "attention data": {"attention_data": 8, "expert": 8},
    "groups": {"tensor": 2, "attention_data": 4, "expert": 8},
    "few experts": {"tensor": 8, "expert": 4},
    "context": {"tensor": 8, "context": 8, "expert": 8},
    "all": {"tensor": 2, "attention_data": 2, "expert": 4, "pipeline": 2, "data": 2},
}


def command(runtime: str, by: Split | None = None, model: str = DEEPSEEK, **keys: Any) -> str:
    base = {"batch": 256, "context": 8192, "runtime": runtime}
    return launch_command(scenario(model, "nvidia/h200-sxm", 8, **{**base, **keys}), by or split(tensor=8))


def parsed(text: str, runtime: str) -> argparse.Namespace:
    """The command without comments and configuration, by the tool's own argument list."""
    start, known, positional = TOOLS[runtime]
    body = text[text.index(f"\n{start[0]} ") + 1 :] if not text.startswith(start[0]) else text
    words = shlex.split(body.replace("\\\n", " "))
    assert words[: len(start)] == start
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for flags, keys in known.items():
        parser.add_argument(*flags, **keys)
    if positional:
        parser.add_argument("model")
    return parser.parse_args(words[len(start) :])


@pytest.mark.parametrize("by", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("runtime", TOOLS)
@pytest.mark.parametrize("model", [DEEPSEEK, LLAMA_70B])
def test_every_tool_takes_its_command(runtime: str, by: dict[str, int], model: str) -> None:
    for precision in ({}, {"kv": "fp8"}, {"weights": "fp8", "kv": "fp8"}, {"weights": "nvfp4"}):
        text = command(runtime, split(**by), model, precision=precision)
        found = parsed(text, runtime)
        wanted = "path/to/model.gguf" if runtime == "llama.cpp" else load_model(model).repository
        assert (found.model if "model" in found else found.model_path) == wanted


def test_vllm_counts_sequences_of_a_rank_and_has_experts_on_all_ranks() -> None:
    found = parsed(command("vllm", split(tensor=2, attention_data=4, expert=8), precision={"kv": "fp8"}), "vllm")
    assert (found.tensor_parallel_size, found.data_parallel_size, found.enable_expert_parallel) == (2, 4, True)
    assert (found.max_num_seqs, found.max_model_len, found.kv_cache_dtype) == (64, 8192, "fp8")
    assert found.quantization is None  # DeepSeek-V3 is released in the format that is asked for
    text = command("vllm", split(tensor=8, expert=4))
    assert "EP4 over 8 ranks has no flag" in text and not parsed(text, "vllm").enable_expert_parallel
    assert parsed(command("vllm", split(tensor=8, context=8)), "vllm").decode_context_parallel_size == 8


def test_replicas_share_nothing() -> None:
    """vLLM's ranks of a model with experts share them, so replicas are started apart; a dense model's are not."""
    dense = command("vllm", split(tensor=4, data=2), LLAMA_70B)
    assert parsed(dense, "vllm").data_parallel_size == 2 and "start it" not in dense
    assert "start it 2 times" in command("vllm", split(tensor=4, data=2))
    assert parsed(command("sglang", split(tensor=4, data=2)), "sglang").data_parallel_size == 2


def test_sglang_counts_all_ranks_of_dp_attention_together() -> None:
    found = parsed(command("sglang", split(attention_data=8, expert=8), precision={"kv": "fp8"}), "sglang")
    assert (found.tensor_parallel_size, found.data_parallel_size, found.expert_parallel_size) == (8, 8, 8)
    assert found.enable_dp_attention and found.max_running_requests == 256
    assert found.chunked_prefill_size == 8 * 8192 and found.kv_cache_dtype == "fp8_e4m3"
    found = parsed(command("sglang", split(tensor=8, context=8, expert=8)), "sglang")
    assert found.decode_context_parallel_size == 8


def test_tensorrt_has_a_configuration_file() -> None:
    text = command("tensorrt-llm", split(attention_data=8, expert=8), precision={"kv": "fp8"})
    config = yaml.safe_load(text.split("<<'EOF'\n")[1].split("\nEOF\n")[0])
    assert config == {"enable_attention_dp": True, "kv_cache_config": {"dtype": "fp8"}}
    found = parsed(text, "tensorrt-llm")
    assert (found.tensor_parallel_size, found.moe_expert_parallel_size, found.max_batch_size) == (8, 8, 32)
    assert found.config == "config.yaml"
    assert parsed(command("tensorrt-llm", model=LLAMA_70B), "tensorrt-llm").config is None


def test_llama_cpp_has_the_context_of_all_slots() -> None:
    found = parsed(command("llama.cpp", split(), LLAMA_8B, batch=4, context=4096), "llama.cpp")
    assert (found.ctx_size, found.parallel, found.split_mode) == (4 * 4096, 4, None)
    assert parsed(command("llama.cpp", split(pipeline=2), LLAMA_8B), "llama.cpp").split_mode == "layer"


def test_only_fp8_over_bf16_is_converted_on_loading() -> None:
    assert parsed(command("vllm", model=LLAMA_8B, precision={"weights": "fp8"}), "vllm").quantization == "fp8"
    text = command("vllm", model=LLAMA_8B, precision={"weights": "nvfp4"})
    assert parsed(text, "vllm").quantization is None and "# weights in nvfp4: take a checkpoint" in text


def test_what_has_no_flag_is_said() -> None:
    assert "CP8 of the KV cache" in command("tensorrt-llm", split(tensor=8, context=8))
    assert "CP2 is for latent attention only" in command("sglang", split(tensor=16, context=2), LLAMA_70B)
    assert "2 drafts" in command("vllm", speculation={"drafts": 2})
    assert "`placement`" in command("vllm", placement={"micro_batches": 2})
    assert "no flag gives a KV cache in int8" in command("vllm", precision={"kv": "int8"})
    assert parsed(command("vllm", precision={"kv": "nvfp4"}), "vllm").kv_cache_dtype == "nvfp4"
    assert "no hf_repo" in command("vllm", split(), "openai/gpt-3-175b")


def test_other_runtimes_have_no_command() -> None:
    assert command("ideal") == ""


def test_nearly_all_models_name_their_repository() -> None:
    without = [name for name in names("workloads") if not load_model(name).repository]
    assert without == ["openai/gpt-3-175b", "openai/gpt-oss-2t-what-if"]
    repositories = [load_model(name).repository for name in names("workloads") if name not in without]
    assert len(set(repositories)) == len(repositories), "a file that extends another names its own repository"


def test_reports_end_with_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(scenario(LLAMA_8B, batch=8, context=2048))
    print_answer(console(), result)
    assert "vllm serve meta-llama/Llama-3.1-8B \\" in capsys.readouterr().out
    assert "vllm serve meta-llama/Llama-3.1-8B \\" in to_html(result)

"""Records of kernels and layers that others measured and published, from their files or from the carried sample."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from archsim.validation.carried import FOLDER

A100, H100 = "nvidia/a100-sxm-80gb", "nvidia/h100-sxm"
COMPASS, VIDUR, DEEPGEMM, FLASH = "LLMCompass", "Vidur", "DeepGEMM", "FlashAttention"
SOURCES = {
    COMPASS: "LLMCompass (ISCA 2024), measurements of its artifact, BSD-3-Clause",
    VIDUR: "Vidur (MLSys 2024), compute profiles of its repository, MIT",
    DEEPGEMM: "DeepGEMM, README of the first release (2025), MIT; H800, taken as an H100",
    FLASH: "FlashAttention-3 (arXiv 2407.08608), figure 5, secondary transcription",
}
CARRIED = FOLDER / "published.csv"
PASSES = {"softmax": 3.0, "layernorm": 2.0, "gelu": 2.0}  # over the data: softmax reads it twice
BYTES = 2.0
LAYERS = {"prefill b8 s2048": "GPT-3 layer, prefill", "decode b8 ctx3072": "GPT-3 layer, decode"}
# One layer of GPT-3 on four GPUs: batch 8, hidden 12288, 96 heads of 128, with attention in three kernels
HIDDEN, HEADS, WIDTH, GPUS, BATCH = 12288.0, 24.0, 128.0, 4.0, 8.0


@dataclass(frozen=True)
class Published:
    """One published time (s) of a kernel with its sizes, on a chip of the catalogue.

    `part_of` names the layer that it is a part of; `stack` is the one whose constants apply.
    """

    source: str
    operator: str
    chip: str
    stack: str
    format: str
    kind: str
    sizes: Mapping[str, float]
    seconds: float
    part_of: str = ""

    def line(self) -> dict[str, str]:
        """The record as a row of a CSV file."""
        sizes = " ".join(f"{name}={value:g}" for name, value in self.sizes.items())
        own = {name: str(value) for name, value in self.__dict__.items()}
        return own | {"sizes": sizes, "seconds": f"{self.seconds:.8g}"}


def records(folder: Path | None) -> list[Published]:
    """All records of a folder with the published files; of the carried sample where none is given.

    Raises ValueError where a file of the folder is missing.
    """
    if folder is None:
        return [_record(line) for line in _lines(CARRIED)]
    readers = {
        "llmcompass_measured.csv": _compass,
        "vidur_linear_ops.csv": _vidur,
        "deepgemm_h800.csv": _deepgemm,
        "flashattention_h100.csv": _flash,
    }
    missing = [name for name in readers if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder}: there is no {', '.join(missing)}")
    return [record for name, reader in readers.items() for record in reader(_lines(folder / name))]


def _record(line: Mapping[str, str]) -> Published:
    sizes = dict(pair.split("=") for pair in line["sizes"].split())
    numbers = {name: float(value) for name, value in sizes.items()}
    words = {name: line[name] for name in ("source", "operator", "chip", "stack", "format", "kind", "part_of")}
    return Published(**words, sizes=numbers, seconds=float(line["seconds"]))


def _lines(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def _compass(lines: Sequence[Mapping[str, str]]) -> Iterator[Published]:
    """LLMCompass: operators on A100, an all-reduce on four, and the parts of one GPT-3 layer on four."""
    for line in lines:
        operator, seconds = line["op"], float(line["latency_s"])
        base = Published(COMPASS, operator, A100, "vllm", "bf16", "gemm", {}, seconds)
        if line["device"] == "A100" and operator == "matmul":
            yield replace(base, sizes={name: float(line[name]) for name in "mnk"})
        elif line["device"] == "A100" and operator in PASSES:
            elements = float(line["m"]) * float(line["n"] or 1.0)
            yield replace(base, kind="elementwise", sizes={"tokens": elements, "bytes": BYTES * PASSES[operator]})
        elif operator == "all_reduce":
            yield replace(base, kind="all_reduce", sizes={"bytes": float(line["m"]), "ranks": GPUS})
        elif operator.startswith("GPT3"):
            yield from _layer(base)


def _layer(base: Published) -> Iterator[Published]:
    title, _, part = base.operator.removeprefix("GPT3-175B layer TP4 ").partition(": ")
    layer = next((name for key, name in LAYERS.items() if title.startswith(key)), "")
    decode = "decode" in layer
    tokens, seen = (BATCH, 3072.0) if decode else (BATCH * 2048.0, 2048.0)
    rows, inner = (1.0 if decode else 2048.0), HIDDEN / GPUS
    batch = BATCH * HEADS
    products = {
        "Q_K_V": (tokens, 3.0 * inner, HIDDEN, 1.0),
        "Q_mul_K": (rows, seen, WIDTH, batch),
        "A_mul_V": (rows, WIDTH, seen, batch),
        "Wo_proj": (tokens, HIDDEN, inner, 1.0),
        "W1_proj": (tokens, HIDDEN, HIDDEN, 1.0),
        "W2_proj": (tokens, HIDDEN, HIDDEN, 1.0),
    }
    moved = {"Softmax": batch * rows * seen * 3.0, "GeLU": tokens * HIDDEN * 2.0}
    moved |= {"LayerNorm_MHA": tokens * HIDDEN * 2.0, "LayerNorm_FFN": tokens * HIDDEN * 2.0}
    names = {"Softmax": "softmax", "GeLU": "gelu", "LayerNorm_MHA": "layernorm", "LayerNorm_FFN": "layernorm"}
    base = replace(base, part_of=layer)
    if part in products:
        sizes = dict(zip(("m", "n", "k", "batch"), products[part], strict=True))
        yield replace(base, operator="matmul", sizes=sizes)
    elif part in moved:
        yield replace(base, operator=names[part], kind="elementwise", sizes={"tokens": moved[part], "bytes": BYTES})
    else:
        yield replace(
            base, operator="all_reduce", kind="all_reduce", sizes={"bytes": tokens * HIDDEN * BYTES, "ranks": GPUS}
        )


def _vidur(lines: Sequence[Mapping[str, str]]) -> Iterator[Published]:
    """Vidur: the linear operators of Llama layers, one rank of a tensor-parallel group."""
    chips = {"a100": A100, "h100": H100}
    for line in lines:
        ranks, m, hidden = float(line["tp"]), float(line["num_tokens"]), float(line["n_embd"])
        heads, kv_heads, inner = float(line["n_head"]), float(line["n_kv_head"]), float(line["n_ffn"])
        width = hidden / heads
        shapes = {
            "attn_pre_proj_ms": ((heads + 2.0 * kv_heads) * width / ranks, hidden),
            "attn_post_proj_ms": (hidden, hidden / ranks),
            "mlp_up_proj_ms": (2.0 * inner / ranks, hidden),
            "mlp_down_proj_ms": (hidden, inner / ranks),
        }
        for column, (n, k) in shapes.items():
            sizes, seconds = {"m": m, "n": n, "k": k}, float(line[column]) * 1e-3
            yield Published(VIDUR, "linear", chips[line["gpu"]], "vllm", "bf16", "gemm", sizes, seconds)


def _deepgemm(lines: Sequence[Mapping[str, str]]) -> Iterator[Published]:
    """DeepGEMM: dense products in fp8 with blocks of 128."""
    for line in lines:
        if line["kind"] == "dense":
            sizes = {"m": float(line["m_per_group"]), "n": float(line["n"]), "k": float(line["k"])}
            seconds = float(line["latency_us"]) * 1e-6
            yield Published(DEEPGEMM, "matmul", H100, "sglang", "fp8_block", "gemm", sizes, seconds)


def _flash(lines: Sequence[Mapping[str, str]]) -> Iterator[Published]:
    """FlashAttention 3: causal prompts in 16 bits, 16k tokens together."""
    for line in lines:
        if not line["kernel"].startswith("FA3") or line["mask"] != "causal" or line["dtype"] not in ("fp16", "bf16"):
            continue
        length, heads, width = float(line["seqlen"]), float(line["heads"]), float(line["head_dim"])
        flops = 2.0 * float(line["batch"]) * heads * length**2 * width
        sizes = {"batch": float(line["batch"]), "length": length, "heads": heads, "width": width}
        seconds = flops / (float(line["tflops"]) * 1e12)
        yield Published(FLASH, "attention", H100, "sglang", "bf16", "context_attention", sizes, seconds)

"""What the kernel level must reach, and which rows each gate covers."""

from collections.abc import Callable, Iterable, Sequence

from archsim.validation.products import MEAN
from archsim.validation.tables import EVERY, WHOLE, WINDOW, Gate, Row, Standing

H100, A100, B200 = "nvidia/h100-sxm", "nvidia/a100-sxm-80gb", "nvidia/b200-sxm"
H200, B300, GB200, GB300 = "nvidia/h200-sxm", "nvidia/b300-sxm", "nvidia/gb200", "nvidia/gb300"
L40S, RTX, B60 = "nvidia/l40s", "nvidia/rtx-pro-6000-server", "intel/arc-pro-b60"
FITTED, SIBLINGS = (A100, H100, B200), (H200, B300, GB200, GB300)
OLD = (A100, H100, H200)
PEERS = (*FITTED, *SIBLINGS)
QUANTISED = ("fp8", "fp8_block", "nvfp4")
WINDOWED = ("generation attention", "context attention")
LATENT = ("mla generation", "mla context")

# (family, stack, chip): the generations whose constants stand in, as if the chip's own had never been measured
TRANSFERS = {
    ("gemm", MEAN, B200): ("hopper",),
    ("gemm", MEAN, H100): ("blackwell", "ampere"),
    ("gemm", MEAN, A100): ("hopper",),
    ("gemm", MEAN, L40S): ("ampere",),
    ("gemm", MEAN, RTX): ("ampere",),
    ("gemm", "vllm", B60): ("ampere",),
}

Choice = Callable[[Row], bool]


def standing(entry: tuple[Gate, Choice], rows: Iterable[Row]) -> Standing:
    """A gate with the rows it covers."""
    gate, covers = entry
    return Standing(gate, tuple(row for row in rows if covers(row)))


def _covers(
    family: str | Sequence[str],
    chips: Sequence[str],
    *,
    stacks: Sequence[str] = ("vllm", "sglang", "trtllm"),
    formats: Sequence[str] = (),
    regime: str = EVERY,
    unless: Choice = lambda row: False,
) -> Choice:
    families = (family,) if isinstance(family, str) else family

    def covers(row: Row) -> bool:
        named = row.family in families and row.chip in chips and row.stack in stacks and row.regime == regime
        return named and (not formats or row.format in formats) and not unless(row)

    return covers


def _apart(row: Row) -> bool:
    """TensorRT-LLM's decode attention on Hopper and Ampere, which has a gate of its own."""
    return row.stack == "trtllm" and row.chip in OLD


def _trusted(row: Row) -> bool:
    """Experts that the issue lists apart: Triton in bf16, and vLLM's fp8 on Hopper."""
    triton = row.format == "bf16" and (row.chip, row.stack) in {
        (A100, "vllm"), (A100, "sglang"), (H100, "sglang"), (H200, "sglang"), (H100, "vllm"), (H200, "vllm"),
    }  # fmt: skip
    return not (triton or (row.format == "fp8" and row.stack == "vllm" and row.chip in (H100, H200)))


EXPERTS = ("experts", "experts, ungated")
MAIN = ("bf16", "fp8", "fp8_block", "nvfp4")  # formats of experts that gates cover

KERNEL_GATES: tuple[tuple[Gate, Choice], ...] = (
    *(
        (Gate(f"GEMM bf16, mean of the stacks, {name}", gate, aim), _covers("gemm", (chip,), stacks=(MEAN,)))
        for name, chip, gate, aim in (
            ("A100", A100, 6.5, 5.0),
            ("H100", H100, 4.9, 5.0),
            ("B200", B200, 6.4, 5.0),
            ("H200 from H100", H200, 5.3, 5.5),
            ("B300 from B200", B300, 7.5, 5.5),
            ("GB200 from B200", GB200, 7.7, 5.5),
            ("GB300 from B200", GB300, 6.3, 5.5),
        )
    ),
    (Gate("GEMM fp8, fp8-block, nvfp4", 12.0, 8.0), _covers("gemm", FITTED, formats=QUANTISED)),
    (Gate("GEMM fp8, fp8-block, nvfp4, unseen chips", 13.0, 9.0), _covers("gemm", SIBLINGS, formats=QUANTISED)),
    (Gate("generation attention", 11.0, 8.0), _covers("generation attention", FITTED, regime=WHOLE, unless=_apart)),
    (
        Gate("generation attention, TensorRT-LLM on Hopper and Ampere", 16.0, 8.0),
        _covers("generation attention", OLD, regime=WHOLE, unless=lambda row: not _apart(row)),
    ),
    (Gate("context attention", 10.0, 8.0), _covers("context attention", FITTED, regime=WHOLE)),
    (Gate("latent attention", 11.0, 8.0), _covers(LATENT, FITTED)),
    (
        Gate("attention, unseen chips", 12.0, 9.0),
        lambda row: _covers(WINDOWED, SIBLINGS, regime=WHOLE, unless=_apart)(row) or _covers(LATENT, SIBLINGS)(row),
    ),
    (
        Gate("attention with windows (no gate of its own)", 12.0, 9.0),
        _covers(WINDOWED, PEERS, regime=WINDOW),
    ),
    (
        Gate("experts, balanced and skewed", 12.5, 10.0),
        _covers(EXPERTS, PEERS, formats=MAIN, unless=lambda row: not _trusted(row)),
    ),
    (
        Gate("experts listed apart: Triton in bf16, vLLM fp8 on Hopper (no gate)", 12.5, 10.0),
        _covers(EXPERTS, PEERS, formats=MAIN, unless=_trusted),
    ),
    (Gate("custom all-reduce", 7.0, 5.0), _covers("custom all-reduce", PEERS)),
    (
        Gate("NCCL", 9.0, 7.0),
        _covers(("nccl all-reduce", "nccl all-gather", "nccl reduce-scatter"), PEERS, stacks=("nccl",)),
    ),
    (
        Gate("all-to-all", 15.0, 10.0),
        lambda row: row.family.startswith("all-to-all") and row.chip in PEERS and row.regime == EVERY,
    ),
    *(
        (
            Gate(f"GEMM bf16 of {name}, constants of {generation}", gate, aim),
            _covers("gemm", (chip,), stacks=(f"constants of {generation}",)),
        )
        for name, chip, generation, gate, aim in (
            ("B200", B200, "hopper", 11.5, 10.0),
            ("H100", H100, "blackwell", 11.5, 10.0),
            ("H100", H100, "ampere", 25.0, 18.0),
            ("A100", A100, "hopper", 25.0, 18.0),
            ("L40S", L40S, "ampere", 25.0, 18.0),
            ("RTX PRO 6000", RTX, "ampere", 25.0, 18.0),
            ("Arc B60", B60, "ampere", 25.0, 18.0),
        )
    ),
)

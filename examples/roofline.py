"""Prefill and decode on the roofline of an H100, for a dense model and for one with experts, at batch 1 to 1,024.

Arithmetic intensity is FLOPs over bytes of memory of the whole step; the ridge point is where compute and memory take
equally long. Decode climbs with the batch until its KV cache, which no batch shares, holds it down; with experts it
climbs later, since a batch first touches more of them.
"""

import archsim

MODELS = {"dense, Llama 3.1 8B": "meta/llama-3.1-8b", "experts, gpt-oss 120B": "openai/gpt-oss-120b"}
BATCHES = [1, 4, 16, 64, 256, 1024]


def main() -> None:
    """Prints one table a model."""
    for title, model in MODELS.items():
        pools = {"gpu": {"chip": "nvidia/h100-sxm", "count": 8}}
        scenario = archsim.scenario(
            model=model, pools=pools, runtime="ideal", batch=BATCHES, context=2048, split={"tensor": 8, "expert": 8}
            if "oss" in model else {"tensor": 8},
        )
        answer = archsim.run(scenario).answer
        chip = scenario.chip
        print(f"{title} on {chip.name}: ridge point {chip.ridge()[0]:.0f} FLOP/B in bf16")
        print(f"{'':>14}{'FLOP/B':>10}{'TFLOP/s':>10}{'of peak':>10}{'TB/s':>8}{'of peak':>10}  bound by")
        prefill = answer.prefill
        row("prefill 2048", prefill.total(), prefill.span, chip, 0)
        for index, batch in enumerate(BATCHES):
            row(f"decode {batch:>5}", answer.decode.total(), answer.decode.span, chip, index)
        print()


def row(name: str, cost: object, span: object, chip: object, index: int) -> None:
    """One line: what a step reaches of the chip's two roofs."""
    flops, moved, seconds = (values.ravel()[min(index, values.size - 1)] for values in (cost.flops, cost.bytes, span))
    compute, memory = flops / chip.matrix["bf16"][0], moved / chip.memory.bandwidth[0]
    shares = f"{compute / seconds:>10.1%}{moved / seconds / 1e12:>8.2f}{memory / seconds:>10.1%}"
    bound = "compute" if compute > memory else "memory"
    print(f"{name:>14}{flops / moved:>10.1f}{flops / seconds / 1e12:>10.1f}{shares}  {bound}")


if __name__ == "__main__":
    main()

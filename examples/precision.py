"""What a step down in precision buys, prefill and decode apart: Llama 3.1 70B on two B200.

Decode reads weights, so half the bytes save at most half the time; the fixed time of kernels and collectives does not
shrink. Prefill computes, so the faster units count. Attention and KV cache are kept finer where quality asks for it.
"""

import archsim

STEPS = {
    "bf16": {},
    "fp8, KV bf16": {"weights": "fp8"},
    "fp8, KV fp8": {"weights": "fp8", "kv": "fp8"},
    "nvfp4, attention fp8": {"weights": "nvfp4", "attention": "fp8", "kv": "fp8"},
    "nvfp4": {"weights": "nvfp4", "kv": "fp8"},
}


def main() -> None:
    """Prints each precision against bf16."""
    first: dict[str, float] = {}
    print(f"{'precision':<22}{'TPOT':>10}{'against bf16':>14}{'prefill':>12}{'against bf16':>14}{'weights a chip':>16}")
    for name, precision in STEPS.items():
        scenario = archsim.scenario(
            model="meta/llama-3.1-70b",
            pools={"gpu": {"chip": "nvidia/b200-sxm", "count": 2}},
            precision=precision,
            split={"tensor": 2},
            batch=64,
            context=4096,
        )
        result = archsim.run(scenario)
        tpot, prefill = float(result.tpot[0]), float(result.answer.prefill.span.max())
        first = first or {"tpot": tpot, "prefill": prefill}
        weights = float(result.answer.memory.parts["weights"].max())
        faster = [
            f"{reference / now - 1:>+13.0%}" for reference, now in ((first["tpot"], tpot), (first["prefill"], prefill))
        ]
        print(
            f"{name:<22}{tpot * 1e3:>7.2f} ms{faster[0]:>14}{prefill * 1e3:>9.1f} ms{faster[1]:>14}"
            f"{weights / 1e9:>13.1f} GB"
        )


if __name__ == "__main__":
    main()

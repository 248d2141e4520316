"""Where the parameters are: attention against feed-forward networks, in dense models and with experts.

Feed-forward networks hold most of every model, and with experts nearly all of it, while attention grows with the
context instead: this is why the two want different hardware.
"""

from archsim.workload.lowering import lower
from archsim.workload.model import precision_of
from archsim.workload.schema import load_model
from archsim.workload.step import decode

MODELS = ["meta/llama-3.1-8b", "meta/llama-3.1-70b", "openai/gpt-oss-120b", "deepseek/deepseek-v3"]
FEED_FORWARD = ("ffn", "experts", "shared", "router")


def main() -> None:
    """Prints parameters by role, and what one token touches."""
    print(
        f"{'model':<16}{'total':>10}{'attention':>12}{'feed-forward':>14}{'ratio':>8}{'active':>10}{'active ratio':>14}"
    )
    for name in MODELS:
        model = load_model(name)
        graph = lower(model, decode(1, 1, model.clips), precision_of(model, {}))
        held = {"attention": 0.0, "ffn": 0.0}
        used = {"attention": 0.0, "ffn": 0.0}
        for operator, layers in graph.everything():
            side = "ffn" if operator.role in FEED_FORWARD else operator.role
            if side in held:
                size = sum(operator.parameters.values()) * layers
                share = (
                    float((operator.dims["top_k"] / operator.dims["experts"]).max())
                    if operator.kind == "experts"
                    else 1.0
                )
                held[side] += size
                used[side] += size * share
        total, active = sum(graph.parameters().values()), graph.active_parameters()
        print(
            f"{model.name:<16}{total / 1e9:>9.1f}B{held['attention'] / 1e9:>11.2f}B{held['ffn'] / 1e9:>13.1f}B"
            f"{held['ffn'] / held['attention']:>8.1f}{active / 1e9:>9.1f}B{used['ffn'] / used['attention']:>14.1f}"
        )


if __name__ == "__main__":
    main()

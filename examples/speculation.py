"""What speculative decoding is worth at every batch, and where it is switched off.

Drafts make a step longer and give several tokens. A small batch waits for weights and has arithmetic to spare, so that
drafts are nearly free; a large one pays for every token it computes, accepted or not. A model that drafts, the model's
own prediction module (MTP) and n-grams differ in what they take and in how often they are right; how often is assumed
here: 80 % for the model, 50 % for n-grams, and 85 % for MTP, the lower end of what its makers report.

`python examples/speculation.py --plot FILE.html` also draws it.
"""

import sys

import numpy as np

import archsim

BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
EVERY = np.arange(1, 1025)
CONTEXT = 2000
LLAMA = {
    "model": "meta/llama-3.1-70b",
    "pools": {"gpu": {"chip": "nvidia/h100-sxm", "count": 8}},
    "split": {"tensor": 8},
    "precision": {"weights": "fp8", "kv": "fp8"},
}
DEEPSEEK = {
    "model": "deepseek/deepseek-v3",
    "pools": {"gpu": {"chip": "nvidia/h200-sxm", "count": 16}},
    "split": {"attention_data": 16, "expert": 16},
}
KINDS = {
    "Llama 3.1 70B, 4 drafts of Llama 3.1 8B": (LLAMA, {"drafts": 4, "acceptance": 0.8, "model": "meta/llama-3.1-8b"}),
    "Llama 3.1 70B, 4 drafts of n-grams": (LLAMA, {"drafts": 4, "acceptance": 0.5}),
    "DeepSeek-V3, 1 draft of MTP": (DEEPSEEK, {"drafts": 1, "acceptance": 0.85, "mtp": True}),
}
RATES = [1, 4, 16]


def main() -> None:
    """Prints each kind by batch, and what one of them does to chat at several rates."""
    found = {name: steps(*kind) for name, kind in KINDS.items()}
    for name, (plain, drafted) in found.items():
        ratio = plain / drafted
        print(f"{name}: pays up to a batch of {last(ratio > 1):,}")
        print(f"{'batch':>7}{'tok/s/user':>12}{'with drafts':>13}{'tok/s':>9}{'with drafts':>13}{'ratio':>8}")
        for batch in BATCHES:
            one, other = plain[batch - 1], drafted[batch - 1]
            rates = f"{1 / one:>12.1f}{1 / other:>13.1f}{batch / one:>9,.0f}{batch / other:>13,.0f}"
            print(f"{batch:>7}{rates}{one / other:>8.2f}")
        print()
    chat()
    if "--plot" in sys.argv:
        plot(found, sys.argv[-1])


def steps(system: dict, drafts: dict) -> tuple:
    """Seconds of a token at every batch, without and with drafts."""
    asked = [archsim.scenario(**system, **more, batch=1, context=CONTEXT) for more in ({}, {"speculation": drafts})]
    return tuple(np.asarray(archsim.run(item, batch=EVERY).tpot) for item in asked)


def last(paying: object) -> int:
    """The last batch of the first run of batches that pay."""
    off = np.flatnonzero(~np.asarray(paying))
    return int(off[0]) if len(off) else len(EVERY)


def chat() -> None:
    """Chat on the Llama system, by n-grams, a model, or neither."""
    print("chat on the Llama system: tokens come sooner, the first one does not")
    print("a model that drafts also reads every prompt, which a busy server feels")
    heads = f"{'TTFT':>9}{'TPOT':>10}{'tok/s':>8}{'steps with drafts':>19}{'tokens a step':>15}"
    print(f"{'requests/s':>10}  {'drafts of':<10}{heads}")
    (_, model), (_, ngrams), _ = KINDS.values()
    kinds = {"none": {}, "n-grams": ngrams, "8B": model}
    for rate in RATES:
        for name, drafts in kinds.items():
            more = {"speculation": drafts} if drafts else {}
            m = archsim.serve(archsim.scenario(**LLAMA, **more, traffic="chat"), rate=rate, requests=600).measures
            ttft, tpot = (1e3 * m.latency(what)["mean"] for what in ("ttft", "tpot"))
            told = f"{ttft:>7.0f}ms{tpot:>8.2f}ms{m.output_rate:>8,.0f}"
            print(f"{rate:>10}  {name:<10}{told}{100 * m.drafted:>17.0f} %{m.tokens_per_step:>15.2f}")


def plot(found: dict, target: str) -> None:
    """Tokens a second of a user and of all, with and without drafts, and a line where drafts are switched off."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=2, cols=len(found), subplot_titles=list(found), shared_xaxes=True)
    for column, (plain, drafted) in enumerate(found.values(), 1):
        for row, factor, title in ((1, 1.0, "tok/s of a user"), (2, EVERY, "tok/s of all")):
            for values, name, color in ((plain, "without drafts", "#7a7a7a"), (drafted, "with drafts", "#1f6fb4")):
                line = {"x": EVERY, "y": factor / values, "name": name, "line": {"color": color}, "mode": "lines"}
                figure.add_scatter(**line, showlegend=row == column == 1, row=row, col=column)
            figure.add_vline(x=last(plain > drafted), line_dash="dot", row=row, col=column)
            figure.update_yaxes(title_text=title, row=row, col=column)
        figure.update_xaxes(title_text="batch", type="log", row=2, col=column)
    figure.write_html(target, include_plotlyjs=True)


if __name__ == "__main__":
    main()

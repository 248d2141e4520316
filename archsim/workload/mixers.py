"""Lowering of mixers with a constant state: Mamba-2, Mamba-1 and the gated delta rule.

Decode updates the state of every sequence, one read and one write of all of it. Prefill scans the prompt in chunks:
inside a chunk the recurrence is written as matrix products (state-space duality, arXiv 2405.21060; gated delta
networks, arXiv 2412.06464), between chunks the state is carried. FLOPs of a token and head, with N state elements a
channel, P channels and a chunk of Q (products over the causal half of a chunk):

- decode: 5 P N for Mamba (decay, input, read-out), 7 P N for the delta rule (decay, look-up, update, read-out);
- prefill, Mamba-2: Q N (shared in a group) + Q P inside the chunk, 4 P N for its state, in and out;
- prefill, delta rule: 3 Q N + 2 Q P + Q^2 / 3 (with the inverse of a triangle), 6 P N for look-up, update, read-out;
- prefill, Mamba-1: 5 N a channel and N exponentials, on the vector units.
"""

import numpy as np

from archsim.arrays import Array, array
from archsim.workload.attention import joined
from archsim.workload.build import WIDE, Linked, elementwise, gemm, shared_columns
from archsim.workload.model import DeltaNet, Mamba1, Mamba2, Model, Recurrent
from archsim.workload.operators import Operator
from archsim.workload.step import Step

CHUNK = 64.0  # tokens of a chunk of the delta rule, in every kernel in use


def mamba2(model: Model, a: Mamba2, step: Step) -> Linked:
    """Projection, convolution, state, gated norm, output."""
    own, shared = 2 * a.inner + a.heads, a.channels[1]
    before = [
        shared_columns("in_proj", step.tokens, own, shared, a.groups, model.hidden, own + shared if a.bias else 0),
        _convolution(a, step, a.conv_bias, 3 * a.heads),
    ]
    inside = a.groups / a.heads * a.chunk * a.size + a.chunk * a.width
    work = inside + 4.0 * a.elements
    moved = WIDE * (2.0 * a.width + 1.0 + shared / a.heads)
    cores = _cores(a, step, 5.0 * a.elements, {"work": work, "bytes": moved, "chunk": a.chunk})
    return joined(before, cores, [_gated_norm(a, step, a.inner), _output(model, a, step, a.bias)])


def delta(model: Model, a: DeltaNet, step: Step) -> Linked:
    """Projections, convolution, gates, norm of queries and keys, state, gated norm, output."""
    n, keys, values = step.tokens, a.groups * a.key, a.inner
    before = [
        shared_columns("in_proj", n, 2 * values, 2 * keys, a.groups, model.hidden),
        gemm("gates_proj", "attention", n, 2 * a.heads, model.hidden, "attention", "columns"),
        _convolution(a, step, False, 2 * a.heads),
        elementwise("gates", "attention", n, 2 * 2 * WIDE * a.heads, True),
        elementwise("qk_norm", "attention", n, 2 * WIDE * 2 * keys, True),
    ]
    inside = 3.0 * CHUNK * a.key + 2.0 * CHUNK * a.value + CHUNK * CHUNK / 3.0
    work = inside + 6.0 * a.elements
    moved = WIDE * (2.0 * a.value + 2.0 + 2.0 * keys / a.heads)
    cores = _cores(a, step, 7.0 * a.elements, {"work": work, "bytes": moved, "chunk": CHUNK, "serial": 1.0})
    return joined(before, cores, [_gated_norm(a, step, a.value), _output(model, a, step)])


def mamba1(model: Model, a: Mamba1, step: Step) -> Linked:
    """Projection, convolution, projection of time step, B and C, state, output."""
    n, inner, small = step.tokens, a.inner, a.rank + 2 * a.size
    before = [
        gemm("in_proj", "attention", n, 2 * inner, model.hidden, "attention", "columns", a.bias),
        _convolution(a, step, a.conv_bias, inner * (a.size + 1)),
        gemm("x_proj", "attention", n, small, inner, "attention", "rows"),
    ]
    if a.norms:
        before.append(elementwise("x_norm", "attention", n, 2 * WIDE * small, norm=small))
    before.append(gemm("dt_proj", "attention", n, inner, a.rank, "attention", "columns", True))
    exponentials = float(a.size)
    sizes = {"work": 5.0 * a.size, "bytes": 4.0 * WIDE, "exponentials": exponentials, "vector": 1.0}
    cores = _cores(a, step, 5.0 * a.size, sizes, exponentials)
    return joined(before, cores, [_output(model, a, step, a.bias)])


def _cores(
    a: Recurrent, step: Step, update: float, scan: dict[str, float], exponentials: float = 1.0
) -> list[Operator]:
    """The state kernels: one update a new token in decode, one scan over the prompts in prefill."""
    cores = []
    sizes = {"heads": array(a.heads), "elements": array(a.elements)}
    if step.decodes:
        rates = {"work": array(update), "exponentials": array(exponentials), "bytes": array(scan["bytes"])}
        dims = {"sequences": step.sequences, "queries": step.queries, **sizes, **rates}
        cores.append(Operator("state", "state_update", "attention", dims, {"heads": "tensor"}, store=a.store))
    if step.prefills:
        given = {"exponentials": 1.0, "serial": 0.0, "vector": 0.0, "chunk": 1.0} | scan
        dims = {"requests": step.prefill_requests, "tokens": step.prefill_tokens, "prefix": step.prefill_prefix}
        dims |= sizes | {name: array(value) for name, value in given.items()}
        cores.append(Operator("prefill_state", "state_scan", "attention", dims, {"heads": "tensor"}, store=a.store))
    return cores


def _convolution(a: Recurrent, step: Step, bias: bool, others: int) -> Operator:
    """The causal convolution: every channel in and out, and the last inputs of every sequence read and written.

    `others` are small parameters of the mixer (time step, decay, skip), counted here.
    """
    channels = sum(a.channels)
    kept = 2.0 * (a.kernel - 1) * WIDE * channels
    sequences = (step.sequences + step.prefill_requests) / np.maximum(step.tokens, 1.0)
    moved: Array = 2 * WIDE * channels + kept * sequences
    weights = channels * (a.kernel + bias) + others
    return elementwise("convolution", "attention", step.tokens, moved, True, weights)


def _gated_norm(a: Recurrent, step: Step, weights: int) -> Operator:
    return elementwise("gated_norm", "attention", step.tokens, 3 * WIDE * a.inner, True, weights)


def _output(model: Model, a: Recurrent, step: Step, bias: bool = False) -> Operator:
    return gemm("out_proj", "attention", step.tokens, model.hidden, a.inner, "attention", "rows", bias)

"""Lowering of feed-forward networks: dense ones, and routed experts with their router and shared expert."""

from archsim.arrays import Array, array
from archsim.workload.build import WIDE, Linked, chain, elementwise, gemm, merge
from archsim.workload.model import Mlp, Model, Moe
from archsim.workload.operators import Operator
from archsim.workload.step import Step

FIRST = ("ffn_norm",)


def mlp(model: Model, f: Mlp, step: Step, role: str = "ffn", prefix: str = "") -> Linked:
    """Up (with its gate), activation, down."""
    up = (2 if f.gated else 1) * f.width
    return chain(
        [
            gemm(f"{prefix}up", role, step.tokens, up, model.hidden, "weights", "columns", f.bias),
            elementwise(f"{prefix}activation", role, step.tokens, WIDE * (up + f.width), True),
            gemm(f"{prefix}down", role, step.tokens, model.hidden, f.width, "weights", "rows", f.bias),
        ],
        FIRST,
    )


def moe(model: Model, f: Moe, step: Step) -> Linked:
    """Router, choice, experts between two permutations, and the shared expert beside them."""
    n, h = step.tokens, model.hidden
    routed = [
        _router(f, n, h),
        elementwise("top_k", "router", n, 2 * 4.0 * f.experts),
        elementwise("permute", "router", n, 2 * 4.0 * f.top_k),
        _experts(f, n, f.latent or h),
        elementwise("combine", "experts", n, WIDE * (f.latent or h) * 2),
    ]
    if f.latent:
        routed.insert(0, gemm("latent_in", "experts", n, f.latent, h, "weights"))
        routed.append(gemm("latent_out", "experts", n, h, f.latent, "weights"))
    linked = chain(routed, FIRST)
    if not f.shared:
        return linked
    shared = mlp(model, Mlp(f.shared, f.gated), step, "shared", "shared_")
    add = elementwise("shared_add", "shared", n, 3 * WIDE * h)
    if f.shared_gate:
        add = Operator(add.name, add.kind, add.role, add.dims, {}, "router", {"router": float(h)})
    return [*linked, *shared, (add, (routed[-1].name, "shared_down"))]


def _router(f: Moe, n: Array, h: int) -> Operator:
    router = gemm("router", "router", n, f.experts, h, "router")
    if not f.router_bias:
        return router
    parameters = {"router": float(f.experts * (h + 1))}
    return Operator(router.name, router.kind, router.role, router.dims, {}, "router", parameters)


def _experts(f: Moe, n: Array, h: int) -> Operator:
    matrices = 3 if f.gated else 2
    shape = {"hidden": array(h), "width": array(f.width), "matrices": array(matrices)}
    dims = {"tokens": n, "experts": array(f.experts), "top_k": array(f.top_k), **shape}
    bias = float(f.experts * ((matrices - 1) * f.width + h)) if f.bias else 0.0
    parameters = merge({"experts": float(f.experts * matrices * h * f.width)}, {"weights": bias} if bias else {})
    rules = {"experts": "expert", "width": "expert_tensor"}
    return Operator("experts", "experts", "experts", dims, rules, "experts", parameters)

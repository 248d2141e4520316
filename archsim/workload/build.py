"""What all lowering shares: small kernels, projections, norms, and how operators are linked."""

from archsim.arrays import Array, array
from archsim.workload.model import Model
from archsim.workload.operators import Operator

Linked = list[tuple[Operator, tuple[str, ...]]]

WIDE = 2.0  # bytes of an activation between kernels


def chain(operators: list[Operator], after: tuple[str, ...] = ()) -> Linked:
    """Operators in a row, the first behind `after`."""
    linked: Linked = []
    for operator in operators:
        linked.append((operator, after))
        after = (operator.name,)
    return linked


def elementwise(
    name: str, role: str, tokens: Array, per_token: float | Array, divided: bool = False, norm: float = 0.0
) -> Operator:
    """A small kernel that moves `per_token` bytes a token; `divided` among tensor ranks; `norm` weights of its own."""
    rules = {"bytes": "tensor"} if divided else {}
    dims = {"tokens": tokens, "bytes": array(per_token)}
    return Operator(name, "elementwise", role, dims, rules, "weights", {"weights": norm} if norm else {})


def norm_of(name: str, tokens: Array, model: Model) -> Operator:
    """Residual add and norm over the hidden width: both read, both written."""
    weights = model.hidden * (2 if model.norm_bias else 1)
    return elementwise(name, "norm", tokens, 4 * WIDE * model.hidden, norm=weights)


def gemm(
    name: str, role: str, m: Array, n: float, k: float, tensor: str, rule: str = "", bias: bool = False
) -> Operator:
    """A projection with its weights; `rule` is `columns`, `rows` or nothing (whole on every rank)."""
    divided = {"columns": {"n": "tensor"}, "rows": {"k": "tensor"}}.get(rule, {})
    count = {tensor: n * k}
    if bias:
        count["weights"] = count.get("weights", 0.0) + n
    dims = {"m": m, "n": array(n), "k": array(k)}
    return Operator(name, "gemm", role, dims, divided, tensor, count)


def shared_columns(
    name: str, m: Array, own: float, shared: float, groups: int, k: float, bias: float = 0.0
) -> Operator:
    """A projection of a mixer: `own` columns divide among tensor ranks, `shared` ones by group and no further."""
    dims = {"m": m, "n": array(own), "n_kv": array(shared), "k": array(k), "kv_heads": array(groups)}
    parameters = merge({"attention": float((own + shared) * k)}, {"weights": float(bias)} if bias else {})
    return Operator(name, "gemm", "attention", dims, {"n": "tensor", "n_kv": "kv_heads"}, "attention", parameters)


def merge(left: dict[str, float], right: dict[str, float]) -> dict[str, float]:
    """Counts by class, added."""
    return left | {name: left.get(name, 0.0) + value for name, value in right.items()}

"""Operator and layer level: what others measured, predicted by the engine."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from archsim.arrays import Array, array
from archsim.mapping.plan import Kernel
from archsim.units import format_named
from archsim.validation.attentions import WIDE, prompt
from archsim.validation.errors import errors
from archsim.validation.kernels import chip_of
from archsim.validation.measured import Measured
from archsim.validation.predict import predicted
from archsim.validation.products import product
from archsim.validation.published import COMPASS, SOURCES, Published
from archsim.validation.tables import EVERY, Gate, Points, Row, Section, Standing, drawn, in_words, rows_of

BF16 = format_named("bf16")
LAUNCHED = ("matmul", "softmax", "layernorm", "gelu")  # PyTorch operators, timed with their launch
HOW = (
    "Operators and layers that others measured; no constant was fitted on them. Times of PyTorch operators hold the "
    "launch: it is read off the smallest size of their table, which then counts in no mean. Sources: "
    + "; ".join(SOURCES.values())
    + ". FlashAttention's are times of the kernel alone; those of the stacks, which the constants were fitted on, "
    "probably hold the copies of keys and values that an engine makes besides."
)
Group = tuple[str, str, str]


def operator_section(records: Sequence[Published]) -> Section:
    """Errors of every source and operator, then of whole layers: the sums of their operators."""
    rows: list[Row] = []
    points: list[Points] = []
    launches: dict[tuple[str, str], float] = {}
    for (source, operator, chip), group in _grouped(records).items():
        if source == COMPASS and operator in LAUNCHED:
            group = sorted(group, key=lambda record: record.seconds)
            launches[source, operator] = _launch(group[0])
            group = group[1:]
        table, times = _priced(source, operator, chip, group, launches.get((source, operator), 0.0))
        rows += rows_of(table, times, "operator")
        found = drawn(table, times, len(group))
        points += [found] if found else []
    layers = list(_layers(records, launches))
    compass = [row for row in rows if row.stack == COMPASS and row.regime == EVERY]
    mean = Gate("LLMCompass on A100, mean over its operators (it reaches 10.4 itself)", 10.4, None)
    gates = [Standing(mean, (_average(compass),))] if compass else []
    gates += [Standing(Gate(row.family, 5.0, 5.0), (row,)) for row in layers]
    return Section("Operators and layers", HOW, (*rows, *layers), tuple(gates), (), tuple(points))


def _grouped(records: Sequence[Published]) -> dict[Group, list[Published]]:
    groups: dict[Group, list[Published]] = {}
    for record in records:
        if not record.part_of:
            groups.setdefault((record.source, record.operator, record.chip), []).append(record)
    return groups


def _launch(record: Published) -> float:
    """Time of a PyTorch operator beyond its kernel, from its smallest size."""
    _, times = _priced(record.source, record.operator, record.chip, [record], 0.0)
    return max(record.seconds - float(times[0]), 0.0)


def _priced(source: str, operator: str, chip: str, group: Sequence[Published], launch: float) -> tuple[Measured, Array]:
    """The records of a group as a table, and their predicted times."""
    first = group[0]
    sizes = {name: np.array([record.sizes[name] for record in group]) for name in first.sizes}
    none = np.zeros(len(group), np.bool_)
    table = Measured(
        family=operator,
        chip=chip,
        stack=source,
        version="",
        format=first.format,
        kernels=(_kernel(first, sizes),),
        seconds=np.array([record.seconds for record in group]),
        shape=sizes,
        regime=np.full(len(group), EVERY),
        fitted=none,
        flags={},
        constants=first.stack,
    )
    return table, np.asarray(predicted(table, chip_of(chip)) + launch)


def _kernel(record: Published, sizes: dict[str, Array]) -> Kernel:
    if record.kind == "gemm":
        return product(sizes, format_named(record.format))
    if record.kind == "context_attention":
        dims = prompt(sizes["batch"], sizes["length"], array(WIDE))
        dims |= {"heads": sizes["heads"], "kv_heads": sizes["heads"], "width": sizes["width"], "value": sizes["width"]}
        return Kernel("attention", record.kind, "attention", dims, BF16, BF16, "bf16", ())
    library = "nccl" if record.kind == "all_reduce" else ""
    return Kernel(record.operator, record.kind, "ffn", sizes, BF16, BF16, "bf16", (), library)


def _layers(records: Sequence[Published], launches: dict[tuple[str, str], float]) -> Iterator[Row]:
    """Whole layers: the sum of the parts predicted against the sum measured."""
    names = dict.fromkeys(record.part_of for record in records if record.part_of)
    for name in names:
        parts = [record for record in records if record.part_of == name]
        times = [_alone(record, launches) for record in parts]
        sums = np.array([sum(times)]), np.array([sum(record.seconds for record in parts)])
        table, _ = _priced(parts[0].source, name, parts[0].chip, parts[:1], 0.0)
        whole = replace(table, seconds=sums[1], shape={"parts": array(len(parts))})
        first = parts[0]
        yield Row(
            "layer", f"{name}, four A100", first.chip, first.source, first.format, EVERY, errors(*sums),
            in_words(whole, sums[0], 0),
        )  # fmt: skip


def _alone(record: Published, launches: dict[tuple[str, str], float]) -> float:
    launch = launches.get((record.source, record.operator), 0.0)
    return float(_priced(record.source, record.operator, record.chip, [record], launch)[1][0])


def _average(rows: Sequence[Row]) -> Row:
    """One row with the mean of the errors of several."""
    found = [row.errors for row in rows]
    mean = replace(found[0], points=sum(e.points for e in found), mape=float(np.mean([e.mape for e in found])))
    return replace(rows[0], family=f"{len(rows)} operators", errors=mean)

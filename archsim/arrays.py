"""Arrays: the one numeric type inside archsim, and evaluation in blocks that stay in the processor's cache.

Every physical field is a float64 array of at least one dimension. A swept field has an axis of its own and stays
unbroadcast until the result is read, so that a GEMM, which knows no context, is priced once per batch even on a
grid of batches and contexts.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Inputs = Mapping[str, Array]

PERFECT = 16.0  # exponent from which overlap counts as perfect
CACHE = 2.0  # bandwidth of the shared cache over that of memory
BLOCK = 8192  # elements a block: a few dozen temporaries of 64 KiB fit a core's cache
EDGE = 16  # least length of a block along its longest axes, so that its points have much in common


class BrokenModel(ArithmeticError):
    """A number that must be defined and is not: a mistake of the program, whatever the files say."""


def array(value: object) -> Array:
    """`value` as a float64 array of at least one dimension."""
    return np.atleast_1d(np.asarray(value, dtype=np.float64))


def ceil_to(value: Array, multiple: float) -> Array:
    """`value` rounded up to a whole multiple."""
    return np.ceil(value / multiple) * multiple


def cached(size: Array, resident: Array) -> Array:
    """`size` bytes as so many from memory, when the share `resident` comes from a cache twice as fast."""
    return np.asarray(size * (1.0 - resident / CACHE))


def where_positive(condition: Array, value: Array) -> Array:
    """`value` where `condition` > 0 and exactly 0 elsewhere (no tokens, no time)."""
    if np.all(condition > 0):
        return value
    return np.where(condition > 0, value, 0.0)


def soft_maximum(x: Array, y: Array, p: float) -> Array:
    """The p-norm of two times: the larger when one dominates, up to 2^(1/p) times it when they are equal.

    It stands for imperfect overlap. The exponents in the calibration files are 1, 1.5 and powers of two, for which
    products and roots do, ten times faster than a general power; any other exponent works too, and from PERFECT on
    it is the plain maximum.
    """
    if p == 1.0:
        return x + y
    if p >= PERFECT:
        return np.maximum(x, y)
    if p == 1.5:
        total = x * np.sqrt(x) + y * np.sqrt(y)
        return np.cbrt(total * total)
    rounds = {2.0: 1, 4.0: 2, 8.0: 3}.get(p)
    if rounds is None:
        larger = np.maximum(np.maximum(x, y), np.finfo(np.float64).tiny)
        return np.asarray(larger * ((x / larger) ** p + (y / larger) ** p) ** (1.0 / p))
    x, y = x * x, y * y
    for _ in range(rounds - 1):
        np.multiply(x, x, out=x)
        np.multiply(y, y, out=y)
    total = x + y
    for _ in range(rounds):
        np.sqrt(total, out=total)
    return total


def axes(values: Mapping[str, object], zipped: bool = False) -> dict[str, Array]:
    """Gives every swept field its own axis, in order; zipped fields of one length share one.

    A field with a single value gets no axis (shape `(1,)`).
    Raises ValueError when zipped fields differ in length.
    """
    fields = {name: array(value).ravel() for name, value in values.items()}
    lengths = {field.size for field in fields.values() if field.size > 1}
    if zipped:
        if len(lengths) > 1:
            raise ValueError(f"zipped fields must have one length, got {sorted(lengths)}")
        return fields
    swept = [name for name, field in fields.items() if field.size > 1]
    for index, name in enumerate(swept):
        shape = [1] * len(swept)
        shape[index] = fields[name].size
        fields[name] = fields[name].reshape(shape)
    return fields


def common_shape(arrays: Sequence[Array]) -> tuple[int, ...]:
    """The shape that all `arrays` broadcast to."""
    return np.broadcast_shapes(*(item.shape for item in arrays))


def blocked(function: Callable[[Inputs], tuple[Array, ...]], inputs: Inputs) -> tuple[Array, ...]:
    """Evaluates an elementwise `function` of broadcastable `inputs` in blocks along the longest axis.

    The outputs keep length 1 along axes that they do not depend on. The result is bit for bit that of one call,
    because only elementwise operations are applied.
    """
    shape = common_shape(list(inputs.values()))
    size = math.prod(shape)
    if size <= 2 * BLOCK:
        return function(inputs)
    axis = int(np.argmax(shape))
    rows = max(2, min(EDGE, shape[axis] // 2), BLOCK // (size // shape[axis]))
    if rows >= shape[axis]:  # many short axes: no cut makes a block
        return function(inputs)
    full = {name: item.reshape((1,) * (len(shape) - item.ndim) + item.shape) for name, item in inputs.items()}
    outputs: list[Array] = []
    for start in range(0, shape[axis], rows):
        stop = min(start + rows, shape[axis])
        if stop - start < rows:
            start = stop - rows
        cut = (slice(None),) * axis + (slice(start, stop),)
        part = {name: item[cut] if item.shape[axis] > 1 else item for name, item in full.items()}
        _store(outputs, blocked(function, part), cut, shape[axis])
    return tuple(outputs)


def fastest(time: Callable[..., Array], menu: Sequence[tuple[float, ...]], inputs: Inputs) -> tuple[Array, ...]:
    """The entry of `menu` with the least time at every point of `inputs`, number by number; the first among equals.

    `time` takes the numbers of one entry, or those of several along a new first axis: as many as stay within a block.
    """
    shape = common_shape(list(inputs.values()))
    together = max(1, BLOCK // math.prod(shape))
    table = np.array(menu).T
    best, choice = np.full(1, np.inf), np.zeros(1, np.intp)
    for start in range(0, len(menu), together):
        index: int | npt.NDArray[np.intp] = start
        if together == 1:
            times = time(*menu[start])
        else:
            times = time(*table[:, start : start + together].reshape(len(table), -1, *(1,) * len(shape)))
            index, times = start + times.argmin(0), times.min(0)
        if start == 0:
            best, choice = times, np.broadcast_to(index, times.shape).astype(np.intp)
        else:
            np.copyto(choice, index, where=times < best)
            np.minimum(times, best, out=best)
    return tuple(numbers[choice] for numbers in table)


def _store(outputs: list[Array], part: tuple[Array, ...], cut: tuple[slice, ...], length: int) -> None:
    """Writes one block's outputs into the whole ones, which the first block allocates."""
    axis = len(cut) - 1
    ndim = max(item.ndim for item in part)
    part = tuple(item.reshape((1,) * (ndim - item.ndim) + item.shape) for item in part)
    if not outputs:
        for item in part:
            whole = list(item.shape)
            whole[axis] = length if item.shape[axis] > 1 else 1
            outputs.append(np.empty(whole))
    for output, item in zip(outputs, part, strict=True):
        output[cut if output.shape[axis] > 1 else ...] = item

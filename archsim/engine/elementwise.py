"""Small kernels: a fixed time, and bytes at the sustained bandwidth. Their number decides decode at small batch."""

from archsim.arrays import Array, where_positive
from archsim.chip.constants import Elementwise
from archsim.chip.model import Chip
from archsim.mapping.plan import Kernel


def elementwise(kernel: Kernel, chip: Chip, constants: Elementwise) -> tuple[Array, dict[str, Array]]:
    """Seconds and parts of moving `bytes` a token for `tokens` tokens."""
    moved = elementwise_bytes(kernel)
    peak = moved / chip.memory.bandwidth
    sustained = peak / constants.memory
    fixed = where_positive(kernel.dims["tokens"], constants.fixed + 0.0 * kernel.dims["tokens"])
    return sustained + fixed, {"memory": peak, "bandwidth": sustained - peak, "fixed": fixed}


def elementwise_bytes(kernel: Kernel) -> Array:
    """Bytes read and written."""
    return kernel.dims["tokens"] * kernel.dims["bytes"]

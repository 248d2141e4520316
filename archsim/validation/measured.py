"""What a measured table holds: kernels as the engine knows them, the seconds they took, what to know of each row."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from archsim.arrays import Array
from archsim.mapping.plan import Kernel

Flags = np.typing.NDArray[np.bool_]
Labels = np.typing.NDArray[np.str_]

CALIBRATION = (
    "nvidia/a100-sxm-80gb",
    "nvidia/h100-sxm",
    "nvidia/b200-sxm",
)  # the only chips that constants are fitted on


@dataclass(frozen=True)
class Flag:
    """Something to know of a row. `dropped`: it says nothing of the kernel, so it counts in no mean."""

    name: str
    reason: str
    dropped: bool


FLAGS = {
    flag.name: flag
    for flag in (
        Flag("host-bound", "timed eagerly, flat where a kernel is small: the time of the host, not of the GPU", True),
        Flag("narrow", "n or k under 256: no product of a language model on one rank", True),
        Flag("leaves the cache", "quantised, k >= 51200, n >= 16384: each wave reads its operands again", False),
        Flag("below the roofline", "faster than its FLOPs at the peak of their format", True),
        Flag("one token", "a prompt of one token, which engines give to the decode kernel", True),
        Flag("another kernel", "a library kernel that the constants of its stack and format do not describe", True),
        Flag("absorbed form", "latent attention absorbed: 3.4 times the FLOPs of the expanded form", True),
        Flag("minimum latency", "the low-latency experts of TensorRT-LLM: three times faster than memory", True),
        Flag("failed tuning", "a group of shapes more than 1.8 times slower than the model: tuning failed", True),
        Flag("copied", "a copy of another chip's measurements", True),
        Flag("eager", "timed eagerly beside a row of the same kernel in a graph", True),
        Flag("half rate", "two ranks at half the rate that four have on the same link: a fault of that run", True),
        Flag("across nodes", "kernels of multi-node NVLink: another algorithm, with no constants of its own", True),
        Flag("window ignored", "the library computes the whole prompt where a window would do", True),
        Flag("one by one", "a kernel that takes the sequences of a batch one after the other", True),
    )
}


@dataclass(frozen=True, eq=False)
class Measured:
    """One table of one chip and stack in one format, n rows.

    `kernels` are what a row times, one after the other, with `dims` of shape (n,) or (1,); `stack` is the label of
    the software, `constants` the stack whose constants apply, `variant` the library kernel. `shape` names the sizes
    as people do. `fitted` marks rows that a fit may see; `flags` holds, by name of FLAGS, the rows that it is true of.
    """

    family: str
    chip: str
    stack: str
    version: str
    format: str
    kernels: tuple[Kernel, ...]
    seconds: Array
    shape: Mapping[str, Array]
    regime: Labels
    fitted: Flags
    flags: Mapping[str, Flags]
    variant: str = ""
    constants: str = ""

    def dropped(self) -> Flags:
        """Rows that say nothing of the kernel."""
        result = np.zeros(self.seconds.shape, np.bool_)
        for name, where in self.flags.items():
            if FLAGS[name].dropped:
                result |= where
        return result

    def text(self, index: int) -> str:
        """The shape of a row in words."""
        return ", ".join(f"{name} {float(values[index]):g}" for name, values in self.shape.items())

    def where(self, rows: Flags) -> "Measured":
        """The rows for which `rows` (n,) is true."""
        cut = {name: values[rows] for name, values in self.shape.items()}
        flags = {name: flag[rows] for name, flag in self.flags.items()}
        kernels = tuple(replace(kernel, dims=_cut(kernel.dims, rows)) for kernel in self.kernels)
        return replace(
            self,
            kernels=kernels,
            seconds=self.seconds[rows],
            shape=cut,
            regime=self.regime[rows],
            fitted=self.fitted[rows],
            flags=flags,
        )


def _cut(dims: Mapping[str, Array], rows: Flags) -> dict[str, Array]:
    return {name: values[rows] if values.size == rows.size else values for name, values in dims.items()}


def half(chip: str, shape: Mapping[str, Array]) -> Flags:
    """The half of the shapes that a fit may see, on a calibration chip; none elsewhere.

    A shape falls on the same side on every chip and stack and in every format: the parity of a CRC-32 of its sizes.
    """
    columns = [np.asarray(values, np.int64).tolist() for values in shape.values()]
    if chip not in CALIBRATION:
        return np.zeros(len(columns[0]), np.bool_)
    return np.array([crc32("|".join(map(str, row)).encode()) % 2 == 0 for row in zip(*columns, strict=True)], np.bool_)

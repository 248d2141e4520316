"""The whole validation: sections of every level, from what is installed and what was measured elsewhere."""

from collections.abc import Callable, Sequence
from pathlib import Path

from archsim.validation.carried import Carried
from archsim.validation.database import database, installed
from archsim.validation.end_to_end_sections import sections
from archsim.validation.families import loaded
from archsim.validation.kernels import kernel_section, sample_section
from archsim.validation.measured import Measured
from archsim.validation.operators import operator_section
from archsim.validation.published import records
from archsim.validation.tables import Section


def validated(
    chips: Sequence[str] = (),
    families: Sequence[str] = (),
    stacks: Sequence[str] = (),
    measurements: Path | None = None,
    played: int = 0,
    progress: Callable[[Measured], None] = lambda table: None,
) -> list[Section]:
    """The sections of a validation: kernels, operators and layers, serving runs, machines.

    With the extra `measurements` on the whole kernel database, without it on the points that the package carries.
    Operators and layers come from the published files in the folder `measurements`, else from the carried sample, and
    serving runs from the extra or the sample; they are left out where a chip, family or stack is named. Machines and
    published figures of throughput are in that folder only. So many serving runs are `played` request by request too.
    Raises ValueError for a chip, family or stack that does not exist.
    """
    if installed():
        section = kernel_section(loaded(database(), chips, families, stacks), progress)
    else:
        section = sample_section(loaded(Carried(), chips, families, stacks))
    named = chips or families or stacks
    others = [] if named else [operator_section(records(measurements)), *sections(measurements, played=played)]
    return [section, *others]

"""The kernel families that are validated, and what loads each from the database."""

from collections.abc import Callable, Iterator, Sequence

from archsim.units import did_you_mean
from archsim.validation.attentions import context, generation, latent_context, latent_generation
from archsim.validation.collectives import all_reduces, all_to_alls, nccl
from archsim.validation.database import STACKS, SYSTEMS, Tables
from archsim.validation.experts import experts
from archsim.validation.measured import Measured
from archsim.validation.products import MEAN, products
from archsim.validation.states import small, states

Loader = Callable[[Tables, str, str, str | None], Iterator[Measured]]

LOADERS: dict[str, tuple[Loader, tuple[str, ...]]] = {
    "gemm": (products, (MEAN, *STACKS)),
    "generation-attention": (generation, STACKS),
    "context-attention": (context, STACKS),
    "mla-generation": (latent_generation, STACKS),
    "mla-context": (latent_context, STACKS),
    "experts": (experts, STACKS),
    "all-reduce": (all_reduces, STACKS),
    "nccl": (nccl, ("nccl",)),
    "all-to-all": (all_to_alls, (*STACKS, "nccl")),
    "state": (states, STACKS),
    "elementwise": (small, STACKS),
}


def loaded(
    data: Tables, chips: Sequence[str] = (), families: Sequence[str] = (), stacks: Sequence[str] = ()
) -> Iterator[Measured]:
    """Every measured table of some chips, families and stacks; of all where none are named.

    Raises ValueError for a name that does not exist.
    """
    _known("measured chip", chips, list(SYSTEMS))
    _known("kernel family", families, list(LOADERS))
    _known("stack", stacks, [MEAN, *STACKS, "nccl"])
    for family, (loader, known) in LOADERS.items():
        if families and family not in families:
            continue
        for chip in chips or SYSTEMS:
            for stack in known:
                if not stacks or stack in stacks:
                    yield from (table for table in loader(data, chip, stack, None) if table.seconds.size)


def _known(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"no {what} {name!r}{did_you_mean(name, known)} (there are: {', '.join(known)})")

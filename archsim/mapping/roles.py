"""Mappers of two pools: what each runs, checked against the model, and splits of both proposed together.

A strategy file offers `propose_pools(model, main, partner, settings) -> list[dict[str, int]]`: degrees of the main pool
by name, those of the other as `partner.tensor` and so on, `micro_batches`, and the chips of both (`count` and
`partner.count`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from archsim.arrays import Array, array
from archsim.catalog import StrictModel
from archsim.fields import Few
from archsim.mapping.split import Split, legality, partner_legality
from archsim.mapping.split import split as split_of
from archsim.mapping.system import Partner, Pool
from archsim.units import did_you_mean
from archsim.workload.lowering import lower
from archsim.workload.model import Model, precision_of
from archsim.workload.operators import ROLES
from archsim.workload.step import decode

JOBS = {"prefill": ("prefill", "decode"), "draft": ("draft", "verify")}  # of the partner: its word, and the main pool's
MAIN = ("attention", "decode", "verify")  # what the main pool runs
DEGREES = ("tensor", "attention_data", "expert", "data", "pipeline", "context")

PAIRS = 4096  # of numbers of chips of both pools; more are searched by branch and bound instead of all priced

Wanted = int | str | tuple[int, ...]
Indices = npt.NDArray[np.int64]


class PoolRoles(StrictModel):
    """What one pool of a mapper runs, and what may be chosen for its degrees of parallelism."""

    runs: tuple[str, ...] = Field(description="roles of operators; or prefill and decode, or draft and verify")
    split: dict[str, Wanted] = Field({}, description="what may be chosen for each degree, as in `degrees`")


class PoolsFile(StrictModel):
    """The part of a mapper's file that is about two pools."""

    pools: dict[str, PoolRoles] = Field({}, description="what each of two pools runs, by the names of the pools")
    micro_batches: Few | tuple[Few, ...] = Field(1, description="micro-batches that travel between the pools in turn")
    replicas: Literal["auto"] | Few = Field(
        "auto", description="of the main pool, that share the chips pinned to each layer"
    )
    pinned: Literal["auto"] | bool = Field(
        "auto", description="whether each chip of the other pool holds one layer; auto: if it is an LPU"
    )


@dataclass(frozen=True)
class Settings:
    """What a strategy of two pools is told: what may be chosen for the degrees of both, and the rest of the file.

    `layers` are those in which the partner has operators to run.
    """

    main: Mapping[str, Wanted]
    partner: Mapping[str, Wanted]
    micro_batches: tuple[int, ...]
    replicas: Literal["auto"] | int
    layers: int


ProposePools = Callable[[Model, Pool, Partner, Settings], list[dict[str, int]]]


@dataclass(frozen=True, eq=False)
class Space:
    """Splits of two pools that are too many to pair them all: of each pool, with its chips, and the micro-batches."""

    mains: list[dict[str, int]]
    partners: list[dict[str, int]]
    batches: list[int]

    @property
    def pairs(self) -> int:
        """Pairs of splits."""
        return len(self.mains) * len(self.partners) * len(self.batches)

    @property
    def main_chips(self) -> Array:
        """Chips of the main pool in each of its splits."""
        return array([row["count"] for row in self.mains])

    @property
    def partner_chips(self) -> Array:
        """Chips of the other pool in each of its splits."""
        return array([row["partner.count"] for row in self.partners])

    def proposals(self, first: Indices, second: Indices, batches: Indices) -> "Proposals":
        """Some pairs, by their places."""
        rows = [
            {**self.mains[i], **self.partners[j], "micro_batches": self.batches[k]}
            for i, j, k in zip(first, second, batches, strict=True)
        ]
        chips, others = (array([row[key] for row in rows]) for key in ("count", "partner.count"))
        return Proposals(_split(rows), chips, others)


@dataclass(frozen=True, eq=False)
class Proposals:
    """Splits of two pools along one axis, and the chips of both; a `space` where these are only one of all pairs."""

    split: Split
    chips: Array
    partner_chips: Array
    space: Space | None = None


@dataclass(frozen=True, eq=False)
class Roles:
    """A mapper of two pools: the names of both, what the other does for the main one, and how it proposes."""

    main: str
    partner: str
    job: str
    runs: Mapping[str, frozenset[str]]
    file: PoolsFile
    strategy: ProposePools

    def pinned(self, kind: str) -> bool:
        """Whether chips of a kind are pinned to layers."""
        return self.job == "roles" and (kind == "lpu" if self.file.pinned == "auto" else self.file.pinned)

    def uncovered(self, model: Model) -> dict[str, list[str]]:
        """Roles that no pool runs, with the operators of the model that have them."""
        if self.job != "roles":
            return {}
        graph = lower(model, decode(1, 1, model.clips), precision_of(model, {}))
        covered = frozenset().union(*self.runs.values())
        found: dict[str, list[str]] = {}
        for operator, _ in graph.everything():
            if operator.role not in covered and operator.name not in found.get(operator.role, []):
                found.setdefault(operator.role, []).append(operator.name)
        return found

    def layers(self, model: Model) -> int:
        """Layers in which the other pool has operators to run."""
        graph = lower(model, decode(1, 1, model.clips), precision_of(model, {}))
        roles = self.runs[self.partner]
        busy = {block for block in graph.linked if any(operator.role in roles for operator in graph.operators(block))}
        return sum(count for block, count in graph.sequence if block in busy)

    def propose(self, model: Model, mains: list[Pool], partners: list[Partner]) -> Proposals:
        """Every proposal for every number of chips, once; legal ones only if there are any."""
        pools = self.file.pools
        batches = self.file.micro_batches
        settings = Settings(
            pools[self.main].split,
            pools[self.partner].split,
            batches if isinstance(batches, tuple) else (batches,),
            self.file.replicas,
            self.layers(model) if self.job == "roles" else 0,
        )
        if len(mains) * len(partners) > PAIRS:
            if self.job != "roles":
                count = len(mains) * len(partners)
                raise ValueError(f"{count:,} pairs of numbers of chips; {PAIRS:,} are the most here")
            return self._space(model, mains, partners, settings)
        found: dict[tuple[tuple[str, int], ...], None] = {}
        for main in mains:
            for partner in partners:
                for row in self.strategy(model, main, partner, settings):
                    found[tuple(sorted(row.items()))] = None
        if not found:
            raise ValueError(_nothing(mains[-1], partners[-1], settings))
        rows = [dict(items) for items in found]
        proposed = _split(rows)
        chips, others = (array([row[key] for row in rows]) for key in ("count", "partner.count"))
        legal = self._legal(model, proposed, chips, others, partners[0])
        keep = legal if legal.any() else np.ones_like(legal)
        kept = proposed.mapped(lambda _, value: value[keep] if value.size == keep.size else value)
        return Proposals(kept, chips[keep], others[keep])

    def _space(self, model: Model, mains: list[Pool], partners: list[Partner], settings: Settings) -> Proposals:
        """Every split of each pool, proposed beside the largest of the other, to be searched and not to be paired."""
        first = [row for main in mains for row in self.strategy(model, main, partners[-1], settings)]
        second = [row for partner in partners for row in self.strategy(model, mains[-1], partner, settings)]
        if not first or not second:
            raise ValueError(_nothing(mains[-1], partners[-1], settings))

        def part(rows: list[dict[str, int]], theirs: bool) -> list[dict[str, int]]:
            every = dict.fromkeys(name for row in rows for name in row if name != "micro_batches")
            names = [name for name in every if name.startswith("partner.") == theirs]
            unlike = dict.fromkeys(tuple(row.get(name, 1) for name in names) for row in rows)
            return [dict(zip(names, values, strict=True)) for values in unlike]

        space = Space(part(first, False), part(second, True), sorted({row["micro_batches"] for row in first}))
        one = np.zeros(1, np.int64)
        return replace(space.proposals(one, one, one), space=space)

    def _legal(
        self, model: Model, split: Split, chips: Array, others: Array, partner: Partner
    ) -> "np.typing.NDArray[np.bool_]":
        """Where a model allows both splits."""
        if split.partner is None:
            return np.zeros(chips.shape, np.bool_)
        if self.job != "roles":
            first = legality(model, split, chips) == 0
            second = legality(model, split.partner, others) == 0
            return np.asarray(first if self.job == "draft" else first & second)
        own = legality(model, split, chips, frozenset(ROLES) - partner.roles) == 0
        whole = partner_legality(model, split.partner, partner, others) == 0
        return np.asarray(own & whole)


def _split(rows: list[dict[str, int]]) -> Split:
    def column(name: str) -> Array:
        return array([row.get(name, 1) for row in rows])

    other = split_of(**{name: column(f"partner.{name}") for name in DEGREES})
    own = split_of(**{name: column(name) for name in DEGREES})
    return replace(own, micro_batches=column("micro_batches"), partner=other)


def _nothing(main: Pool, partner: Partner, settings: Settings) -> str:
    """Why nothing is proposed, with a number of chips that would work."""
    count = int(partner.count.max())
    if partner.pinned and count < settings.layers:
        return (
            f"{count} chips of pool {partner.name!r} cannot hold {settings.layers} layers, each chip pinned to one: "
            f"{settings.layers} are the fewest, or `pinned: false`"
        )
    return f"no split of {main.chips} and {count} chips is proposed; see `pools` of the mapper"


def faults_of(file: PoolsFile) -> list[tuple[tuple[str, ...], str]]:
    """(place, what is wrong) in the part of a mapper's file about two pools."""
    known = (*ROLES, *(word for words in JOBS.values() for word in words))
    faults: list[tuple[tuple[str, ...], str]] = []
    for name, pool in file.pools.items():
        for word in pool.runs:
            if word not in known:
                hint = did_you_mean(word, known) or f"; known: {', '.join(known)}"
                faults.append((("pools", name, "runs"), f"nothing is called {word!r}{hint}"))
        faults += [
            (("pools", name, "split", key), f"unknown degree {key!r}; known: {', '.join(DEGREES)}")
            for key in pool.split
            if key not in DEGREES
        ]
    mains = [name for name, pool in file.pools.items() if any(word in MAIN for word in pool.runs)]
    if file.pools and (len(file.pools) != 2 or len(mains) != 1):
        faults.append((("pools",), f"expected two pools, one of which runs {', '.join(MAIN[:-1])} or {MAIN[-1]}"))
    return faults


def roles_of(file: PoolsFile, strategy: ProposePools) -> Roles:
    """The mapper of a file without faults."""
    (main,) = (name for name, pool in file.pools.items() if any(word in MAIN for word in pool.runs))
    (partner,) = (name for name in file.pools if name != main)
    runs = {name: frozenset(pool.runs) for name, pool in file.pools.items()}
    job = next((job for job, (word, _) in JOBS.items() if word in runs[partner]), "roles")
    return Roles(main, partner, job, runs, file, strategy)

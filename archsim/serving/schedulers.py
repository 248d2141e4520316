"""Schedulers: what an iteration does. Built-in ones and a user's load by the same route.

A scheduler sees the engine and gives the chunks of prompts to prefill, and whether the decoding sequences take a step
too. It must decide from the engine's state alone: an iteration without prefill is repeated until that changes.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.catalog import CatalogError, Mark, did_you_mean
from archsim.yamlmarks import note

if TYPE_CHECKING:
    from archsim.serving.engine import Engine
    from archsim.serving.waiting import Filling

Plan = tuple[list[tuple["Filling", int]], bool]
FULLY: Plan = ([], True)


@dataclass(frozen=True)
class Scheduler:
    """Chunked prefill with a token budget (Sarathi): decode first, prompts in what is left of `max_tokens`.

    At most `max_batch` sequences run. `padded`: sequences that end stay in the batch until all have; `whole`: memory
    for the whole answer is taken at admission.
    """

    max_batch: int
    max_tokens: int
    padded: bool = False
    whole: bool = False

    def plan(self, engine: "Engine") -> Plan:
        """Chunks (a prompt and how many tokens of it), and whether sequences decode too."""
        budget = self.max_tokens - engine.batch.size
        chunks: list[tuple[Filling, int]] = []
        for filling in engine.filling:
            if budget <= 0:
                return chunks, True
            tokens = min(filling.left, budget)
            chunks.append((filling, tokens))
            budget -= tokens
        room = self.max_batch - engine.running
        while budget > 0 and room > 0 and engine.waiting:
            admitted = engine.admit()
            if admitted is None:
                break
            tokens = min(admitted.left, budget)
            if tokens:
                chunks.append((admitted, tokens))
            budget -= max(tokens, 1)
            room -= 1
        return chunks, True

    def deaf(self, engine: "Engine") -> bool:
        """Whether a new arrival would change nothing, while sequences decode and the plan was to prefill nothing."""
        return bool(engine.waiting) and not engine.waiting.ranked


class Continuous(Scheduler):
    """Continuous batching (Orca): prompts join the next iteration whole, as many as `max_tokens` allow or one."""

    def plan(self, engine: "Engine") -> Plan:
        """See Scheduler."""
        chunks: list[tuple[Filling, int]] = []
        tokens = 0
        while engine.waiting and engine.running < self.max_batch:
            if chunks and tokens + engine.next_tokens() > self.max_tokens:
                break
            admitted = engine.admit()
            if admitted is None:
                break
            if admitted.left:
                chunks.append((admitted, admitted.left))
                tokens += admitted.left
        return chunks, True


class PrefillFirst(Continuous):
    """Prompts first: while any can start, sequences that decode stand still."""

    def plan(self, engine: "Engine") -> Plan:
        """See Scheduler."""
        chunks, _ = super().plan(engine)
        return chunks, not chunks


class DecodeFirst(Continuous):
    """Decode first: sequences run to their end before the next prompts start."""

    def plan(self, engine: "Engine") -> Plan:
        """See Scheduler."""
        return FULLY if engine.batch.size else super().plan(engine)

    def deaf(self, engine: "Engine") -> bool:
        """See Scheduler."""
        return True


class Static(Scheduler):
    """Static batching: whoever waits forms a batch, and the next one forms when its last sequence has ended."""

    def plan(self, engine: "Engine") -> Plan:
        """See Scheduler."""
        if not engine.running:
            while engine.waiting and engine.running < self.max_batch and engine.admit() is not None:
                pass
        chunks: list[tuple[Filling, int]] = []
        tokens = 0
        for filling in engine.filling:
            if chunks and tokens + filling.left > self.max_tokens:
                break
            chunks.append((filling, filling.left))
            tokens += filling.left
        return chunks, not chunks

    def deaf(self, engine: "Engine") -> bool:
        """See Scheduler."""
        return True


BUILT_IN: dict[str, type[Scheduler]] = {
    "chunked": Scheduler,
    "continuous": Continuous,
    "prefill-first": PrefillFirst,
    "decode-first": DecodeFirst,
    "static": Static,
}


def scheduler(name: str, max_batch: int, max_tokens: int, mark: Mark | None = None) -> Scheduler:
    """The scheduler of a name, or of a Python file with a class `Scheduler` of its own.

    Raises CatalogError, at `mark` where given, for a name that is not known and a file that cannot be used.
    """
    kind = BUILT_IN.get(name) or _loaded(name, mark or Mark(name, 0, 0, 0, 0))
    held = kind is Static
    return kind(max_batch, max_tokens, padded=held, whole=held)


def _loaded(name: str, mark: Mark) -> type[Scheduler]:
    """The class `Scheduler` of a user's file, found beside the file that names it or in the current folder."""
    if not name.endswith(".py"):
        hint = did_you_mean(name, BUILT_IN) or f"; there are {', '.join(BUILT_IN)}, or a file NAME.py"
        raise CatalogError([mark.fault(f"unknown scheduler {name!r}{hint}")])
    source = next((path for path in (Path(mark.file).parent / name, Path(name)) if path.is_file()), None)
    if source is None:
        raise CatalogError([mark.fault(f"no scheduler file {name!r}")])
    note(source)
    spec = importlib.util.spec_from_file_location(f"archsim_scheduler_{source.stem}", source)
    if spec is None or spec.loader is None:
        raise CatalogError([mark.fault(f"cannot load {name!r}")])
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found = next(
            item
            for item in vars(module).values()
            if isinstance(item, type) and issubclass(item, Scheduler) and item.__module__ == module.__name__
        )
    except StopIteration:
        raise CatalogError([mark.fault(f"{source.name} has no class that extends Scheduler")]) from None
    except Exception as error:  # a user's file may fail in any way; it is refused with its reason
        raise CatalogError([mark.fault(f"{source.name}: {type(error).__name__}: {error}")]) from error
    return found

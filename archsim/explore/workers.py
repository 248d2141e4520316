"""Work over several processes: the same answers in the same order for any number of them."""

import pickle
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def spread(work: Callable[[Item], Answer], items: Sequence[Item], workers: int) -> list[Answer]:
    """The answers for all items, in their order.

    What cannot be sent to another process, such as a scheduler of a user's file, is worked out in this one.
    """
    if workers <= 1 or len(items) <= 1 or not _portable((work, items)):
        return [work(item) for item in items]
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(min(workers, len(items))) as pool:
        return list(pool.map(work, items))


def _portable(thing: object) -> bool:
    try:
        pickle.dumps(thing)
    except Exception:  # whatever a user's object raises when it is taken apart
        return False
    return True

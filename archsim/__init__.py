"""archsim: how fast, at what cost and why does this model run on that hardware?

`archsim.run(scenario, **arrays)` answers for a scenario file; see `docs/` for the rest.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archsim.api import load, run, scenario, serve, sweep

__version__ = "0.1.0"
__all__ = ["load", "run", "scenario", "serve", "sweep"]


def __getattr__(name: str) -> Any:
    """Loads the numeric parts when they are first asked for, so that `archsim --help` starts fast."""
    if name in __all__:
        from archsim import api

        return getattr(api, name)
    raise AttributeError(f"module 'archsim' has no attribute {name!r}")

"""The `archsim` command: thin, and lazy, so that `--help` loads typer only."""

from archsim.cli import answers, files, serve
from archsim.cli.base import app

__all__ = ["answers", "app", "files", "serve"]

"""The `archsim` command: thin, and lazy, so that `--help` loads typer only."""

from archsim.cli import answers, calibrate, files, search, serve, validation
from archsim.cli.base import app

__all__ = ["answers", "app", "calibrate", "files", "search", "serve", "validation"]

"""The `archsim` command: thin, and lazy, so that `--help` loads typer only."""

from archsim.cli import answers, calibrate, files, pareto, questions, search, serve, sweep, validation
from archsim.cli.base import app

__all__ = ["answers", "app", "calibrate", "files", "pareto", "questions", "search", "serve", "sweep", "validation"]

"""The command that fits constants: of kernels to measured times, a user's own too, and of engines to serving runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archsim.cli.base import app, refusals

if TYPE_CHECKING:
    from archsim.validation.calibrate import Job, Outcome

OWN = Path("chips") / "generations"
RETURNS = Path("workloads") / "returns"


@app.command()
def calibrate(
    bench: Annotated[
        Path | None, typer.Argument(metavar="[CSV]", help="Your own measurements; default: the public ones.")
    ] = None,
    chip: Annotated[
        str | None, typer.Option(metavar="NAME", help="The chip: of your measurements, or the only one to fit.")
    ] = None,
    generation: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this generation.")] = None,
    family: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this family of kernels.")] = None,
    stack: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this stack; that of your CSV.")] = None,
    like: Annotated[
        str, typer.Option(metavar="STACK", help="With a CSV: whose constants a new stack has where none are measured.")
    ] = "vllm",
    engines: Annotated[
        bool, typer.Option("--engines", help="Fit engines to serving runs (host times, skew, bands), not kernels.")
    ] = False,
    returns: Annotated[
        str | None, typer.Option(metavar="TRACE", help="Learn from a trace of sessions who comes back, nothing else.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change and write nothing.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the files there.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Processes; default: one a core.")] = None,
) -> None:
    """Fit the constants of kernels to measured times, and write the generation files that hold them."""
    with refusals():
        if returns is not None:
            _returns(returns, [bench, chip, generation, family, stack, engines or None], dry_run, out)
            return
        from archsim.validation.calibrate import ready

        ready()
        if engines:
            _engines([bench, chip, generation, family, stack, dry_run or None, out])
            return
        if bench is not None:
            _own(bench, chip, stack, like, dry_run, out or OWN)
            return
        from archsim.validation.calibrate import generation_of, jobs
        from archsim.validation.database import database

        database()  # first of all, because without it there is nothing to do
        wanted = [*(generation or []), *([] if chip is None else [generation_of(chip)])]
        found = _run(jobs(wanted, family or [], stack or []), workers)
        _print(found)
        if not dry_run:
            _write(found, out)


def _returns(trace: str, others: "list[object]", dry_run: bool, out: Path | None) -> None:
    """Return prediction, learned on half of the sessions and scored on the others."""
    from archsim.report.tables import Table
    from archsim.report.terminal import console, print_table
    from archsim.validation.returns import learn, rows

    if any(item is not None for item in others):
        raise ValueError("--returns learns from a trace, and takes no other option than --dry-run and --out")
    found = learn(trace)
    typer.echo(
        f"Trained on {found.trained:,} requests, scored on {found.scored:,}: area under the ROC {found.area:.3f}, "
        f"average precision {found.precision:.3f}, {found.base:.1%} leave."
    )
    print_table(
        console(), Table("Said to leave", ("from a chance of", "share", "precision", "recall"), tuple(rows(found)))
    )
    if not dry_run:
        typer.echo(f"written: {found.write(out or RETURNS)}")


def _engines(others: "list[object]") -> None:
    """Constants of engines and their bands, all together, written into the catalogue."""
    from archsim.catalog import roots
    from archsim.validation.database import database
    from archsim.validation.end_to_end_calibrate import calibrate
    from archsim.validation.rows import table

    if any(item is not None for item in others):
        raise ValueError("--engines fits all engines at once, in place, and takes no other option")
    database()
    runs = table()
    if runs is not None:
        for path in calibrate(runs, roots("mappers")[-1].parent, lambda text: typer.echo(text, err=True)):
            typer.echo(f"written: {path}")


def _run(jobs: "list[Job]", workers: int | None) -> "list[Outcome]":
    """All jobs on several processes, in an order that no timing changes."""
    import os
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from archsim.validation.calibrate import outcomes

    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # a process a core already; more threads would only wait for one another
    most = min(workers or os.cpu_count() or 1, max(len(jobs), 1))
    with ProcessPoolExecutor(most, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(outcomes, job) for job in jobs]
        for number, future in enumerate(futures, 1):
            future.result()
            typer.echo(f"\rfitted {number} of {len(futures)}", nl=False, err=True)
        typer.echo("", err=True)
        return sorted((one for future in futures for one in future.result()), key=lambda one: one.key)


def _print(found: "list[Outcome]") -> None:
    from archsim.report.calibrated import constants_table, error_table, totals
    from archsim.report.terminal import console, print_table

    out = console()
    print_table(out, constants_table(found))
    print_table(out, error_table(found))
    typer.echo(f"\n{totals(found)}")


def _write(found: "list[Outcome]", out: Path | None) -> None:
    from archsim.validation.update import updated

    files = updated(found)
    for path, text in files.values():
        target = path if out is None else out / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        typer.echo(f"written: {target}")
    if not files:
        typer.echo("nothing changes")


def _own(bench: Path, chip: str | None, stack: list[str] | None, like: str, dry_run: bool, out: Path) -> None:
    from archsim.validation.bench import read_bench
    from archsim.validation.own import fitted_to, generation_text

    if chip is None:
        raise ValueError("a benchmark of your own needs --chip, the chip that it ran on")
    if len(stack or []) > 1:
        raise ValueError("a benchmark of your own is of one --stack")
    name = stack[0] if stack else like
    found = fitted_to(read_bench(bench), chip, name, like)
    _print(found)
    if not dry_run:
        target = out / f"{chip.rpartition('/')[2].removesuffix('.yaml')}-{name}.yaml"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(generation_text(found, chip, target.stem, bench.name, name, like), encoding="utf-8")
        typer.echo(f"written: {target}")

"""Every script in examples/ prints what stands in the file of its name in examples/expected/."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py"))
SLOW = {"agentic-sessions", "next-ten-percent", "partitioning", "waterfall"}  # more than ten seconds each
QUICK = [path for path in SCRIPTS if path.stem not in SLOW]


def check(script: Path, printed: str) -> None:
    expected = EXAMPLES / "expected" / f"{script.stem}.txt"
    assert printed == expected.read_text(), (
        f"if this is right, run `make examples` and look at the difference in {expected.name}"
    )


@pytest.mark.parametrize("script", QUICK, ids=lambda path: path.stem)
def test_the_example_prints_what_is_written_beside_it(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    check(script, capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_a_slow_example_prints_what_is_written_beside_it(name: str) -> None:
    """In a process of its own, since some take several processes."""
    script = EXAMPLES / f"{name}.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    check(script, done.stdout)


def test_every_expected_output_has_its_script() -> None:
    assert {path.stem for path in (EXAMPLES / "expected").glob("*.txt")} == {path.stem for path in SCRIPTS}

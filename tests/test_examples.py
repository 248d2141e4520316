"""Every script in examples/ prints what stands in the file of its name in examples/expected/."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_example_prints_what_is_written_beside_it(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    expected = EXAMPLES / "expected" / f"{script.stem}.txt"
    assert capsys.readouterr().out == expected.read_text(), (
        f"if this is right, run `make examples` and look at the difference in {expected.name}"
    )


def test_every_expected_output_has_its_script() -> None:
    assert {path.stem for path in (EXAMPLES / "expected").glob("*.txt")} == {path.stem for path in SCRIPTS}

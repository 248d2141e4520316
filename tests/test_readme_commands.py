"""The README runner finds what a reader would type, and fails when that fails."""

from pathlib import Path

import pytest
from readme_commands import Snippet, failure, main, snippets

PAGE = """\
Type `archsim run this` at no time, nor
archsim run that.

```sh
pip install archsim
archsim run a.yaml \\
    --html a.html
archsim run lost.yaml   # exits with 2
archsimulator is not us
```

```console
$ archsim --version
archsim 0.1.0
$ ls
```

- in a list:
  ```python
  import archsim
  if archsim:
      print(1)
  ```

```text
archsim run SCENARIO
```
"""


@pytest.fixture
def fake_archsim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `archsim` that prints how many files lie around and exits with the code it is given."""
    program = tmp_path / "archsim"
    program.write_text('#!/bin/sh\necho "files: $(ls -A | wc -l)"\nexit $1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def test_takes_commands_and_scripts_from_fenced_blocks_only() -> None:
    assert snippets(PAGE) == [
        Snippet(6, "sh", "archsim run a.yaml --html a.html"),
        Snippet(8, "sh", "archsim run lost.yaml", exit_code=2),
        Snippet(13, "sh", "archsim --version"),
        Snippet(20, "python", "import archsim\nif archsim:\n    print(1)\n"),
    ]


@pytest.mark.usefixtures("fake_archsim")
def test_runs_in_an_empty_folder_and_expects_the_code_it_is_told() -> None:
    assert failure(Snippet(1, "sh", "archsim 0")) is None
    assert failure(Snippet(1, "sh", "archsim 2", exit_code=2)) is None
    problem = failure(Snippet(1, "sh", "archsim 3"))
    assert problem is not None and "exit code 3, expected 0" in problem and "files: 0" in problem


def test_runs_python_as_a_script() -> None:
    assert failure(Snippet(1, "python", "import sys\nsys.exit()")) is None
    problem = failure(Snippet(1, "python", "raise ValueError('told you')"))
    assert problem is not None and "told you" in problem


@pytest.mark.usefixtures("fake_archsim")
@pytest.mark.parametrize(
    ("page", "code", "last"),
    [
        ("```sh\narchsim 0\narchsim 0\n```\n", 0, "README: 2 passed, 0 failed"),
        ("```sh\narchsim 0\narchsim 1\n```\n", 1, "README: 1 passed, 1 failed"),
    ],
)
def test_one_failure_fails_the_page(
    page: str, code: int, last: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(page)
    assert main(readme) == code
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_page_without_commands_is_a_failure(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("```text\narchsim run SCENARIO\n```\n")
    assert main(readme) == 1

"""Runs what README.md tells its readers to run, so that it cannot drift from the program.

    python .ci/readme_commands.py README.md

Taken are, from fenced code blocks only:

- every line of an ``sh`` or ``console`` block that starts with ``archsim``, after ``$`` where the block shows
  prompts; a backslash at its end continues it, and ``# exits with 2`` at its end is the exit code to expect;
- every ``python`` block, as one script.

Each runs in an empty folder of its own, as it would for somebody who has installed archsim and nothing else.
"""

import re
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

FENCED = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL
)
EXPECTED = re.compile(r"\s*#\s*exits with (\d+)\s*$")
TIMEOUT = 600  # seconds; a README promises nothing that takes longer


@dataclass(frozen=True)
class Snippet:
    """One thing to run: a shell command or a Python script, and the line of the README where it starts."""

    line: int
    language: str
    text: str
    exit_code: int = 0


def snippets(markdown: str) -> list[Snippet]:
    """All there is to run in a page, in its order."""
    found: list[Snippet] = []
    for block in FENCED.finditer(markdown):
        first = markdown.count("\n", 0, block.start("body")) + 1
        body = textwrap.dedent(block["body"])
        if block["language"] == "python":
            found.append(Snippet(first, "python", body))
        elif block["language"] in ("sh", "console"):
            found.extend(commands(body, first))
    return found


def commands(body: str, first: int) -> list[Snippet]:
    """The archsim commands of one shell block whose first line is line `first` of the page."""
    prompted = re.search(r"^\$ ", body, re.MULTILINE) is not None  # then a line without a prompt is output
    found, lines = [], iter(enumerate(body.splitlines(), first))
    for number, line in lines:
        if prompted != line.startswith("$ ") or not re.match(r"(\$ )?archsim\b", line):
            continue
        command = line.removeprefix("$ ")
        while command.endswith("\\"):
            command = command[:-1] + next(lines, (0, ""))[1].strip().removeprefix("> ")
        expected = EXPECTED.search(command)
        found.append(Snippet(number, "sh", EXPECTED.sub("", command), int(expected[1]) if expected else 0))
    return found


def failure(snippet: Snippet) -> str | None:
    """Runs a snippet in an empty folder: None, or how it failed with all that it printed."""
    argv = ["sh", "-c", snippet.text] if snippet.language == "sh" else [sys.executable, "-c", snippet.text]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                argv,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return f"still running after {TIMEOUT} s"
    if done.returncode == snippet.exit_code:
        return None
    return f"exit code {done.returncode}, expected {snippet.exit_code}; it printed\n{done.stdout}"


def main(readme: Path) -> int:
    """Runs all of a page, says how each went and returns the exit code."""
    found = snippets(readme.read_text(encoding="utf-8"))
    failed = 0
    for snippet in found:
        began = time.monotonic()
        problem = failure(snippet)
        title = snippet.text if snippet.language == "sh" else "python script"
        took = f"{time.monotonic() - began:5.1f} s"
        print(f"{'FAILED' if problem else 'ok':6} {took}  line {snippet.line}: {title}", flush=True)
        if problem:
            failed += 1
            print(textwrap.indent(problem, "    "), flush=True)
    if not any(snippet.language == "sh" for snippet in found):
        print(f"{readme} shows no archsim command: is it still the page that users read?")
        failed += 1
    print(f"README: {len(found) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

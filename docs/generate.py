"""Brings up to date what the pages take from the program, so that they cannot drift from it.

    python docs/generate.py            rewrites README.md, CONTRIBUTING.md and docs/*.md
    python docs/generate.py --check    only says which pages are out of date

Prose is written by hand. Between `<!-- begin KIND ARGUMENT -->` and `<!-- end -->` stands what this script writes:

- `fields CLASS`: a table of a schema's keys, in words;
- `snippet PATH`: a shipped file, up to the line that starts with the text after `until`;
- `quantities`, `formats`, `parts`, `metrics`, `families`, `errors`, `shipped`: what the program knows.

The output below each `$ archsim` command of a ```console block, and the ```text block after a ```python block, are
what the program prints; `<!-- show 1 | Memory -->` before a block of output keeps its first paragraph and the one whose
first line holds that text. The blocks of a page share one folder, in which each ```yaml or ```python block that starts
with a comment naming a file, such as `# mine/chips/nvidia/h100-8tb.yaml`, is that file. Python blocks share their
variables.
"""

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tables import CLASSES, errors, families, fields, formats, metrics, parts, quantities, shipped

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COLUMNS = 110  # of the terminal whose output is shown

REGION = re.compile(r"(?P<begin><!-- begin (?P<what>[^>]*?) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
BLOCK = re.compile(
    r"(?:^<!-- show (?P<show>[^>]+) -->\n)?^```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

TABLES: dict[str, Callable[[], str]] = {
    "quantities": quantities,
    "formats": formats,
    "parts": parts,
    "metrics": metrics,
    "families": families,
    "errors": errors,
    "shipped": shipped,
}


def region(what: str) -> str:
    """What stands in a region. Raises ValueError for a kind that does not exist."""
    kind, _, argument = what.partition(" ")
    if kind == "fields":
        return fields(CLASSES[argument])
    if kind == "snippet":
        return snippet(argument)
    if kind in TABLES:
        return TABLES[kind]()
    raise ValueError(f"no region {what!r}; there are fields, snippet, {', '.join(TABLES)}")


def snippet(argument: str) -> str:
    """The lines of a shipped file as a block, the file's name first."""
    name, _, until = argument.partition(" until ")
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    if until:
        lines = lines[: next(index for index, line in enumerate(lines) if line.startswith(until))]
    if name.endswith(".txt"):
        return "\n".join(["```text", *lines, "```", ""])
    language = "python" if name.endswith(".py") else "yaml"
    return "\n".join([f"```{language}", f"# {name}", *lines, "```", ""])


def page(text: str, commands: bool = True) -> str:
    """A page with everything in it up to date; without `commands`, their outputs stay as they are."""
    text = REGION.sub(lambda found: found["begin"] + region(found["what"]) + found["end"], text)
    with tempfile.TemporaryDirectory() as folder:
        return _Transcript(Path(folder), commands).page(text)


class _Transcript:
    """Runs the blocks of a page one after the other in a folder."""

    def __init__(self, folder: Path, commands: bool) -> None:
        self.folder, self.commands = folder, commands
        self.variables: dict[str, object] = {}
        self.printed: str | None = None  # by the Python block before

    def page(self, text: str) -> str:
        """The page with the outputs of now."""
        return BLOCK.sub(self._block, text)

    def _block(self, block: re.Match[str]) -> str:
        language, body = block["language"], block["body"]
        printed, self.printed = self.printed, None
        if language in ("yaml", "python") and (name := named_file(body)):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(body, encoding="utf-8")
        elif language == "python":
            self.printed = self._python(body)
        elif (language == "console" and self.commands) or (language == "text" and printed is not None):
            shown = self._console(body, block["show"]) if language == "console" else cut(printed or "", block["show"])
            return block[0].replace(f"\n{body}```", f"\n{shown}```")
        return block[0]

    def _python(self, body: str) -> str:
        before, output = Path.cwd(), io.StringIO()
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(output):
                exec(compile(body, "<page>", "exec"), self.variables)
        finally:
            os.chdir(before)
        return output.getvalue()

    def _console(self, body: str, wanted: str | None) -> str:
        lines: list[str] = []
        for line in body.splitlines():
            if line.startswith("$ "):
                lines.append(line + "\n")
            if line.startswith("$ archsim"):
                lines.append(cut(self._shell(line.removeprefix("$ ")), wanted))
        return "".join(lines)

    def _shell(self, command: str) -> str:
        """What a command prints."""
        own = f'archsim() {{ "{sys.executable}" -m archsim "$@"; }}\n'
        paths = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
        environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "PYTHONPATH": paths}
        done = subprocess.run(
            ["sh", "-c", own + command.partition("  #")[0]],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        printed = done.stdout.replace(f"{ROOT}{os.sep}", "")
        return "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())


def cut(output: str, wanted: str | None) -> str:
    """The paragraphs of an output that are wanted, by number or by how they start, with `...` for what is left out.

    Raises ValueError where none starts so.
    """
    if wanted is None:
        return output
    paragraphs = output.strip("\n").split("\n\n")
    chosen = sorted(_paragraph(paragraphs, text.strip()) for text in wanted.split("|"))
    kept, end = [], -1
    for index in chosen:
        kept += [*(["..."] if index > end + 1 else []), paragraphs[index]]
        end = index
    return "\n\n".join([*kept, *(["..."] if end + 1 < len(paragraphs) else [])]) + "\n"


def _paragraph(paragraphs: list[str], text: str) -> int:
    if text.isdecimal():
        return int(text) - 1
    found = [index for index, paragraph in enumerate(paragraphs) if text in paragraph.partition("\n")[0]]
    if not found:
        raise ValueError(f"no paragraph of the output starts with {text!r}")
    return found[0]


def named_file(body: str) -> str | None:
    """The file that a block says it is, in its first line."""
    found = re.match(r"# ([\w./-]+\.(?:yaml|py))\n", body)
    return found[1] if found else None


def main(arguments: list[str]) -> int:
    """Rewrites the pages or, with --check, names those that would change."""
    check = "--check" in arguments
    old = {path: path.read_text(encoding="utf-8") for path in PAGES if path.exists()}
    changed = {path: new for path, text in old.items() if (new := page(text)) != text}
    for path, text in changed.items():
        print(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return 1 if check and changed else 0


if __name__ == "__main__":
    importlib.invalidate_caches()
    sys.exit(main(sys.argv[1:]))

"""Reports in a real browser: every figure is drawn, nothing is loaded, nothing goes wrong, and names stay text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from archsim.cli import app

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome is installed")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=10000",
    "--dump-dom",
]
# A browser without a network says little about what it would load: it is given names that resolve to nothing
NOWHERE = "--host-resolver-rules=MAP * ~NOTFOUND"
# In the browser's log of the network, a request that a page made; its own have annotations of their own
BY_A_PAGE = re.compile(r'"traffic_annotation":101845102,"url":"([^"]*)"')
VOID = frozenset(["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"])

SECONDS = 300  # for a page of five megabytes on a machine with other work; five to ten on a quiet one
EVIL = '<script>alert("one")</script><img src=x onerror=alert(2)>&amp;'
SCENARIOS = {
    "infeasible": "model: meta/llama-3.1-70b\npools: {gpu: {chip: nvidia/h100-sxm, count: 1}}\n"
    "precision: {weights: fp8}\nbatch: 1\ncontext: 131072\n",
    "experts": f"name: '{EVIL}'\nmodel: deepseek/deepseek-v3\npools: {{gpu: {{chip: nvidia/h200-sxm, count: 64}}}}\n"
    "mapper: expert-parallel\nbatch: 512\ncontext: 4096\ntraffic: {input: 4096, output: 512}\n",
}


class Dom(HTMLParser):
    """A dumped page: for every id the classes below it, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.below: dict[str, list[str]] = {}
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.words: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attributes}
        self.tags.append(tag)
        self.attributes += known
        for _, name in self.open:
            if name:
                self.below[name] += known.get("class", "").split()
        if known.get("id"):
            self.below.setdefault(known["id"], [])
        if tag not in VOID:
            self.open.append((tag, known.get("id", "")))

    def handle_endtag(self, tag: str) -> None:
        if tag in (name for name, _ in self.open):
            while self.open.pop()[0] != tag:
                pass

    def handle_data(self, data: str) -> None:
        tag, name = self.open[-1] if self.open else ("", "")
        self.words[name or tag] = self.words.get(name or tag, "") + data


@dataclass(frozen=True)
class Seen:
    """A page as the browser left it, what the page wrote to the console, and the addresses it asked for."""

    dom: Dom
    console: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @property
    def figures(self) -> list[str]:
        """The ids of the figures that the page is to draw."""
        return list(json.loads(self.dom.words["figures"]))


def opened(page: Path, profile: Path) -> Seen:
    """A page opened in the browser with a fresh profile."""
    log = profile / "net.json"
    profile.mkdir(parents=True)
    argv = [str(BROWSER), *FLAGS, NOWHERE, f"--user-data-dir={profile}", f"--log-net-log={log}", page.as_uri()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, encoding="utf-8", errors="replace")
    assert done.returncode == 0 and done.stdout, done.stderr[-2000:]
    console = re.findall(r"CONSOLE[(:]\d+\)?\] (.*)", done.stderr)
    asked = set(BY_A_PAGE.findall(log.read_text("utf-8", "replace")))
    return Seen(Dom(done.stdout), console, sorted(asked - {page.as_uri()}))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seen]:
    """The report of a scenario, written by the command and opened, once."""
    folder = tmp_path_factory.mktemp("browser")

    @cache
    def report(name: str) -> Seen:
        scenario, page = name, folder / f"{name}.html"
        if name in SCENARIOS:
            scenario = str(folder / f"{name}.yaml")
            Path(scenario).write_text(SCENARIOS[name], encoding="utf-8")
        done = CliRunner().invoke(app, ["run", scenario, "--html", str(page)])
        assert done.exit_code == (1 if name == "infeasible" else 0), done.output
        return opened(page, folder / f"profile-{name}")

    return report


REPORTS = {"llama-70b-on-h100": 14, "infeasible": 1, "experts": 14}  # and the figures it has at least
every = pytest.mark.parametrize("name", REPORTS)


def test_the_browser_tells_of_errors_and_of_what_a_page_loads(tmp_path: Path) -> None:
    """Were it not for this, the other tests could pass because nothing is heard."""
    page = tmp_path / "bad.html"
    page.write_text(
        '<p id="kept">before</p><script>console.error("a word"); new Image().src = "https://example.com/a.png";'
        'fetch("http://example.org/b.json");'
        'document.getElementById("kept").textContent = "after"; nothing.at.all</script>'
    )
    found = opened(page, tmp_path / "profile")
    assert [line for line in found.console if "a word" in line] and [
        line for line in found.console if "nothing is" in line
    ]
    assert found.asked == ["http://example.org/b.json", "https://example.com/a.png"]
    assert found.dom.words["kept"] == "after"


@every
def test_a_report_opens_without_an_error_or_a_word_on_the_console(name: str, seen: Callable[[str], Seen]) -> None:
    assert seen(name).console == []


@every
def test_every_figure_of_a_report_is_drawn(name: str, seen: Callable[[str], Seen]) -> None:
    found = seen(name)
    assert len(found.figures) >= REPORTS[name]
    for figure in found.figures:
        classes = found.dom.below[figure]
        assert classes.count("main-svg") > 0, f"{figure} is empty"
        assert {"trace", "bars", "scatter", "point"} & set(classes), f"{figure} has axes and nothing in them"


EXPLORED = {
    "pareto": ["llama-70b-on-h100", "--mode", "step", "--vary", "batch=1,8,64", "--vary", "context=1024,4096,8192"],
    "sensitivity": ["llama-70b-on-h100", "--mode", "step", "--sobol", "--samples", "16", "--vary", "context=1..9000"],
    "breakeven": ["llama-70b-on-bertha", "llama-70b-on-h100", "--mode", "step", "--vary", "context=1000..9000"],
    "sweep": ["llama-70b-on-h100", "--mode", "step", "--vary", "batch=1,8,64", "--vary", "context=1024,4096,99999"],
}


@pytest.mark.parametrize("command", EXPLORED)
def test_pages_of_explorations_draw_every_figure_and_load_nothing(command: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, [command, *EXPLORED[command], "--html", str(page)])
    assert done.exit_code == 0, done.output
    found = opened(page, tmp_path / "profile")
    assert found.console == [] and found.asked == [] and len(found.figures) >= 2
    for figure in found.figures:
        assert {"bars", "scatter", "heatmaplayer"} & set(found.dom.below[figure]), f"{figure} is empty"


@every
def test_a_report_asks_for_nothing_from_the_network(name: str, seen: Callable[[str], Seen]) -> None:
    found = seen(name)
    assert found.asked == []
    assert not {"iframe", "object", "embed"} & set(found.dom.tags)


def test_markup_in_a_name_stays_text_once_scripts_have_run(seen: Callable[[str], Seen]) -> None:
    found, plain = seen("experts"), seen("llama-70b-on-h100")
    assert found.dom.words["h1"] == found.dom.words["title"] == EVIL
    for tag in ("script", "img"):
        assert found.dom.tags.count(tag) == plain.dom.tags.count(tag), tag
    assert "onerror" not in found.dom.attributes


def test_the_page_of_what_does_not_fit_says_why_above_its_figure(seen: Callable[[str], Seen]) -> None:
    text = " ".join(" ".join(seen("infeasible").dom.words.values()).replace("\u00a0", " ").split())
    assert "cannot run" in text and "What would help" in text and "13,164 tokens" in text


def test_the_page_of_experts_shows_their_kernels_and_their_transfers(seen: Callable[[str], Seen]) -> None:
    found = seen("experts")
    text = " ".join(found.dom.words.values())
    assert "EP64" in text.replace("\u00a0", " ") and "dispatch" in text

"""`archsim import`: a config.json becomes a workload file that runs, or is refused by the name of the key."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from archsim.cli import app

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(*arguments: str, **changes: Any) -> Result:
    Path("config.json").write_text(json.dumps({**LLAMA, **changes}, indent=1), encoding="utf-8")
    return CliRunner().invoke(app, ["import", "config.json", *arguments])


def test_a_file_is_written_that_passes_and_runs() -> None:
    done = imported("--name", "Small Llama", "--out", "small.yaml")
    assert done.exit_code == 0 and done.stdout == "", done.output
    assert "name: Small Llama" in Path("small.yaml").read_text(encoding="utf-8")
    runner = CliRunner()
    assert runner.invoke(app, ["workloads", "check", "small.yaml"]).stdout == "small.yaml: ok\n"
    Path("s.yaml").write_text(
        "model: small.yaml\npools: {gpu: {chip: nvidia/h100-sxm, count: 1}}\nbatch: 1\ncontext: 100\n", encoding="utf-8"
    )
    assert "Small Llama" in runner.invoke(app, ["run", "s.yaml"]).stdout


def test_without_a_file_it_goes_to_the_output() -> None:
    assert "num_hidden_layers: 4" in imported("--name", "x").stdout


def test_a_key_that_is_not_understood_is_refused_by_its_name_and_line() -> None:
    done = imported(strange_key=3)
    assert done.exit_code == 2 and done.stdout == ""
    assert done.stderr.startswith("config.json:") and "strange_key" in done.stderr


def test_towers_are_left_out_only_on_request() -> None:
    vision = {"vision_config": {"hidden_size": 1024}}
    assert imported(**vision).exit_code == 2
    done = imported("--text-only", **vision)
    assert done.exit_code == 0 and "vision_config" in done.stderr and "vision_config" not in done.stdout


def test_no_file_and_no_folder_are_refused() -> None:
    done = CliRunner().invoke(app, ["import", "lost.json"])
    assert done.exit_code == 2 and "lost.json" in done.stderr
    assert imported("--out", "lost/small.yaml").exit_code == 2


@pytest.mark.parametrize(
    ("told", "repository"),
    [
        ("tiny-org/Tiny-2.1", "tiny-org/Tiny-2.1"),
        ("./tiny/model", None),
        ("/data/tiny/model", None),
        ("tiny", None),
        ("a/b/c", None),
        ("", None),
        (None, None),
    ],
)
def test_the_repository_is_taken_over_where_it_is_told(told: str | None, repository: str | None) -> None:
    found = yaml.safe_load(imported(_name_or_path=told).stdout)
    assert found.get("hf_repo") == repository

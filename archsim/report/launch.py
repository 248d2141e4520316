"""The command that launches a plan: the flags of vLLM, SGLang, TensorRT-LLM and llama.cpp that say the same.

What a tool has no flag for is said in comment lines above its command, never left out silently.
"""

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

from archsim.arrays import Array
from archsim.explore.scenario import Scenario
from archsim.mapping.roles import DEGREES
from archsim.mapping.split import Split
from archsim.workload.model import Moe, precision_of

PLACEHOLDER = "path/to/checkpoint"
GGUF = "path/to/model.gguf"
CONFIG = "config.yaml"
Flag = tuple[str, ...]


@dataclass
class Launch:
    """A command being written: its first words, flags, comments, and the content of a configuration file."""

    command: Flag
    flags: list[Flag] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    config: list[str] = field(default_factory=list)

    def add(self, name: str, *values: object, when: bool = True) -> None:
        """A flag with its values, where it applies."""
        if when:
            self.flags.append((name, *(f"{v:g}" if isinstance(v, float) else str(v) for v in values)))

    def note(self, text: str, when: bool = True) -> None:
        """A comment, where it applies."""
        if when:
            self.notes.append(f"# {text}")

    def text(self) -> str:
        """The whole as shell text."""
        lines = list(self.notes)
        if self.config:
            lines += [f"cat > {CONFIG} <<'EOF'", *self.config, "EOF"]
        words = [shlex.join(self.command), *(shlex.join(flag) for flag in self.flags)]
        return "\n".join([*lines, " \\\n  ".join(words)])


@dataclass(frozen=True)
class Wanted:
    """A plan in the whole numbers that flags take; None where the scenario leaves a number open."""

    tensor: int
    attention_data: int
    expert: int
    data: int
    pipeline: int
    context: int
    routed: bool
    batch: int | None
    length: int | None

    @property
    def ranks(self) -> int:
        """Chips of one stage of one replica."""
        return self.tensor * self.attention_data

    def sequences(self, groups: int) -> int | None:
        """Sequences of one of so many equal groups."""
        return None if self.batch is None else math.ceil(self.batch / groups)


def launch_command(scenario: Scenario, split: Split) -> str:
    """Shell text that launches a split of a scenario; empty where its runtime is none of the four."""
    writer = WRITERS.get(scenario.runtime.stack)
    if writer is None or scenario.chip.kind != "gpu" or scenario.partner is not None:
        return ""
    wanted = _wanted(scenario, split)
    launch = writer(scenario, wanted)
    if launch.command[0] != "llama-server":
        launch.note("the workload file has no hf_repo: put the checkpoint in", when=not scenario.model.repository)
    options, drafts = scenario.options, scenario.speculation.drafts
    launch.note("options of `placement` are not part of this command", when=options != type(options)())
    launch.note(f"{drafts} drafts are not part of this command", when=drafts > 0)
    link = scenario.chip.links.get("scale_up")
    wide = link is not None and wanted.ranks * wanted.pipeline > link.domain
    launch.note("more chips than one link domain has: start it on every node, as the tool's guide says", when=wide)
    return launch.text()


def _wanted(scenario: Scenario, split: Split) -> Wanted:
    degrees = {name: round(float(getattr(split, name).ravel()[0])) for name in DEGREES}
    routed = any(isinstance(block.ffn, Moe) for block in scenario.model.blocks.values())
    lengths = [scenario.context, _sum(scenario.input, scenario.output)]
    known = [int(length.max()) for length in lengths if length is not None]
    batch = None if scenario.batch is None else int(scenario.batch.max())
    return Wanted(**degrees, routed=routed, batch=batch, length=max(known, default=None))


def _sum(prompt: Array | None, output: Array | None) -> Array | None:
    return None if prompt is None or output is None else prompt + output


def _repository(scenario: Scenario) -> str:
    return scenario.model.repository or PLACEHOLDER


def _weights(scenario: Scenario, launch: Launch, online: bool) -> None:
    """The format of the weights: nothing where it is the checkpoint's own, a flag where a tool converts on loading."""
    chosen, native = scenario.precision, precision_of(scenario.model, {})
    classes = ["weights", "attention"]
    classes += ["experts"] if any(isinstance(b.ffn, Moe) for b in scenario.model.blocks.values()) else []
    formats = [getattr(chosen, name).name for name in classes]
    if formats == [getattr(native, name).name for name in classes]:
        return
    released = {getattr(native, name).name for name in classes}
    if online and set(formats) == {"fp8"} and released == {"bf16"}:
        launch.add("--quantization", "fp8")
    else:
        told = " and ".join(dict.fromkeys(formats))
        launch.note(f"weights in {told}: take a checkpoint in that format instead of {_repository(scenario)}")


def _cache(scenario: Scenario, launch: Launch, known: dict[str, str]) -> str | None:
    """The tool's word for the format of the KV cache; None where that is the default or there is none."""
    fmt = scenario.precision.kv.name
    if fmt != "bf16" and fmt not in known:
        launch.note(f"no flag gives a KV cache in {fmt}")
    return known.get(fmt)


def vllm(scenario: Scenario, wanted: Wanted) -> Launch:
    """`vllm serve`: a data-parallel rank has `--max-num-seqs` of its own; experts are on all ranks or on none."""
    launch = Launch(("vllm", "serve", _repository(scenario)))
    alone = not wanted.routed and wanted.attention_data == 1  # replicas of a dense model share nothing there either
    groups = wanted.data if alone else wanted.attention_data
    launch.add("--tensor-parallel-size", wanted.tensor)
    launch.add("--pipeline-parallel-size", wanted.pipeline, when=wanted.pipeline > 1)
    launch.add("--data-parallel-size", groups, when=groups > 1)
    launch.add("--enable-expert-parallel", when=wanted.routed and wanted.expert == wanted.ranks > 1)
    launch.add("--decode-context-parallel-size", wanted.context, when=wanted.context > 1)
    _weights(scenario, launch, online=True)
    cache = _cache(scenario, launch, {"fp8": "fp8", "nvfp4": "nvfp4"})
    launch.add("--kv-cache-dtype", cache, when=cache is not None)
    sequences = wanted.sequences(wanted.attention_data * wanted.data)
    launch.add("--max-num-seqs", sequences, when=sequences is not None)
    launch.add("--max-model-len", wanted.length, when=wanted.length is not None)
    launch.add("--max-num-batched-tokens", scenario.runtime.chunk)
    launch.add("--gpu-memory-utilization", float(scenario.runtime.utilization))
    partial = wanted.routed and 1 < wanted.expert < wanted.ranks
    launch.note(f"EP{wanted.expert} over {wanted.ranks} ranks has no flag: it is all of them or none", when=partial)
    _replicas(launch, 1 if alone else wanted.data)
    return launch


def sglang(scenario: Scenario, wanted: Wanted) -> Launch:
    """`sglang.launch_server`: with DP attention, sizes and limits are those of all its ranks together."""
    launch = Launch(("python", "-m", "sglang.launch_server", "--model-path", _repository(scenario)))
    shared = wanted.attention_data > 1
    launch.add("--tp-size", wanted.ranks)
    launch.add("--pp-size", wanted.pipeline, when=wanted.pipeline > 1)
    launch.add("--dp-size", wanted.attention_data if shared else wanted.data, when=shared or wanted.data > 1)
    launch.add("--enable-dp-attention", when=shared)
    launch.add("--ep-size", wanted.expert, when=wanted.expert > 1)
    _weights(scenario, launch, online=True)
    cache = _cache(scenario, launch, {"fp8": "fp8_e4m3"})
    launch.add("--kv-cache-dtype", cache, when=cache is not None)
    sequences = wanted.sequences(wanted.data)
    launch.add("--max-running-requests", sequences, when=sequences is not None)
    launch.add("--context-length", wanted.length, when=wanted.length is not None)
    launch.add("--chunked-prefill-size", scenario.runtime.chunk * wanted.attention_data)
    launch.add("--mem-fraction-static", float(scenario.runtime.utilization))
    latent = scenario.runtime.shares_context(scenario.model)
    launch.add("--dcp-size", wanted.context, when=latent and wanted.context > 1)
    launch.note(f"CP{wanted.context} is for latent attention only there", when=not latent and wanted.context > 1)
    _replicas(launch, wanted.data if shared else 1)
    return launch


def tensorrt(scenario: Scenario, wanted: Wanted) -> Launch:
    """`trtllm-serve`: attention DP is a switch of its configuration file, for all ranks of `--tp_size`."""
    launch = Launch(("trtllm-serve", _repository(scenario)))
    launch.add("--tp_size", wanted.ranks)
    launch.add("--pp_size", wanted.pipeline, when=wanted.pipeline > 1)
    launch.add("--ep_size", wanted.expert, when=wanted.expert > 1)
    sequences = wanted.sequences(wanted.data * (wanted.ranks if wanted.attention_data > 1 else 1))
    launch.add("--max_batch_size", sequences, when=sequences is not None)
    launch.add("--max_num_tokens", scenario.runtime.chunk)
    launch.add("--max_seq_len", wanted.length, when=wanted.length is not None)
    launch.add("--kv_cache_free_gpu_memory_fraction", float(scenario.runtime.utilization))
    _weights(scenario, launch, online=False)
    cache = _cache(scenario, launch, {"fp8": "fp8", "nvfp4": "nvfp4"})
    launch.config += ["enable_attention_dp: true"] if wanted.attention_data > 1 else []
    launch.config += ["kv_cache_config:", f"  dtype: {cache}"] if cache else []
    launch.add("--config", CONFIG, when=bool(launch.config))
    mixed = wanted.attention_data > 1 and wanted.tensor > 1
    launch.note(f"attention is data parallel over all ranks there, not over groups of TP{wanted.tensor}", when=mixed)
    launch.note(f"CP{wanted.context} of the KV cache in decode is not part of this command", when=wanted.context > 1)
    _replicas(launch, wanted.data)
    return launch


def llama_cpp(scenario: Scenario, wanted: Wanted) -> Launch:
    """`llama-server`: the context of all slots together, layers or rows over several GPUs."""
    launch = Launch(("llama-server", "-m", GGUF))
    slots = wanted.sequences(wanted.data) or 1
    launch.add("-c", (wanted.length or 0) * slots)
    launch.add("-np", slots)
    launch.add("-ngl", "all")
    launch.add("-b", scenario.runtime.chunk)
    launch.add("-ub", scenario.runtime.chunk)
    cache = _cache(scenario, launch, {name: name for name in ("q8_0", "q4_0")})
    for name in ("-ctk", "-ctv"):
        launch.add(name, cache or "bf16")
    launch.add("-sm", "row" if wanted.ranks > 1 else "layer", when=wanted.ranks * wanted.pipeline > 1)
    told = scenario.precision.experts.name if wanted.routed else scenario.precision.weights.name
    launch.note(f"{GGUF}: {_repository(scenario)} converted to GGUF with weights in {told}")
    launch.note("tensor and pipeline parallelism do not combine", when=wanted.ranks > 1 and wanted.pipeline > 1)
    launch.note("rows are split among GPUs; experts and sequences are not", when=wanted.routed and wanted.ranks > 1)
    _replicas(launch, wanted.data)
    return launch


def _replicas(launch: Launch, count: int) -> None:
    """How often to start it."""
    launch.note(f"start it {count} times, each on chips of its own, behind a load balancer", when=count > 1)


WRITERS: dict[str, Callable[[Scenario, Wanted], Launch]] = {
    "vllm": vllm,
    "sglang": sglang,
    "trtllm": tensorrt,
    "llamacpp": llama_cpp,
}

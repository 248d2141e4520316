"""Import of Hugging Face configurations: a `config.json` becomes the text of a workload file.

Nothing is guessed: a key that may shape the computation and is not understood is refused by its name, with its line.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from archsim.catalog import CatalogError, Document, Fault, read_text, validate
from archsim.units import did_you_mean
from archsim.workload.architecture import Architecture, shape_faults
from archsim.workload.families import FAMILIES
from archsim.workload.huggingface import model_of
from archsim.workload.keys import DEFAULTS, GATED, IRRELEVANT, LORA, OUTSIDE, PLAIN, RENAMED, TEXT, TOWERS, UNGATED
from archsim.workload.lowering import lower, mtp_parameters
from archsim.workload.model import Model, precision_of
from archsim.workload.quantization import UnknownFormat, native_precision
from archsim.workload.schema import WorkloadFile
from archsim.workload.step import decode

NEAR = 0.01  # a declared parameter count further off than this is worth a warning
WIDTH = 112  # columns of the text
REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)  # OWNER/NAME on the Hub, and no path of a folder


@dataclass(frozen=True)
class Imported:
    """A workload file as text, the model it describes, and what its reader should know."""

    text: str
    model: Model
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        """The text."""
        return self.text


def import_config(
    config: Path | str | Mapping[str, Any],
    name: str | None = None,
    text_only: bool = False,
    declared: int | None = None,
    source: str | None = None,
) -> Imported:
    """The workload file of a Hugging Face configuration: the path of a `config.json`, or its content.

    `text_only` takes the language model out of one that also sees or hears. `declared` is a parameter count to compare
    with the computed one; a path brings its own where a `model.safetensors.index.json` beside it has one, and its
    modelopt formats from a `hf_quant_config.json`. `source` says where the configuration comes from. Raises
    CatalogError with every key that is not understood.
    """
    return _Import(*_read(config), text_only, declared, source).run(name)


def _read(config: Path | str | Mapping[str, Any]) -> tuple[dict[str, Any], str, Path | None]:
    """The data, its text for line numbers, and its path."""
    if isinstance(config, Mapping):
        return dict(config), "", None
    path = Path(config)
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text)
    except OSError as error:
        raise CatalogError([Fault(str(path), 0, 0, error.strerror or "cannot be read")]) from None
    except ValueError as error:
        position = getattr(error, "lineno", 0), getattr(error, "colno", 0)
        raise CatalogError([Fault(str(path), *position, f"not JSON: {getattr(error, 'msg', error)}")]) from None
    if not isinstance(data, dict):
        raise CatalogError([Fault(str(path), 1, 1, "expected the mapping of a config.json")])
    return data, text, path


@dataclass(frozen=True)
class _Import:
    """One configuration on its way to a workload file."""

    config: dict[str, Any]
    written: str
    path: Path | None
    text_only: bool
    declared: int | None
    source: str | None

    def run(self, name: str | None) -> Imported:
        """Reads keys, checks shapes, counts parameters, and writes the file."""
        flat, faults, warnings = self._language()
        data, more = self._keys(flat)
        faults += more
        if not faults:
            faults = [self._fault(key, f"missing key {key!r}") for key in _missing(data)]
        if faults:
            raise CatalogError(faults)
        a = self._architecture(data)
        faults = [self._fault(key, f"{key}: {text}") for key, text in shape_faults(a)]
        if faults:
            raise CatalogError(faults)
        model = model_of(name or self._name(), a, {}, {})
        native = self._precision(model, flat)
        total, active = _counts(model)
        text = self._written(model.name, data, native, total, active)
        validate(WorkloadFile, read_text(text, Path("import.yaml")))
        return Imported(text, model, (*warnings, *self._doubts(a, model, total)))

    def _architecture(self, data: dict[str, Any]) -> Architecture:
        """The keys with their values checked; one fault a key, at its line."""
        try:
            return validate(Architecture, Document(Path(self._file), data, {}))
        except CatalogError as error:
            first: dict[str, str] = {}
            for fault in error.faults:
                first.setdefault(re.split("[.:]", fault.message)[0], fault.message)
            raise CatalogError(self._fault(key, message) for key, message in first.items()) from None

    @property
    def _file(self) -> str:
        return str(self.path) if self.path else "config.json"

    def _fault(self, key: str, message: str) -> Fault:
        """A fault at the line where the configuration has the key."""
        found = re.search(rf'"{re.escape(key)}"\s*:', self.written)
        if not found:
            return Fault(self._file, 0, 0, message)
        line = self.written.count("\n", 0, found.start()) + 1
        return Fault(self._file, line, found.start() - self.written.rfind("\n", 0, found.start()), message)

    def _language(self) -> tuple[dict[str, Any], list[Fault], list[str]]:
        """The keys of the language model, with those around it that also count; towers are refused or left out."""
        inner = next((key for key in TEXT if isinstance(self.config.get(key), Mapping)), None)
        outer = {key: value for key, value in self.config.items() if key != inner}
        faults, warnings = [], []
        for key, what in TOWERS.items():
            if outer.pop(key, None) is None:
                continue
            if self.text_only:
                warnings.append(f"{key}: the {what} is left out; its weights and its work do not count")
            else:
                hint = "is not modelled; import the text part with --text-only"
                faults.append(self._fault(key, f"{key}: the {what} {hint}"))
        lora = sorted(LORA & outer.keys())
        if lora:
            what = "LoRA adapters are not modelled; merge the adapter and import the config.json of the model"
            faults.append(self._fault(lora[0], f"{lora[0]}: {what}"))
        if inner is None:
            return outer, faults, warnings
        around = {key: value for key, value in outer.items() if key not in OUTSIDE}
        flat = {**around, **self.config[inner]}
        flat["model_type"] = self.config[inner].get("model_type") or outer.get("model_type")
        if outer.get("tie_word_embeddings") is not None:
            flat["tie_word_embeddings"] = outer["tie_word_embeddings"]
        return flat, faults, warnings

    def _keys(self, flat: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
        """What of the keys goes into the architecture, and a fault for each that is not understood."""
        defaults = DEFAULTS.get(str(flat.get("model_type")), {})
        known = Architecture.model_fields
        data: dict[str, Any] = {}
        faults = []
        for key, value in {**defaults, **flat}.items():
            target = RENAMED.get(key, key)
            if value is None or key in ("quantization_config", *IRRELEVANT):
                continue
            if key == "block_configs":
                data[key], strange = _block_configs(value)
                faults += [self._fault(name, f"block_configs: {name!r} is not modelled") for name in strange]
            elif target in known:
                data[target] = value
            elif message := _refusal(key, value, flat):
                faults.append(self._fault(key, message))
        faults += [self._fault(key, message) for key, message in _meanings(data)]
        listed = data.get("layers_block_type") or data.get("hybrid_override_pattern")
        if listed:
            data.setdefault("num_hidden_layers", len(listed))
        if set(data.get("layer_types", ())) == {"deepseek_sparse_attention"}:  # said by index_topk already
            del data["layer_types"]
        if data.get("use_sliding_window") is False:
            data.pop("sliding_window", None)
        if flat.get("use_mtp") is False:
            data.pop("num_mtp_modules", None)
        return data, faults

    def _precision(self, model: Model, flat: Mapping[str, Any]) -> dict[str, str]:
        """The native formats: of `quantization_config`, or of modelopt's file beside the configuration."""
        found = flat.get("quantization_config") or self.config.get("quantization_config")
        if not found:
            found = self._beside("hf_quant_config.json")
        try:
            return native_precision(model, found) if found else {}
        except UnknownFormat as error:
            raise CatalogError([self._fault("quantization_config", str(error))]) from None

    def _beside(self, name: str) -> Mapping[str, Any] | None:
        """The content of a file that belongs to the configuration: of a name, or of its own with that ending."""
        if self.path is None:
            return None
        own = self.path.name.removesuffix("config.json") + name
        for path in (self.path.with_name(own), self.path.with_name(name)):
            if path.is_file() and path != self.path:
                found = json.loads(path.read_text(encoding="utf-8"))
                return found if isinstance(found, dict) else None
        return None

    def _doubts(self, a: Architecture, model: Model, total: int) -> list[str]:
        """What the reader should know about a model that was understood."""
        doubts = []
        if a.model_type not in FAMILIES:
            known = f"model_type: {a.model_type!r} is not a known family"
            near = did_you_mean(a.model_type, FAMILIES)
            doubts.append(f"{known}; its keys are read as those of a plain transformer{near}")
        declared = self.declared
        if declared is None and (index := self._beside("model.safetensors.index.json")):
            declared = index.get("metadata", {}).get("total_parameters")
        mtp = int(mtp_parameters(model))
        if declared and all(abs(count / declared - 1) > NEAR for count in (total, total + mtp)):
            more = f" ({mtp:,} more in prediction layers)" if mtp else ""
            doubts.append(f"parameters: {declared:,} are declared, but the keys give {total:,}{more}")
        return doubts

    def _name(self) -> str:
        given = str(self.config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
        if self.path is None:
            return given or str(self.config.get("model_type") or "model")
        stem = self.path.stem.removesuffix("config").rstrip("_-").rpartition("--")[2]
        return stem or given or self.path.absolute().parent.name

    def _written(self, name: str, data: dict[str, Any], native: dict[str, str], total: int, active: int) -> str:
        """The workload file."""
        told = self.source or f"{self.path.name if self.path else 'config.json'} of {name}"
        counted = "counted from the configuration when it was imported, both embedding matrices being active"
        entries: list[dict[str, Any]] = [{"of": ["architecture"], "kind": "datasheet", "ref": told}]
        told_repository = str(self.config.get("_name_or_path") or "")
        repository = {"hf_repo": told_repository} if REPOSITORY.fullmatch(told_repository) else {}
        body: dict[str, Any] = {"name": name, **repository, "architecture": data}
        if native:
            body["precision"] = native
            entries.append({"of": ["precision"], "kind": "datasheet", "ref": f"quantization of {told}"})
        entries.append({"of": ["parameters"], "kind": "datasheet", "ref": counted})
        body |= {"parameters": {"total": total, "active": active}, "sources": entries}
        return f"# {name}: imported from {told}.\n{_dump(body)}"


def _dump(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(data), sort_keys=False, default_flow_style=None, width=WIDTH, allow_unicode=True)


def _missing(data: Mapping[str, Any]) -> list[str]:
    return [key for key, field in Architecture.model_fields.items() if field.is_required() and key not in data]


def _refusal(key: str, value: object, flat: Mapping[str, Any]) -> str:
    """Why a key that is not part of an architecture is refused; empty where it changes nothing."""
    if key in OUTSIDE and not isinstance(value, Mapping):
        return ""
    if key in PLAIN:
        return "" if value in PLAIN[key] else f"{key}: {value!r} is not modelled"
    if key == "word_embed_proj_dim":
        return "" if value == flat.get("hidden_size") else f"{key}: a projected embedding is not modelled"
    if key == "attn_type_list":
        plain = isinstance(value, list) and set(value) <= {1}
        return "" if plain else f"{key}: other attention than softmax is not modelled"
    if key in ("use_mtp", "use_conv_bias"):
        return ""
    return f"{key}: unknown key, which may shape the computation{did_you_mean(key, Architecture.model_fields)}"


def _meanings(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Faults of known keys whose value the importer does not know."""
    act = data.get("hidden_act", "silu")
    if act not in GATED | UNGATED:
        return [("hidden_act", f"hidden_act: unknown activation {act!r}")]
    family = FAMILIES.get(str(data.get("model_type")))
    if family is None and act in UNGATED:
        text = f"hidden_act: whether the networks of an unknown family have a gate with {act!r} is not known"
        return [("hidden_act", text)]
    if family is not None and family.gated and act in UNGATED:
        return [("hidden_act", f"hidden_act: {act!r} is not modelled with a gate, as this family has one")]
    return []


def _block_configs(value: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The layers of a searched architecture, and the keys of variants that are not modelled but set."""
    kept, strange = [], set()
    for layer in value:
        parts: dict[str, Any] = {}
        for part, keys in (("attention", {"no_op", "n_heads_in_group"}), ("ffn", {"no_op", "ffn_mult"})):
            given = layer.get(part) or {}
            parts[part] = {key: given[key] for key in given if key in keys and given[key] is not None}
            strange |= {key for key in given if key not in keys and given[key] not in (None, False)}
        kept.append(parts)
    return kept, sorted(strange)


def _counts(model: Model) -> tuple[int, int]:
    graph = lower(model, decode(1, 1, model.clips), precision_of(model, {}))
    return int(sum(graph.parameters().values())), int(graph.active_parameters())

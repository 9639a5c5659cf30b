"""extract_adapter: write the low-rank additions of tuned models as adapters in peft's format, with the weight
names of their exported base.
"""

import json
from collections.abc import Mapping

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError
from atelier.engine.config.foreign.adapters import CONFIG, PREFIX, WEIGHTS, names_of, split, written
from atelier.engine.config.foreign.families import fitting
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.role import Role
from atelier.engine.io.artifact import ArtifactOutput, open_input
from atelier.engine.io.storage import open_regular
from atelier.engine.io.tensorfile import head, in_file_order, places
from atelier.infra.dag import Node, Product, Reference, declare, input_of
from atelier.infra.run.context import RunContext
from atelier.infra.store.existing_model import ANY_VOCAB, spec_of

VERSION = 1
METADATA = {"format": "pt"}


def low_rank(roles: Mapping[str, Role], bases: Mapping[str, Reference]) -> dict[str, Reference]:
    """The initial models, from `bases`, of roles tuned by low-rank additions."""
    kinds = ("lora", "prompt")
    return {key: base for key, base in bases.items() if key in roles and roles[key].trainable.kind in kinds}


def extract_adapters(models: Mapping[str, Reference], bases: Mapping[str, Reference]) -> dict[str, Reference]:
    """The adapters of the tuned models that have a base, by key."""
    tuned = {key: models[key] for key in bases if key in models}
    if not tuned:
        return {}
    products = {
        key: Product(
            kind="adapter",
            name=f"{model.name}-adapter",
            version=VERSION,
            identity={},
            parents={"base": bases[key].fingerprint, "model": model.fingerprint},
        )
        for key, model in tuned.items()
    }
    inputs = {f"model.{key}": input_of(model) for key, model in tuned.items()}
    inputs |= {f"base.{key}": input_of(bases[key]) for key in tuned}
    node = Node(
        name="extract_adapter",
        task="extract_adapter",
        products=products,
        inputs=inputs,
        ranks=0,
    )
    return declare(node, [*tuned.values(), *(bases[key] for key in tuned)])


def run(node: Node, context: RunContext) -> None:
    for key in node.products:
        context.here(node, key, lambda payload, key=key: _extract(node, key, context, payload))


def _extract(node: Node, key: str, context: RunContext, payload: str) -> None:
    kind, fingerprint = node.inputs[f"model.{key}"]
    base = context.record(*node.inputs[f"base.{key}"])
    model = context.record(kind, fingerprint)
    source = open_input(context.store.address(kind, fingerprint))
    path = source.file(WEIGHTS, context.scratch)
    config = json.loads(source.file(CONFIG, context.scratch).read_text())
    if config["peft_type"] == "PROMPT_TUNING":
        output = ArtifactOutput(payload)
        output.add(WEIGHTS, path)
        output.add_json(CONFIG, {**config, "base_model_name_or_path": base.name})
        of = spec_of(base, context.store, key, base.name).resolved(ANY_VOCAB)
        family = next(fitting(of), None) if isinstance(of, GPT) else None
        about = {"vectors": config["num_virtual_tokens"], "place": config.get("atelier_place", "front")}
        output.close({"family": family.name if family else "", **about})
        return
    spec = spec_of(model, context.store, key, model.name).resolved(ANY_VOCAB)
    found = {place.entry.name: place for place in places(path)}
    family = next(fitting(spec), None) if isinstance(spec, GPT) else None  # chosen as in `atelier export`
    modules = [split(name)[0] for name in found]
    known = names_of(family, spec) if family is not None and isinstance(spec, GPT) else None
    theirs = {ours: name for name, ours in known.ours.items()} if known else {}
    is_said = known is not None and set(modules) <= theirs.keys()
    names = theirs if is_said else {name: name for name in modules}
    if "" in modules:
        raise DataError(f"{path}: has weights that are not additions")
    entries = {
        place.entry._replace(name=f"{PREFIX}{names[split(name)[0]]}{split(name)[1]}"): place
        for name, place in found.items()
    }
    ordered = in_file_order(entries)
    output = ArtifactOutput(payload)
    with open_regular(path) as file:

        def bytes_of(begin: int, size: int) -> bytes:
            file.seek(begin)
            return file.read(size)

        parts = (bytes_of(entries[each].begin, each.num_bytes) for each in ordered)
        output.add_parts(WEIGHTS, [head(ordered, METADATA), *parts])
    turned = known is not None and is_said and not known.turned.isdisjoint(names[each] for each in modules)
    ends = [names[each].rpartition(".")[2] for each in modules]
    output.add_json(CONFIG, written(config["r"], config["lora_alpha"], ends, base=base.name, turned=turned))
    summary: dict[str, Json] = {"family": family.name if family and is_said else "", "rank": config["r"]}
    output.close(summary)

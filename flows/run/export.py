"""Write a model for transformers in an export process, or copy an adapter for peft."""

import re
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.foreign import adapters
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.record import Record
from atelier.engine.config.run_file import RunFile, root_places
from atelier.engine.io.artifact import open_input
from atelier.engine.io.machine import num_cores
from atelier.engine.io.storage import is_local, join, local_path, names, put_file, put_parts, remove
from atelier.engine.io.weight_headers import header
from atelier.flows.run.engine_command import follow
from atelier.infra.launch.supervisor import rank_env
from atelier.infra.report.lineage import Index
from atelier.infra.store.existing_model import spec_of
from atelier.infra.store.store import Store

FORMATS = ("hf",)
DTYPES = ("float32", "float16", "bfloat16")
CARD = "README.md"
PATH = re.compile(r"=[^\s=]*/\S*")  # in a command: paths of the machine that ran it

OnShare = Callable[[float], None]


@dataclass(frozen=True)
class Exported:
    """The result in `url`. `apart`: the difference of logits after reading back, as a share of their scale;
    `ids`: whether the tokenizer gives the same ids. For an adapter, which is copied: its `rank`, or its
    `vectors`, and the name of its `base`.
    """

    url: str
    family: str
    files: int
    bytes: int
    apart: float = 0.0
    ids: str = ""
    rank: int = 0
    vectors: int = 0
    base: str = ""


def export(
    word: str,
    url: str,
    store: Store,
    *,
    format: str = "hf",
    family: str = "",
    dtype: str = "",
    on_share: OnShare | None = None,
) -> Exported:
    """Write the model or adapter called `word` into a new folder; `on_share` receives the share that is
    written. Raises ConfigError for an unknown model or format, and for a model that no family of the format
    can represent.
    """
    if format not in FORMATS:
        raise ConfigError("format", f"{format!r} is not known", f"there is {', '.join(FORMATS)}")
    if dtype and dtype not in DTYPES:
        raise ConfigError("--dtype", f"{dtype!r} is not known", f"there are {', '.join(DTYPES)}")
    record = _found(store, word)
    target = str(local_path(url).absolute()) if is_local(url) else url
    if is_local(url) and (file := next(filter(Path.is_file, (Path(target), *Path(target).parents)), None)):
        raise ConfigError("export", f"{file} is a file", "give a new or an empty folder")
    if record.kind == "adapter":
        for option, value in (("family", family), ("dtype", dtype)):
            if value:
                raise ConfigError(f"--{option}", "does nothing: adapters are only copied", "leave it out")
        return _copy_adapter(record, store, target)
    spec_of(record, store, "export", word)
    with tempfile.TemporaryDirectory(prefix="atelier-export-") as scratch:
        run = RunFile(
            schema=1,
            task="export",
            version=1,
            config={"url": target, "family": family, "dtype": dtype, "card": card(record, store)},
            inputs={"model": store.address("model", record.fingerprint)},
            scratch=scratch,
            layout=Parallel(threads="auto", shard=1),
            roots=root_places(),
        )
        place = Path(scratch) / "run.json"
        place.write_text(run.text())
        done = _follow(place, rank_env(store.root, num_cores()), on_share)
    return Exported(
        url=target,
        family=str(done["family"]),
        files=int(done["files"]),
        bytes=int(done["bytes"]),
        apart=float(done["apart"]),
        ids=str(done["ids"]),
    )


def _found(store: Store, word: str) -> Record:
    """The model, or else the adapter, called `word`."""
    try:
        return store.resolve(word, "model")
    except AtelierError as error:
        with suppress(AtelierError):
            return store.resolve(word, "adapter")
        raise ConfigError("export", str(error)) from None


def _copy_adapter(record: Record, store: Store, url: str) -> Exported:
    """Write an adapter for peft."""
    if not record.summary.get("family"):
        raise ConfigError(
            "export",
            f"no family can represent the base of {record.name} with these matrices apart",
            "export the tuned model, or tune other matrices",
        )
    if (place := record.summary.get("place", "front")) != "front":
        raise ConfigError(
            "export",
            f"the vectors of {record.name} have place {place} in a prompt, but peft puts them in front",
            "trainable.place=front",
        )
    if there := names(url):
        raise ConfigError("export", f"{url} has {there[0]} already", "give a new or an empty folder")
    source, done = open_input(store.address("adapter", record.fingerprint)), list[str]()
    text = card(record, store, "peft").encode()
    with tempfile.TemporaryDirectory(prefix="atelier-export-") as scratch:
        if "rank" in record.summary:  # not a soft prompt
            weights = header(str(source.file(adapters.WEIGHTS, Path(scratch))))
            family = str(record.summary["family"])
            adapters.check_peft(family, (each.name for each in weights), "export")
        try:
            done.append(CARD)
            put_parts(join(url, CARD), [text])
            for name in (adapters.WEIGHTS, adapters.CONFIG):  # last: it makes the folder an adapter
                done.append(name)
                put_file(source.file(name, Path(scratch)), join(url, name))
        except BaseException:
            for name in done:
                remove(join(url, name))
            raise
    base = store.find("model", record.parents["base"])
    written, summary = (adapters.CONFIG, adapters.WEIGHTS), dict(record.summary)
    sizes = {entry.path.rsplit("/", 1)[-1]: entry.bytes for entry in record.files}
    return Exported(
        url=url,
        family=str(summary["family"]),
        files=len(written) + 1,
        bytes=len(text) + sum(sizes[name] for name in written),
        rank=int(str(summary.get("rank", 0))),
        vectors=int(str(summary.get("vectors", 0))),
        base=base.name if base else record.parents["base"][:8],
    )


def card(record: Record, store: Store, library: str = "transformers") -> str:
    """The model card: the record's facts and the model's origin. `library` is the one that reads it."""
    summary, provenance, index = record.summary, record.provenance, Index(store)
    origins = [dict(one.summary) for one in [record, *_before(record, index)] if "source" in one.summary]
    licences = sorted({str(one.get("licence")) for one in origins})
    lines = ["---", f"library_name: {library}", "tags: [atelier]"]
    is_alone = len(licences) == 1 and not _others(record, index)
    lines += [f"license: {licences[0]}"] if is_alone else []
    lines += ["---", f"# {record.name}", ""]
    for one in origins:
        lines.append(f"- imported as: {one.get('family')} from {one['source']}, licence {one.get('licence')}")
    lines += [f"- {line}" for line in _others(record, index)]
    said = {
        "fingerprint": record.fingerprint,
        "parameters": summary.get("params"),
        "steps": summary.get("step"),
        "tokens": summary.get("tokens"),
        "held-out loss, nats a token": summary.get("eval_loss"),
        "made by": PATH.sub("=...", str(provenance.get("command", ""))),
        "commit": provenance.get("commit"),
    }
    lines += [f"- {name}: {value}" for name, value in said.items() if value not in (None, "")]
    lines += ["", "## Comes from", ""]
    for role, fingerprint in sorted(record.parents.items()):
        parent = index.records.get(fingerprint)
        name = f"{parent.kind} {parent.name}" if parent else "trajectory"
        lines.append(f"- {role}: {name}, {fingerprint[:16]}")
    return "\n".join(lines) + "\n"


def _before(record: Record, index: Index) -> list[Record]:
    """The models from which a model or adapter was made, the nearest first."""
    found: list[Record] = []
    waiting = [record]
    while waiting:
        parents = waiting.pop(0).parents
        these = [index.records.get(parents[role]) for role in ("init", "model", "base") if role in parents]
        more = [one for one in these if one and one.kind == "model" and one not in found]
        found += more
        waiting += more
    return found


def _others(record: Record, index: Index) -> list[str]:
    """Other origins of a model: teachers, writers of its text, merged adapters."""
    found: list[str] = []
    for one in [record, *_before(record, index)]:
        found += [f"taught by: {_origin(teacher)}" for teacher in index.teachers(one)]
        if adapter := index.records.get(one.parents.get("adapter", "")):
            found.append(f"merged with: {_origin(adapter)}")
        for role, fingerprint in one.parents.items():
            tokens = index.records.get(fingerprint) if role.startswith("tokens.") else None
            corpus = index.records.get(tokens.parents.get("corpus", "")) if tokens else None
            writer = index.records.get(corpus.parents.get("model", "")) if corpus else None
            found += [f"text written by: {_origin(writer)}"] if writer else []
    return list(dict.fromkeys(found))


def _origin(record: Record) -> str:
    """The name and origin of a model or adapter."""
    about = dict(record.summary)
    where = f" from {about['source']}, licence {about.get('licence', 'unknown')}" if "source" in about else ""
    return f"{record.name}{where}"


def _follow(place: Path, env: dict[str, str], on_share: OnShare | None) -> dict[str, float | str]:
    """Run the export process. Returns its results."""
    done: dict[str, float | str] = {}
    with closing(follow("export", place, env, grace_s=None)) as messages:
        for message in messages:
            if "progress" in message and on_share is not None:
                on_share(message["progress"] / max(1, message.get("total", 1)))
            done = cast(dict[str, float | str], message.get("done")) or done
    return done

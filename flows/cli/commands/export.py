"""`atelier export <model> <url>`: an export process writes the model's files; its progress is shown here."""

import json
import re
import subprocess
import sys
import tempfile
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

from atelier import IMPORT_ROOT
from atelier.engine.config import adapters
from atelier.engine.config.error import AtelierError, ConfigError, DataError, printable
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.record import Record
from atelier.engine.config.run_file import RunFile
from atelier.engine.io.artifact import open_input
from atelier.engine.io.storage import is_local, join, local_path, names, put_file, put_parts
from atelier.flows.run.store_check import open_store
from atelier.infra.launch.machine import num_cores
from atelier.infra.launch.supervisor import rank_env
from atelier.infra.report.lineage import Index
from atelier.infra.store.existing_model import spec_of
from atelier.infra.store.store import Store

FORMATS = ("hf",)
CARD = "README.md"
PATH = re.compile(r"=[^\s=]*/\S*")  # in a command: folders of the machine that it ran on


def run(options: Namespace) -> int:
    """Write the model; the exit code. Raises ConfigError for an unknown model or format, and for a model that
    no family of the format can say.
    """
    if (options.format or "hf") not in FORMATS:
        raise ConfigError("--format", f"{options.format!r} is not known", f"there is {', '.join(FORMATS)}")
    store = open_store()
    record = _found(store, options.model)
    url = str(local_path(options.url).absolute()) if is_local(options.url) else options.url
    if record.kind == "adapter":
        return _copy_adapter(record, store, url, options.url)
    spec_of(record, store, "export", options.model)
    with tempfile.TemporaryDirectory(prefix="atelier-export-") as scratch:
        run = RunFile(
            schema=1,
            task="export",
            version=1,
            config={
                "url": url,
                "family": options.family or "",
                "dtype": options.dtype or "",
                "card": card(record, store),
            },
            inputs={"model": store.address("model", record.fingerprint)},
            scratch=scratch,
            layout=Parallel(threads="auto", shard=1),
        )
        place = Path(scratch) / "run.json"
        place.write_text(run.text())
        done = _follow(place, rank_env(store.root, num_cores()))
    words = f"family {done['family']}, {done['files']} files, {done['bytes'] / 1e6:.4g} MB"
    apart = f"read back, its logits are {done['apart']:.2g} of their scale apart"
    print(printable(f"{options.url}: {words}; {apart}", 0))
    return 0


def _found(store: Store, word: str) -> Record:
    """The model, or else the adapter, called `word`."""
    try:
        return store.resolve(word, "model")
    except AtelierError as error:
        with suppress(AtelierError):
            return store.resolve(word, "adapter")
        raise ConfigError("export", str(error)) from None


def _copy_adapter(record: Record, store: Store, url: str, said: str) -> int:
    """Write an adapter as peft reads it."""
    if not record.summary.get("family"):
        raise ConfigError(
            "export",
            f"{record.name} is of a base that no family can say with these matrices apart",
            "export the tuned model, or tune others of its matrices",
        )
    if there := names(url):
        raise ConfigError("export", f"{url} has {there[0]} already", "give a new or an empty folder")
    source = open_input(store.address("adapter", record.fingerprint))
    with tempfile.TemporaryDirectory(prefix="atelier-export-") as scratch:
        for name in (adapters.CONFIG, adapters.WEIGHTS):
            put_file(source.file(name, Path(scratch)), join(url, name))
    put_parts(join(url, CARD), [card(record, store).replace("transformers", "peft", 1).encode()])
    base = store.find("model", record.parents["base"])
    name = base.name if base else record.parents["base"][:8]
    words = f"an adapter of rank {record.summary['rank']} for {name}, as {record.summary['family']}"
    print(printable(f"{said}: {words}; PeftModel.from_pretrained(<{name}, exported>, {said!r})", 0))
    return 0


def card(record: Record, store: Store) -> str:
    """The model card: what the record says, and where the model comes from."""
    summary, provenance, index = record.summary, record.provenance, Index(store)
    origins = [dict(one.summary) for one in [record, *_before(record, index)] if "source" in one.summary]
    licences = sorted({str(one.get("licence")) for one in origins})
    lines = ["---", "library_name: transformers", "tags: [atelier]"]
    lines += [f"license: {licences[0]}"] if len(licences) == 1 else []
    lines += ["---", f"# {record.name}", ""]
    for one in origins:
        lines.append(f"- begun as: {one.get('family')} from {one['source']}, licence {one.get('licence')}")
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
    """The models that a model was made of, the nearest first."""
    found: list[Record] = []
    waiting = [record]
    while waiting:
        parents = [index.records.get(one) for one in waiting.pop(0).parents.values()]
        more = [one for one in parents if one and one.kind == "model" and one not in found]
        found += more
        waiting += more
    return found


def _follow(place: Path, env: dict[str, str]) -> dict[str, float]:
    """Run the export process and show its progress; what it says it has done."""
    done: dict[str, float] = {}
    with open(place.with_name("err"), "wb") as err:
        child = subprocess.Popen(
            [sys.executable, "-m", "atelier.engine.export", str(place)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, env=env, cwd=IMPORT_ROOT,
        )  # fmt: skip
    assert child.stdout is not None
    with child:
        for line in child.stdout:
            message = json.loads(line)
            if "error" in message:
                raise (DataError if message.get("exit_code") == 2 else AtelierError)(message["error"])
            if "progress" in message and sys.stderr.isatty():
                share = message["progress"] / max(1, message["total"])
                print(f"\rexport: {share:.0%}", end="", file=sys.stderr, flush=True)
            done = message.get("done") or done
    if child.returncode or not done:
        last = place.with_name("err").read_text(errors="replace").strip().splitlines()[-1:]
        raise AtelierError(f"export: the engine ended with exit code {child.returncode} ({''.join(last)})")
    return done

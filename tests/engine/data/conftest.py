import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from atelier.engine.config.base import Json
from atelier.engine.config.data import Labels, Source, Tokenizer
from atelier.engine.config.record import Record, identify
from atelier.engine.config.run_file import RunFile
from atelier.engine.data import chat_template
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.io.limited_process import LimitedProcess, Limits
from atelier.engine.io.source_files import content_id, files_of
from atelier.engine.prepare import prepare


class Workshop:
    """Runs the verbs of engine.prepare in a folder and publishes what they make. `said`: by the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.said = ""

    def run(self, task, config, inputs, output):
        self.count += 1
        target = self.folder / f"{self.count}-{output}"
        run = RunFile(
            schema=1,
            task=task,
            version=1,
            config=config,
            inputs={name: value.url for name, value in inputs.items()},
            outputs={output: str(target)},
            scratch=str(self.folder / "scratch"),
        )
        said = io.StringIO()
        prepare(run, said)
        self.said = said.getvalue()
        return self.publish(target, output)

    def printed(self) -> str:
        """The warnings of the last run."""
        told = map(json.loads, self.said.splitlines())
        return "\n".join(line["warning"] for line in told if "warning" in line)

    def publish(self, target: Path, kind: str) -> ArtifactInput:
        body = json.loads((target / "body.json").read_text())
        identity = {"n": self.count}
        record = Record(
            kind=kind,
            name=kind,
            fingerprint=identify(kind, 1, identity, {}),
            version=1,
            identity=identity,
            parents={},
            files=tuple(body["files"]),
            summary=body["summary"],
        )
        (target / "record.json").write_text(record.sealed().text())
        return open_input(str(target))

    def files(self, source) -> list[list[str]]:
        return [[path, content_id(path)] for path in files_of(source)]

    def curate(self, source: Source, held_out=0.25, files=None) -> ArtifactInput:
        config = {"source": source.model_dump(), "held_out": held_out, "files": files or self.files(source)}
        return self.run("curate", config, {}, "corpus")

    def corpus(self, texts, held_out=0.25) -> ArtifactInput:
        path = self.folder / f"texts-{self.count}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return self.curate(Source(source=str(path)), held_out)

    def tokenizer(self, *corpora: ArtifactInput, vocab=300, specials=()) -> ArtifactInput:
        inputs = {f"corpus_{n}": corpus for n, corpus in enumerate(corpora)}
        spec = Tokenizer(vocab=vocab, specials=specials)
        return self.run("learn_tokenizer", {"tokenizer": spec.model_dump(mode="json")}, inputs, "tokenizer")

    def tokens(self, corpus: ArtifactInput, tokenizer: ArtifactInput) -> ArtifactInput:
        return self.run("encode", {}, {"corpus": corpus, "tokenizer": tokenizer}, "tokens")

    def labels(self, labels: Labels, files=None, tuned: ArtifactInput | None = None) -> ArtifactInput:
        """`tuned`: the examples from whose options to choose."""
        config = {"labels": labels.model_dump(), "files": files or self.files(labels)}
        if tuned is None:
            return self.run("label", config, {}, "labels")
        return self.run("label", config | {"place": "also.other"}, {"tuned": tuned}, "labels")

    def lines(self, artifact: ArtifactInput, name: str) -> list[dict]:
        return [json.loads(line) for line in (Path(artifact.url) / name).read_bytes().splitlines()]


class SharedProcess:
    """Stands in for a chat template's own process. Templates with the same limits share one process; it
    receives a template again after another template has used it.
    """

    processes: dict[Limits, LimitedProcess] = {}
    last: "SharedProcess | None" = None

    def __init__(self, module: str, limits: Limits) -> None:
        self.process = self.processes.setdefault(limits, LimitedProcess(module, limits))
        self.opening: Json = None

    @property
    def is_running(self) -> bool:
        return self.process.is_running

    def ask(self, request: Json) -> Json:
        last, SharedProcess.last = SharedProcess.last, None
        if isinstance(request, dict):
            self.opening = request
        elif last is not self:
            self.process.ask(self.opening)
        answer = self.process.ask(request)
        SharedProcess.last = self
        return answer


@pytest.fixture
def shared_sandbox(ends_sandboxes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "LimitedProcess", SharedProcess)


@pytest.fixture(scope="module")
def ends_sandboxes() -> Iterator[None]:
    yield
    for process in SharedProcess.processes.values():
        process.close()
    SharedProcess.processes.clear()


@pytest.fixture
def workshop(tmp_path) -> Workshop:
    return Workshop(tmp_path)


@pytest.fixture
def poems() -> list[str]:
    """40 short documents, all different, some beyond ASCII."""
    return [
        f"Poem {n}: the sea is {n * 7} fathoms deep — naïve, {'wave ' * (n % 9)}fünf Boote.\n"
        for n in range(40)
    ]

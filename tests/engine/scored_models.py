"""Texts, a tokenizer, labelled examples and untrained models as artifacts, and run files over them."""

import io
import json
from pathlib import Path
from typing import Any

from atelier.engine.config.data import Tokenizer
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.run_file import FILE_BYTES, RunFile
from atelier.engine.data.encode import encode
from atelier.engine.data.learn_tokenizer import learn_tokenizer
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput, open_input
from atelier.engine.io.process import Progress
from atelier.engine.model.contract import stored
from atelier.engine.model.load import build, initialise
from tests.engine.trainings import artifact, model_files

TEXTS = [
    f"Poem {n}: the sea is {n * 7} fathoms deep — naïve, {'wave ' * (n % 9)}fünf Boote 世界 🐟.\n"
    for n in range(40)
]
OPTIONS = [" sea", " deep water", " Boote", " 世界"]
PROMPTS = [f"{text[:30]} is\n\nLabel:" for text in TEXTS]


class Study:
    """A folder of artifacts; each is made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._num_runs = 0
        lines = [
            {"id": str(n), "text": text, "split": "held_out" if n % 4 == 0 else "train", "group": str(n)}
            for n, text in enumerate(TEXTS)
        ]
        raw = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        corpus = artifact(folder / "corpus", "corpus", {"documents.jsonl": raw}, documents=len(lines))
        self.corpus = open_input(corpus)
        self.tokenizer = self.new_tokenizer("tokenizer", 300)
        self.vocabulary = Vocabulary.read(self.file(self.tokenizer, "tokenizer.json"))
        self.tokens = self._made(
            "tokens", lambda output: encode(self.corpus, self.vocabulary, output, self.scratch, self.progress)
        )
        self.held_out = [text for n, text in enumerate(TEXTS) if n % 4 == 0]

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    @property
    def progress(self) -> Progress:
        return Progress(io.StringIO())

    def file(self, source: ArtifactInput, name: str) -> Path:
        return source.file(name, self.scratch)

    def new_tokenizer(self, name: str, vocab: int) -> ArtifactInput:
        spec = Tokenizer(vocab=vocab)
        return self._made(
            name, lambda output: learn_tokenizer(spec, [self.corpus], [], output, self.scratch, self.progress)
        )

    def _made(self, name: str, make: Any) -> ArtifactInput:
        """The files that `make` writes, as an artifact."""
        payload = self.folder / f"made-{name}"
        summary = make(ArtifactOutput(str(payload)))
        files = {path.name: path.read_bytes() for path in payload.iterdir()}
        return open_input(artifact(self.folder / name, name, files, **summary))

    def labels(self) -> ArtifactInput:
        """Test examples of four options, one of them twice as common as the others."""
        lines = [
            {
                "prompt": prompt,
                "completion": OPTIONS[max(0, n % 5 - 1)],
                "options": OPTIONS,
                "group": str(n),
            }
            for n, prompt in enumerate(PROMPTS)
        ]
        raw = "".join(json.dumps(line) + "\n" for line in lines).encode()
        return open_input(
            artifact(self.folder / "labels", "labels", {"test.jsonl": raw}, test=len(lines), options=OPTIONS)
        )

    def model(
        self,
        name: str = "model",
        *,
        tokenizer: ArtifactInput | None = None,
        most: int = FILE_BYTES,
        **more: Any,
    ) -> ArtifactInput:
        """Weights from a wide normal, so that predictions differ from token to token. `most`: bytes of
        weights in a file.
        """
        settings: dict[str, Any] = {"num_layers": 2, "hidden": 32, "num_heads": 2, "init_std": 0.3}
        settings |= {"vocab": self.vocabulary.size} | more
        return self.model_of(GPT(**settings), name, tokenizer=tokenizer, most=most)

    def model_of(
        self,
        spec: ModelSpec,
        name: str,
        *,
        tokenizer: ArtifactInput | None = None,
        most: int = FILE_BYTES,
    ) -> ArtifactInput:
        network = build(spec)
        initialise(network, seed=1, name=name)
        files = model_files(dict(stored(network)), spec, most)
        files["tokenizer.json"] = self.file(tokenizer or self.tokenizer, "tokenizer.json").read_bytes()
        return open_input(artifact(self.folder / name, "model", files))

    def run_file(
        self, task: str, config: dict[str, Any], inputs: dict[str, ArtifactInput], *outputs: str
    ) -> RunFile:
        """A run file whose outputs are new empty folders."""
        self._num_runs += 1
        place = self.folder / f"run-{self._num_runs}"
        return RunFile(
            schema=1,
            task=task,
            version=1,
            config=config,
            inputs={name: source.url for name, source in inputs.items()},
            outputs={name: str(place / name) for name in outputs},
            scratch=str(self.scratch),
            layout=Parallel(threads=1, device="cpu"),
        )


def cut_as_qwen(study: Study) -> Study:
    """With a tokenizer that cuts text by the rules of Qwen 2, which transformers takes for that family."""
    from transformers import Qwen2Tokenizer  # takes seconds to load

    document = json.loads(study.file(study.tokenizer, "tokenizer.json").read_text())
    rules = json.loads(Qwen2Tokenizer().backend_tokenizer.to_str())
    document |= {name: rules[name] for name in ("normalizer", "pre_tokenizer")}
    files = {"tokenizer.json": json.dumps(document).encode()}
    study.tokenizer = open_input(artifact(study.folder / "of-qwen", "tokenizer", files))
    study.vocabulary = Vocabulary.read(study.file(study.tokenizer, "tokenizer.json"))
    return study

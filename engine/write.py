"""Let a finished model write training text: python -m atelier.engine.write run.json

run.json: config is a Written (engine/config/generation.py), inputs {"model", "corpus"}, output "corpus": the
chosen training documents, each with its original beginning and the rest written by the model, `cut` if it has
no end; held-out documents are unchanged. Model and reader may have different tokenizers. Finished texts are
kept beside the output, ROWS documents per file.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, NotRequired, TypedDict

import numpy as np
import torch

from atelier.engine.config.base import Json, canonical, parse
from atelier.engine.config.error import DataError
from atelier.engine.config.generation import ROWS, Written
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.corpus import DOCUMENTS, HELD_OUT, TRAIN, corpus_lines, documents_file
from atelier.engine.data.counter_rng import Chance, Permutation, uniform
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.inference.generator import Generator
from atelier.engine.inference.opened import opened_generator
from atelier.engine.inference.sampling import continuations, room_behind
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress, input_of, leave, output_of, run_verb
from atelier.engine.io.storage import join, read_bytes, remove, write_bytes
from atelier.engine.parallel.gang import start_gang

LANE = "write"
SPOOL = "payload-spool-"  # leftovers are collected like unfinished payloads


class WrittenText(TypedDict):
    """`cut`: it reached the limit of tokens without an end."""

    text: str
    cut: NotRequired[bool]


def write(run: RunFile, asked: Written) -> dict[str, Json]:
    """Write documents.jsonl; returns the summary. Memory does not grow with the text, and a killed run
    resumes where it stopped. Raises DataError if no document is long enough.
    """
    gang = start_gang(run.layout, run.gpu)
    with opened_generator(input_of(run, "model"), Path(run.scratch), asked, gang) as generator:
        return {} if generator is None else _write(run, asked, generator)


def _write(run: RunFile, asked: Written, generator: Generator) -> dict[str, Json]:
    scratch, corpus = Path(run.scratch), input_of(run, "corpus")
    documents = documents_file(corpus, scratch)
    begins_D, chosen_N = beginnings(documents, generator, asked)
    if not len(chosen_N):
        raise DataError(
            f"data.written: no document has more than {asked.prefix} tokens of the model; reduce"
            " data.written.prefix"
        )
    spool = _spool(run, generator.model.device.type)
    places = [join(spool, f"{first // ROWS:08d}.jsonl") for first in range(0, len(chosen_N), ROWS)]
    progress = Progress(sys.stdout)
    progress.start(len(chosen_N), "documents")
    with open(documents, "rb") as file:
        for place, numbers in zip(
            places, np.array_split(chosen_N, range(ROWS, len(chosen_N), ROWS)), strict=True
        ):
            if _texts(place) is None:
                begun = [_begun(file, number, begins_D, generator, asked) for number in numbers]
                _keep(place, _continued(generator, numbers, [each for each in begun if each], asked))
            progress.advance(len(numbers))
    output = output_of(run, "corpus")
    summary = _assemble(corpus, chosen_N, places, output, scratch)
    output.close(summary)
    remove(spool)
    return summary


def _assemble(
    corpus: ArtifactInput, chosen_N: np.ndarray, places: list[str], output: ArtifactOutput, scratch: Path
) -> dict[str, Json]:
    """Add documents.jsonl: the written texts, and unchanged held-out documents. Returns the summary."""
    texts = (text for place in places for text in _texts(place) or ())
    numbers, is_cut = iter(map(int, chosen_N)), 0
    chosen = next(numbers)
    sizes: dict[str, list[int]] = {TRAIN: [0, 0], HELD_OUT: [0, 0]}
    path = scratch / "written.jsonl"
    with open(path, "w", encoding="utf-8") as target:
        for number, line in enumerate(corpus_lines(corpus, scratch)):
            if number == chosen:
                line.pop("cut", None)  # it belongs to the replaced text
                line, chosen = {**line, **next(texts)}, next(numbers, -1)
                is_cut += line.get("cut", False)
            elif line["split"] == TRAIN:
                continue
            sizes[line["split"]][0] += 1
            sizes[line["split"]][1] += len(line["text"].encode())
            target.write(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n")
    output.add(DOCUMENTS, path)
    path.unlink()
    return {
        "documents": sizes[TRAIN][0] + sizes[HELD_OUT][0],
        "bytes": sizes[TRAIN][1] + sizes[HELD_OUT][1],
        "held_out_documents": sizes[HELD_OUT][0],
        "held_out_bytes": sizes[HELD_OUT][1],
        "written": len(chosen_N),
        "cut": is_cut,
    }


def _spool(run: RunFile, device: str) -> str:
    """The folder for finished texts until all are done: beside the output, one per set of equal bits."""
    folder, _, _ = run.outputs["corpus"].rstrip("/").rpartition("/")
    what = canonical([run.version, run.config, ROWS, str(run.layout.threads), device])
    return join(folder, f"{SPOOL}{hashlib.sha256(what).hexdigest()[:8]}")


def _keep(place: str, texts: list[WrittenText]) -> None:
    body = "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts).encode()
    write_bytes(place, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def _texts(place: str) -> list[WrittenText] | None:
    """The texts kept at `place`; None if there are none, or damaged ones."""
    try:
        digest, _, body = read_bytes(place).partition(b"\n")
    except FileNotFoundError:
        return None
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    return [json.loads(line) for line in body.splitlines()]


def beginnings(path: Path, generator: Generator, asked: Written) -> tuple[np.ndarray, np.ndarray]:
    """The start of each document in the file, and the indices, in order, of `asked.documents` of the longer
    ones; with learned positions the model must have room for more.
    """
    with open(path, "rb") as file:
        begins_D = np.fromiter(accumulate(map(len, file), initial=0), dtype=np.int64)[:-1]
    found: list[int] = []
    with open(path, "rb") as file:
        for number in Permutation(len(begins_D), asked.seed, LANE)(np.arange(len(begins_D))):
            if asked.documents and len(found) == asked.documents:
                break
            begun = _begun(file, number, begins_D, generator, asked)
            if begun is not None:
                room_behind(generator.model, begun[0], asked.tokens)
                found.append(int(number))
    return begins_D, np.sort(np.array(found, dtype=np.int64))


def _begun(
    file: IO[bytes], number: int, begins_D: np.ndarray, generator: Generator, asked: Written
) -> tuple[list[int], str] | None:
    """A document's first ids and their text; None if it is not for training or too short."""
    file.seek(begins_D[number])
    line = json.loads(file.readline())
    begun = generator.vocabulary.begun(line["text"], asked.prefix) if line["split"] == TRAIN else None
    return begun and (generator.prompted(begun[0], generator.vocabulary.before), begun[1])


def _continued(
    generator: Generator, numbers: np.ndarray, begun: Sequence[tuple[list[int], str]], asked: Written
) -> list[WrittenText]:
    """The text of each document, drawn with its own random numbers."""
    prompts, encoders = [ids for ids, _ in begun], None
    if generator.model.spec.reads_encoder:
        encoders = [[*prompt, generator.vocabulary.end_id] for prompt in prompts]
        prompts = [[generator.vocabulary.start_id]] * len(numbers)
    keys = Chance(asked.seed, LANE, TRAIN).keys(numbers, np.zeros(len(numbers), dtype=np.int64))
    ends = generator.vocabulary.ends
    found = continuations(
        generator.model,
        prompts,
        length=room_behind(generator.model, prompts[0], asked.tokens),
        temperatures_B=torch.full((len(prompts),), asked.temperature, dtype=torch.float64),
        top_p=asked.top_p,
        draws=lambda place: torch.from_numpy(uniform(keys, place, 0)),
        ends=ends,
        encoders=encoders,
    )
    return [
        _text(generator.vocabulary, beginning, ids, has_end=bool(ids) and ids[-1] in ends)
        for beginning, ids in zip(begun, found, strict=True)
    ]


def _text(vocabulary: Vocabulary, begun: tuple[list[int], str], ids: list[int], has_end: bool) -> WrittenText:
    """The written text, without a partial character at its end."""
    text = begun[1] + vocabulary.behind(begun[0], ids, has_end=has_end)
    return {"text": text} if has_end else {"text": text, "cut": True}


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code; one JSON line reports the end."""
    return run_verb("write", arguments, lambda run: write(run, parse(Written, run.config, "config")))


if __name__ == "__main__":
    leave(main(sys.argv[1:]))

"""Have a finished model write text: python -m atelier.engine.write run.json

run.json: config is a Written (engine/config/generation.py), inputs {"model", "corpus"}, output "corpus": of
documents that train, those that were chosen, each with its beginning as it was and the rest written by the
model; held-out documents as they are. Model and reader may have different tokenizers.
"""

import json
import sys
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from atelier.engine.config.base import Json, parse
from atelier.engine.config.error import DataError
from atelier.engine.config.generation import Written
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.corpus import DOCUMENTS, HELD_OUT, TRAIN, corpus_lines
from atelier.engine.data.counter_rng import Chance, Permutation, uniform
from atelier.engine.inference.generator import Generator, read_generator
from atelier.engine.inference.sampling import continuations, room_behind
from atelier.engine.io.process import Progress, input_of, leave, output_of, run_verb, say
from atelier.engine.parallel.gang import start_gang

ROWS = 64  # continued at once
LANE = "write"


def write(run: RunFile, asked: Written) -> dict[str, Json]:
    """Write documents.jsonl; returns the summary. Raises DataError when no document is long enough."""
    scratch, corpus = Path(run.scratch), input_of(run, "corpus")
    gang = start_gang(Parallel(shard=1, threads=run.layout.threads, device=run.layout.device))
    generator = read_generator(input_of(run, "model"), scratch, gang.device)
    begun = beginnings(corpus.file(DOCUMENTS, scratch), generator, asked)
    if not begun:
        raise DataError(
            f"data.written: no document has more than {asked.prefix} tokens of the model; a smaller "
            "data.written.prefix has some"
        )
    progress, written = Progress(sys.stdout), dict[int, str]()
    progress.start(len(begun), "documents")
    numbers = sorted(begun)
    for first in range(0, len(numbers), ROWS):
        some = numbers[first : first + ROWS]
        for number, text in zip(some, _continued(generator, some, begun, asked), strict=True):
            written[number] = text
        progress.advance(len(some))
    sizes: dict[str, list[int]] = {TRAIN: [], HELD_OUT: []}
    path = scratch / "written.jsonl"
    with open(path, "w", encoding="utf-8") as target:
        for number, line in enumerate(corpus_lines(corpus, scratch)):
            if line["split"] == TRAIN and number not in written:
                continue
            line["text"] = written.get(number, line["text"])
            sizes[line["split"]].append(len(line["text"].encode()))
            target.write(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n")
    output = output_of(run, "corpus")
    output.add(DOCUMENTS, path)
    summary: dict[str, Json] = {
        "documents": sum(map(len, sizes.values())),
        "bytes": sum(map(sum, sizes.values())),
        "held_out_documents": len(sizes[HELD_OUT]),
        "held_out_bytes": sum(sizes[HELD_OUT]),
        "written": len(written),
    }
    output.close(summary)
    return summary


def beginnings(path: Path, generator: Generator, asked: Written) -> dict[int, tuple[list[int], str]]:
    """What `asked.documents` of the longer documents begin with, by the document's place: the model's ids and
    the text; a model with learned positions has to have room for more.
    """
    with open(path, "rb") as file:
        begins_D = np.fromiter(accumulate(map(len, file), initial=0), dtype=np.int64)[:-1]
    found: dict[int, tuple[list[int], str]] = {}
    with open(path, "rb") as file:
        for number in map(int, Permutation(len(begins_D), asked.seed, LANE)(np.arange(len(begins_D)))):
            if asked.documents and len(found) == asked.documents:
                break
            file.seek(begins_D[number])
            line = json.loads(file.readline())
            if line["split"] != TRAIN or not (
                begun := generator.vocabulary.begun(line["text"], asked.prefix)
            ):
                continue
            ids, text = begun
            found[number] = [*generator.vocabulary.before, *ids], text
            room_behind(generator.model, found[number][0], asked.tokens)
    return found


def _continued(
    generator: Generator, numbers: list[int], begun: dict[int, tuple[list[int], str]], asked: Written
) -> list[str]:
    """The text of each document, drawn with random numbers of its own."""
    prompts = [begun[number][0] for number in numbers]
    keys = Chance(asked.seed, LANE, TRAIN).keys(np.array(numbers), np.zeros(len(numbers), dtype=np.int64))
    found = continuations(
        generator.model,
        prompts,
        length=room_behind(generator.model, prompts[0], asked.tokens),
        temperatures_B=torch.full((len(prompts),), asked.temperature, dtype=torch.float64),
        top_p=asked.top_p,
        draws=lambda place: torch.from_numpy(uniform(keys, place, 0)),
        ends=generator.vocabulary.ends,
    )
    more = (generator.vocabulary.bytes_of(ids).decode("utf-8", "replace") for ids in found)
    return [begun[number][1] + text for number, text in zip(numbers, more, strict=True)]


def act(run: RunFile) -> None:
    say(sys.stdout, {"done": write(run, parse(Written, run.config, "config"))})


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code; one JSON line reports how it ended."""
    return run_verb("write", arguments, act)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))

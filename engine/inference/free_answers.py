"""Answers to free questions: the most likely continuation of each prompt, token by token."""

from collections.abc import Callable, Sequence

from atelier.engine.config.generation import Sampling
from atelier.engine.data.control_prompt import Prefix
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.inference.rows import SLOTS, Rows, ServedRow
from atelier.engine.inference.sampling import TextModel


def answers(
    model: TextModel,
    prompts: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    *,
    most: int,
    until: Sequence[str],
    advance: Callable[[int], None],
) -> list[str]:
    """The greedy continuation of each prompt, of at most `most` tokens, up to the first of `until`. Each has
    the same bits whatever the others are (engine/inference/rows.py). With an encoder it reads the prompt.
    """
    rows = Rows(model, vocabulary.ends)
    is_paired, found = model.spec.reads_encoder, [""] * len(prompts)
    waiting = sorted(range(len(prompts)), key=lambda number: len(prompts[number]), reverse=True)
    running: list[tuple[int, ServedRow]] = []
    sampling = Sampling(max_tokens=most, temperature=0.0, top_p=1.0, seed=0)
    while waiting or running:
        while waiting and len(running) < SLOTS:
            number = waiting.pop(0)
            ids = [*prompts[number]]
            before = (
                Prefix([vocabulary.start_id], [], [*ids, vocabulary.end_id]) if is_paired else Prefix(ids, [])
            )
            row = rows.begin(before, sampling)
            while not row.is_read:
                rows.read(row)
            running.append((number, row))
        still: list[tuple[int, ServedRow]] = []
        for number, row in running:
            if row.fault is not None:
                raise row.fault
            text = vocabulary.behind(row.before.ids, row.ids, has_end=row.is_done)
            ends = [at for stop in until if (at := text.find(stop)) >= 0]
            if row.is_done or ends:
                found[number] = text[: min(ends)] if ends else text
                advance(1)
            else:
                still.append((number, row))
        running = still
        if running:
            rows.step([row for _, row in running])
    return found

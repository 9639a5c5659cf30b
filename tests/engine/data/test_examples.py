import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from atelier.engine.config.data import Labels
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data.examples import Examples
from atelier.engine.data.tokens import Windows
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import open_input
from tests.engine.trainings import artifact
from tests.foreign.kinds.options import read
from tests.foreign.kinds.options import tokenizer as tokenizer_of_kind


@pytest.fixture
def made(workshop, poems, tmp_path):
    """(labels, tokenizer): 60 examples of three options, one of several tokens."""
    path = tmp_path / "labels.jsonl"
    names = (" red", " green", " ultramarine blue")
    path.write_text(
        "".join(
            json.dumps({"prompt": f"{'sea ' * (n % 7)}poem {n}:", "completion": names[n % 3]}) + "\n"
            for n in range(60)
        )
    )
    labels = workshop.labels(Labels(source=str(path)))
    tokenizer = workshop.tokenizer(workshop.corpus(poems))
    return labels, tokenizer


def _examples(made, tmp_path, **options):
    return Examples(*made, tmp_path, **({"sequence": 64} | options))


def test_only_the_completion_is_scored(made, tmp_path, workshop):
    examples, vocabulary = _examples(made, tmp_path), Vocabulary.of(made[1], tmp_path)
    batch = examples.batch(range(len(examples)))
    by_prompt = {line["prompt"]: line["completion"] for line in workshop.lines(made[0], "train.jsonl")}
    for row in range(len(examples)):
        labels, tokens = batch["labels_BT"][row], batch["tokens_BT"][row]
        scored = labels[labels != -100].tolist()
        real = batch["documents_BT"][row] == 0
        prompt = vocabulary.decode(tokens[: int(np.argmax(labels != -100)) + 1].tolist())
        assert scored[-1] != vocabulary.end_id
        assert vocabulary.decode(scored) == by_prompt[prompt]
        assert (tokens[real][1:] == labels[real][:-1])[labels[real][:-1] != -100].all()
        assert batch["positions_BT"][row][real].tolist() == list(range(real.sum()))
        assert set(batch["documents_BT"][row][~real]) <= {-1} and set(labels[~real]) <= {-100}


@pytest.mark.parametrize("shots", [None, 0, 2])
def test_options_are_scored_by_the_tokens_that_they_have_behind_their_prompt(made, workshop, tmp_path, shots):
    """With a tokenizer that begins every text with a space, as Llama 2's: of ` red` alone it makes two."""
    llama = tokenizer_of_kind("prepend")
    files = {"tokenizer.json": llama.to_str().encode()}
    source = open_input(artifact(tmp_path / "tokenizer", "tokenizer", files))
    found = Examples(made[0], source, tmp_path, sequence=200, split="test", shots=shots)

    def ids(text: str) -> list[int]:
        return llama.encode(text, add_special_tokens=False).ids

    assert ids(" red") != ids(": red")[-1:]
    vocabulary = Vocabulary.of(source, tmp_path)
    for number, example in enumerate(found.examples):
        prompt, options = read(found, number)
        text = vocabulary.bytes_of(prompt).decode().removeprefix(" ")
        for option, own in zip(found.options, options, strict=True):
            assert [*prompt, *own] == ids(text + option)
        labels_T = found.batch([number])["labels_BT"][0]
        assert tuple(labels_T[labels_T != -100]) == options[example.answer]


def test_options_that_a_tokenizer_writes_alike_are_refused(made, workshop, tmp_path):
    tokenizer = Tokenizer(models.WordPiece({"</s>": 0, "a": 1, "red": 2, ":": 3}, unk_token="</s>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    files = {"tokenizer.json": tokenizer.to_str().encode()}
    source = open_input(artifact(tmp_path / "tokenizer", "tokenizer", files))
    path = tmp_path / "two.jsonl"
    path.write_text(
        "".join(
            json.dumps({"prompt": f"{n}:", "completion": " red" if n % 2 else " Red"}) + "\n"
            for n in range(8)
        )
    )
    labels = workshop.labels(Labels(source=str(path)))
    with pytest.raises(
        DataError, match=r"after '\d:' the tokenizer encodes the options ' Red' and ' red' alike"
    ):
        Examples(labels, source, tmp_path, sequence=64)


def test_a_draw_depends_on_seed_and_draw_alone_and_a_larger_draw_holds_the_smaller(made, tmp_path):
    def drawn(**options):
        return set(_examples(made, tmp_path, **options).examples)

    first = drawn(num_examples=12, draw=0)
    assert len(first) == 12
    assert first == drawn(num_examples=12, draw=0)
    assert first != drawn(num_examples=12, draw=1)
    assert first != drawn(num_examples=12, draw=0, seed=2)
    assert first < drawn(num_examples=20, draw=0) < drawn()


def test_all_batches_of_a_draw_have_one_length_whoever_is_in_them(made, tmp_path):
    examples = _examples(made, tmp_path)
    whole = examples.batch(range(len(examples)))
    assert whole["tokens_BT"].shape == (len(examples), examples.length)
    assert (examples.batch([3])["tokens_BT"] == whole["tokens_BT"][3:4]).all()
    assert (whole["documents_BT"] == 0).sum(axis=1).max() == examples.length


def test_a_prompt_too_long_loses_its_beginning_in_training_and_scoring_alike(made, tmp_path):
    full, short = _examples(made, tmp_path), _examples(made, tmp_path, sequence=24)
    assert short.length <= 24 < full.length
    for whole, cut in zip(full.examples, short.examples, strict=True):
        assert whole.completion == cut.completion
        assert whole.prompt[-len(cut.prompt) :] == cut.prompt
    assert max(row.positions_T.max() for row in map(short.option_row, range(len(short)))) < 24
    with pytest.raises(
        ConfigError, match=r"sequence: 4 tokens leave no room for a prompt; options have up to"
    ):
        _examples(made, tmp_path, sequence=4)


def test_how_many_prompts_are_cut_is_known_and_how_long_a_row_would_hold_them(made, tmp_path):
    full, short = _examples(made, tmp_path), _examples(made, tmp_path, sequence=24)
    assert full.num_cut() == 0 and full.what_is_cut() == ""
    cut = [len(short.examples[n].prompt) < len(each.prompt) for n, each in enumerate(full.examples)]
    assert 0 < short.num_cut() == sum(cut) < len(short)
    assert short.what_is_cut().startswith(
        f"labels: {sum(cut)} of {len(short)} train prompts have no room in sequence=24 tokens"
    )
    needed = int(short.what_is_cut().rpartition("sequence=")[2].split()[0])
    assert _examples(made, tmp_path, sequence=needed).num_cut() == 0
    assert _examples(made, tmp_path, sequence=needed - 1).num_cut() > 0
    short.check_told_apart()


def test_prompts_whose_answers_nothing_is_left_to_tell_by_are_refused(workshop, poems, tmp_path):
    path = tmp_path / "far.jsonl"
    rows = [{"prompt": f"{n} {'on and ' * 40}Which?", "completion": f" {n % 2}"} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = workshop.labels(Labels(source=str(path))), workshop.tokenizer(workshop.corpus(poems))
    _examples(made, tmp_path, sequence=1024).check_told_apart()
    cut = _examples(made, tmp_path, sequence=32)
    with pytest.raises(DataError, match=r"labels: (\d+) of \1 train .* equals one with another answer"):
        cut.check_told_apart()


def test_more_examples_than_there_are_is_refused_with_the_numbers(made, tmp_path):
    there = len(_examples(made, tmp_path))
    with pytest.raises(DataError, match=f"{there + 1} train examples were requested, but there are {there}"):
        _examples(made, tmp_path, num_examples=there + 1)


def test_a_row_of_options_scores_for_each_option_what_a_row_of_its_own_would(made, tmp_path):
    """Follow the contract's visibility by hand: branch b sees branch 0 and itself, earlier or same place."""
    examples, vocabulary = _examples(made, tmp_path, split="test"), Vocabulary.of(made[1], tmp_path)
    for index in range(len(examples)):
        row, example = examples.option_row(index), examples.examples[index]
        assert len(row.spans) == len(examples.options) == 3
        for branch, (begin, end) in enumerate(row.spans, start=1):
            option = vocabulary.encode(examples.options[branch - 1])
            assert row.labels_T[begin:end].tolist() == option
            seen = (row.branches_T == 0) | (row.branches_T == branch)
            assert row.tokens_T[seen].tolist() == [*example.prompt, *option[:-1]]
            assert row.positions_T[seen].tolist() == list(range(seen.sum()))
        assert row.labels_T[slice(*row.spans[row.answer])].tolist() == list(example.completion)
        assert (row.labels_T[row.branches_T == 0] == -100).all()
        assert set(row.documents_T) == {0}


def test_a_batch_of_option_rows_is_padded_with_what_is_not_scored(made, tmp_path):
    examples = _examples(made, tmp_path, split="test")
    batch, rows = examples.option_batch([0, 1, 2])
    for n, row in enumerate(rows):
        size = len(row.tokens_T)
        assert batch["branches_BT"][n, :size].tolist() == row.branches_T.tolist()
        assert batch["tokens_BT"][n, :size].tolist() == row.tokens_T.tolist()
        assert set(batch["labels_BT"][n, size:]) <= {-100} and set(batch["documents_BT"][n, size:]) <= {-1}
    assert all(values.dtype == np.int64 for values in batch.values())


def test_examples_have_the_keys_of_windows_so_that_both_can_share_a_batch(made, tmp_path, workshop, poems):
    corpus = workshop.corpus(poems)
    windows = Windows(workshop.tokens(corpus, workshop.tokenizer(corpus)), tmp_path, "train", 64)
    assert set(windows.batch([0])) == set(_examples(made, tmp_path).batch([0]))


def test_few_shot_prompts_stand_behind_the_same_solved_training_examples(made, tmp_path, workshop):
    vocabulary = Vocabulary.of(made[1], tmp_path)
    train = {line["prompt"] + line["completion"] for line in workshop.lines(made[0], "train.jsonl")}
    asked = {line["prompt"] for line in workshop.lines(made[0], "test.jsonl")}
    texts = [
        vocabulary.decode(list(each.prompt))
        for each in _examples(made, tmp_path, split="test", shots=3).examples
    ]
    parts = [text.split("\n\n") for text in texts]
    assert {len(each) for each in parts} == {4}
    assert len({tuple(each[:3]) for each in parts}) == 1 and set(parts[0][:3]) < train
    assert {each[3] for each in parts} == asked


def test_options_of_which_one_begins_another_are_told_apart_by_their_ends(workshop, poems, tmp_path):
    path = tmp_path / "labels.jsonl"
    names = (" red", " red and green")
    path.write_text(
        "".join(json.dumps({"prompt": f"poem {n}:", "completion": names[n % 2]}) + "\n" for n in range(40))
    )
    tokenizer = workshop.tokenizer(workshop.corpus(poems))
    made = workshop.labels(Labels(source=str(path))), tokenizer
    tuned, zero = _examples(made, tmp_path, split="test"), _examples(made, tmp_path, split="test", shots=0)
    end = Vocabulary.of(tokenizer, tmp_path).end_id
    assert [each.prompt for each in tuned.examples] == [each.prompt for each in zero.examples]
    assert all(each.completion[-1] == end for each in tuned.examples)
    assert all(end not in each.completion for each in zero.examples)  # text that continues
    row = tuned.option_row(0)
    assert [int(row.labels_T[last - 1]) for _, last in row.spans] == [end, end]
    assert end not in zero.option_row(0).labels_T


def test_more_shots_than_training_examples_are_refused(made, tmp_path):
    with pytest.raises(DataError, match="1000 solved examples were requested"):
        _examples(made, tmp_path, split="test", shots=1000)


@pytest.fixture
def free(workshop, poems, tmp_path):
    """(labels, tokenizer): 60 examples whose completions are free text of different lengths."""
    path = tmp_path / "free.jsonl"
    lines = [{"prompt": f"poem {n}:", "completion": " sea" * (1 + n % 5) + f" {n}"} for n in range(60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return workshop.labels(Labels(source=str(path), free=True)), workshop.tokenizer(workshop.corpus(poems))


@pytest.mark.parametrize("is_paired", [False, True])
def test_free_text_is_learned_with_its_end_and_its_prompt_alone_is_asked(free, tmp_path, workshop, is_paired):
    examples = Examples(*free, tmp_path, sequence=64, is_paired=is_paired)
    vocabulary = Vocabulary.of(free[1], tmp_path)
    batch = examples.batch(range(len(examples)))
    by_prompt = {line["prompt"]: line["completion"] for line in workshop.lines(free[0], "train.jsonl")}
    assert examples.is_free and examples.has_ends and len(examples) == len(by_prompt)
    for row in range(len(examples)):
        labels = batch["labels_BT"][row]
        scored = labels[labels != -100].tolist()
        assert scored[-1] == vocabulary.end_id
        assert vocabulary.decode(scored) == by_prompt[vocabulary.decode(examples.asked(row))]

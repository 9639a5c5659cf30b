import json
import re

import pytest

from atelier.engine.config.data import Labels
from atelier.engine.config.error import DataError
from atelier.engine.data.corpus import fraction
from atelier.engine.data.standard_library import docstrings
from atelier.engine.io.source_files import content_id, stdlib_files, stdlib_folder
from tests.catalogues import as_catalogue

PACKAGES = ("asyncio/", "json/", "logging/", "email/", "os.py")


@pytest.fixture(scope="module")
def some_files():
    prefix = f"{stdlib_folder()}/"
    return [
        [path, content_id(path)] for path in stdlib_files() if path.removeprefix(prefix).startswith(PACKAGES)
    ]


SOURCE = '''"""A module."""
if True:
    class Boat:
        """A boat.

        Second line.
            Indented."""
        try:
            def row(self):
                """Row."""
                def inner():
                    "Inner."
        except ValueError:
            pass
        async def sail(self): "Sail."
def steer(): """Steer."""
def silent(): return """not a docstring"""
'''


def test_docstrings_know_whether_they_document_a_module_class_method_or_function():
    found = [(d.text, d.kind) for d in docstrings(SOURCE, "x.py")]
    assert found == [
        ("A module.", "module"),
        ("A boat.\n\nSecond line.\n    Indented.", "class"),
        ("Row.", "method"),
        ("Inner.", "function"),
        ("Sail.", "method"),
        ("Steer.", "function"),
    ]
    assert docstrings("print 'python 2'", "x.py") == []


def test_package_examples_come_from_packages_of_several_files_and_every_package_is_in_both_splits(
    workshop, some_files
):
    labels = workshop.labels(Labels(), some_files)
    train, test = workshop.lines(labels, "train.jsonl"), workshop.lines(labels, "test.jsonl")
    options = [
        " asyncio",
        " email",
        " json",
        " logging",
    ]  # os is one file: it cannot be both learnt from and tested on
    assert labels.record.summary["options"] == options
    assert {e["completion"] for e in train} == {e["completion"] for e in test} == set(options)
    assert all(
        e["options"] == options and f" {e['group'].split('/')[0]}" == e["completion"] for e in train + test
    )
    counts = [sum(e["completion"] == option for e in test) for option in options]
    assert labels.record.summary["majority"] == pytest.approx(max(counts) / len(test), abs=1e-6)


def test_no_file_and_no_prompt_is_in_both_splits(workshop, some_files):
    for task in ("package", "kind"):
        labels = workshop.labels(Labels(task=task), some_files)
        train, test = workshop.lines(labels, "train.jsonl"), workshop.lines(labels, "test.jsonl")
        assert (labels.record.summary["train"], labels.record.summary["test"]) == (len(train), len(test))
        assert not {e["group"] for e in train} & {e["group"] for e in test}
        prompts = [e["prompt"] for e in train + test]
        assert len(prompts) == len(set(prompts))


def test_no_prompt_names_any_of_the_packages(workshop, some_files):
    labels = workshop.labels(Labels(), some_files)
    named = re.compile(r"\b(asyncio|email|json|logging)\b", re.IGNORECASE)
    examples = workshop.lines(labels, "train.jsonl") + workshop.lines(labels, "test.jsonl")
    assert not any(named.search(e["prompt"]) for e in examples)
    assert any("***" in e["prompt"] for e in examples if e["completion"] == " json")


def test_prompts_are_cut_and_end_with_the_question(workshop, some_files):
    labels = workshop.labels(Labels(task="kind", max_chars=30), some_files)
    examples = workshop.lines(labels, "train.jsonl")
    assert all(
        e["prompt"].endswith("\n\nKind:") and len(e["prompt"]) <= 30 + len("\n\nKind:") for e in examples
    )
    assert {e["completion"] for e in examples} == {" module", " class", " method", " function"}


def _written(tmp_path, *lines):
    path = tmp_path / "labels.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_prompts_and_completions_stand_as_given_and_text_and_label_are_joined_by_a_question(
    workshop, tmp_path
):
    path = _written(
        tmp_path,
        {"prompt": "Good? Yes or no:", "completion": " yes"},
        {"text": "A dull film. ", "label": "no"},
        {"text": "A fine film.", "label": True},
        {"text": "Three stars.", "label": 3, "group": "stars"},
    )
    labels = workshop.labels(Labels(source=str(path)))
    examples = workshop.lines(labels, "train.jsonl") + workshop.lines(labels, "test.jsonl")
    assert {(e["prompt"], e["completion"]) for e in examples} == {
        ("Good? Yes or no:", " yes"),
        ("A dull film.\n\nLabel:", " no"),
        ("A fine film.\n\nLabel:", " true"),
        ("Three stars.\n\nLabel:", " 3"),
    }
    assert labels.record.summary["options"] == [" 3", " no", " true", " yes"]
    assert "stars" in {e["group"] for e in examples}


def test_a_long_prompt_keeps_its_end_and_a_long_text_its_beginning(workshop, tmp_path):
    path = _written(
        tmp_path,
        {"prompt": "x" * 50 + " sum is:", "completion": " a"},
        {"text": "begin " + "y" * 50, "label": "b"},
    )
    labels = workshop.labels(Labels(source=str(path), max_chars=16))
    examples = workshop.lines(labels, "train.jsonl") + workshop.lines(labels, "test.jsonl")
    assert {e["prompt"] for e in examples} == {"xxxxxxxx sum is:", "begin yyyyyyyyyy\n\nLabel:"}


LONG = "filler words go on and on " * 40


def test_texts_that_share_a_long_beginning_are_whole_and_no_copies(workshop, tmp_path):
    texts = [{"text": f"{LONG}{n} {'good' if n % 2 else 'bad'}", "label": n % 2} for n in range(12)]
    asked = [{"prompt": f"{n} {LONG}Which?", "completion": f" {n % 2}"} for n in range(12)]
    for rows in (texts, asked):
        labels = workshop.labels(Labels(source=str(_written(tmp_path, *rows, rows[3]))))
        examples = workshop.lines(labels, "train.jsonl") + workshop.lines(labels, "test.jsonl")
        assert len({each["prompt"] for each in examples}) == 12
        assert all(len(each["prompt"]) > 1000 for each in examples)
        summary = labels.record.summary
        assert (summary["cut"], summary["duplicates"], summary["train"] + summary["test"]) == (0, 1, 12)
        assert workshop.printed() == "finetune.labels: 1 rows are copies of others and left out"


def test_how_many_prompts_are_cut_is_said_and_recorded_and_equal_rests_are_no_copies(workshop, tmp_path):
    rows = [
        {"prompt": f"{n} {LONG}{'good' if n % 2 else 'bad'}", "completion": str(n % 2)} for n in range(12)
    ]
    source = str(_written(tmp_path, *rows, {"prompt": "short", "completion": "1"}))
    labels = workshop.labels(Labels(source=source, max_chars=50))
    summary = labels.record.summary
    assert (summary["cut"], summary["duplicates"], summary["train"] + summary["test"]) == (12, 0, 13)
    said = "finetune.labels.max_chars=50: 12 of 13 prompts are cut; finetune.labels.max_chars=auto cuts none"
    assert workshop.printed() == said
    parts = [
        {each["prompt"] for each in workshop.lines(labels, f"{name}.jsonl")} for name in ("train", "test")
    ]
    assert not parts[0] & parts[1]  # what a model reads of the test is not in its training


def test_prompts_of_which_nothing_is_left_to_tell_their_answers_by_are_refused(workshop, tmp_path):
    rows = [{"prompt": f"{n} {LONG}Which?", "completion": str(n % 2)} for n in range(12)]
    with pytest.raises(
        DataError, match=r"max_chars=50: 12 of 12 prompts are cut, .*max_chars=auto cuts none"
    ):
        workshop.labels(Labels(source=str(_written(tmp_path, *rows)), max_chars=50))


def test_the_standard_library_s_prompts_are_cut_as_before_and_keep_their_identity():
    assert "max_chars" not in Labels(max_chars=400).as_identity()
    assert [Labels(source=each).most_chars for each in ("stdlib", "x.jsonl")] == [320, 1 << 30]
    assert Labels(source="x.jsonl", max_chars=50).most_chars == 50


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            {"prompt": "x", "answer": "y"},
            "field 'completion' (or 'label') is missing; fields there: answer, prompt",
        ),
        ({"completion": "y"}, "field 'prompt' (or 'text') is missing"),
        ({"prompt": "x", "completion": None}, "field 'completion' is null, not text"),
        ({"prompt": " ", "completion": "y"}, "field 'prompt' is empty"),
        ({"prompt": "x", "completion": "y", "group": 3}, "field 'group' is a number, not text"),
        ("{", "not JSON"),
    ],
)
def test_a_broken_line_is_named_with_the_way_out_or_skipped_when_asked(workshop, tmp_path, line, problem):
    good = [{"prompt": f"p{n}", "completion": f" {n % 2}"} for n in range(6)]
    path = _written(tmp_path, *good, line)
    with pytest.raises(DataError) as caught:
        workshop.labels(Labels(source=str(path)))
    assert str(caught.value).startswith(f"{path}:7: {problem}")
    assert "labels.on_error=skip" in str(caught.value)
    summary = workshop.labels(Labels(source=str(path), on_error="skip")).record.summary
    assert (summary["train"] + summary["test"], summary["skipped"]) == (6, 1)


def test_more_than_64_or_fewer_than_2_completions_are_refused_with_the_number(workshop, tmp_path):
    many = _written(tmp_path, *({"prompt": f"p{n}", "completion": f"c{n}"} for n in range(65)))
    with pytest.raises(DataError, match=r"65 distinct completions .* at most 64.*labels\.completion=<field>"):
        workshop.labels(Labels(source=str(many)))
    one = _written(tmp_path, *({"prompt": f"p{n}", "completion": "c"} for n in range(5)))
    with pytest.raises(DataError, match="1 distinct completions; at least two are needed"):
        workshop.labels(Labels(source=str(one)))


def test_messages_of_catalogues_are_told_apart_and_a_translation_is_on_the_side_of_its_original(
    workshop, tmp_path
):
    """However much is held out: tuned on one language, scored on another, nothing of the test was learned
    from in any. What several catalogues have, and what is not translated, is left out.
    """
    for name in ("boats", "birds", "bread"):
        pairs = [(f"{name} number {n}", f"{name} Nummer {n}") for n in range(60)]
        pairs += [("Usage:", "Aufruf:"), (f"silent {name}", ""), (f"two of {name}", "zwei"), ("GNU", "GNU")]
        (tmp_path / f"{name}.mo").write_bytes(as_catalogue(pairs))
    source = str(tmp_path / "*.mo")
    english = workshop.labels(Labels(source=source, prompt="msgid", completion="catalogue", held_out=0.1))
    second = Labels(source=source, prompt="msgstr", completion="catalogue", held_out=0.6)
    german = workshop.labels(second, tuned=english)
    train, test = (workshop.lines(english, f"{name}.jsonl") for name in ("train", "test"))
    other = workshop.lines(german, "test.jsonl")
    assert len(train) + len(test) == 3 * 62 and all("Usage" not in line["prompt"] for line in train + test)
    assert {line["completion"] for line in train} == {" boats", " birds", " bread"}
    assert test[0]["options"] == other[0]["options"] == [" birds", " boats", " bread"]
    assert other and not {line["group"] for line in other} & {line["group"] for line in train}
    said = {line["prompt"] for line in other}
    numbered = {line["prompt"] for line in test if "number" in line["prompt"]}
    assert said == {prompt.replace("number", "Nummer") for prompt in numbered}
    held_out, trained = sorted(("one", "other"), key=fraction)
    lines = [{**line, "group": trained} for line in train + test]
    everything = workshop.labels(
        Labels(
            source=str(_written(tmp_path, *lines, {**train[0], "prompt": "a lone one", "group": held_out}))
        )
    )
    with pytest.raises(DataError, match=r"all 186 examples .* are training examples of the tuned models"):
        workshop.labels(Labels(source=source, prompt="msgid", completion="catalogue"), tuned=everything)


def test_other_examples_have_the_options_of_those_that_are_tuned_on_and_no_others(workshop, tmp_path):
    tuned = workshop.labels(Labels(source=str(_written(tmp_path, *_classes("a", "b", "c")))))
    assert tuned.record.summary["options"] == ["a", "b", "c"]
    fewer = workshop.labels(Labels(source=str(_written(tmp_path, *_classes("a", "c")))), tuned=tuned)
    assert fewer.record.summary["options"] == ["a", "b", "c"]
    other = _written(tmp_path, *_classes("a", "d"))
    with pytest.raises(
        DataError, match=r"also\.other\.source: .* completion 'd' .* these, or leave it out: 'a', 'b', 'c'"
    ):
        workshop.labels(Labels(source=str(other)), tuned=tuned)


def _classes(*names: str) -> list[dict]:
    return [{"prompt": f"{name} {n}", "completion": name} for name in names for n in range(8)]


def test_a_labels_file_that_changed_since_planning_is_refused(workshop, tmp_path):
    path = _written(tmp_path, {"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"})
    files = workshop.files(Labels(source=str(path)))
    path.write_text(path.read_text() + "\n")
    with pytest.raises(DataError, match="changed since"):
        workshop.labels(Labels(source=str(path)), files)


NAMED = '''
class Boat:
    def __init__(self):
        """Build it."""
    def readHTTPLine2(self):
        """Give the next line."""
    def set_sail(self):
        """As set_sail does."""
    def close(self):
        """Close it."""
'''


def test_completions_of_free_text_are_the_words_of_names_that_the_docstring_does_not_hold(
    workshop, some_files, monkeypatch
):
    found = [("x.py", each) for each in docstrings(NAMED, "x.py")]
    place = "atelier.engine.data.label"
    monkeypatch.setattr(f"{place}.docstrings", lambda files, reader: found)
    monkeypatch.setattr(f"{place}.split_of", lambda groups, *_: dict.fromkeys(groups, "held_out"))
    labels = workshop.labels(Labels(task="name"), some_files)
    lines = workshop.lines(labels, "test.jsonl")
    assert [(e["prompt"], e["completion"]) for e in lines] == [
        ("Give the next line.\n\nName:", " read http line 2"),
    ]
    assert all(e["options"] == [] for e in lines) and labels.record.summary["options"] == []


def test_more_completions_than_options_allow_are_free_text_if_asked(workshop, tmp_path):
    rows = [{"prompt": f"number {n}", "completion": f" is {n}"} for n in range(200)]
    path = str(_written(tmp_path, *rows))
    with pytest.raises(DataError, match="at most 64 can be scored as options"):
        workshop.labels(Labels(source=path))
    found = workshop.labels(Labels(source=path, free=True))
    assert found.record.summary["train"] + found.record.summary["test"] == 200
    assert "free" not in Labels(source=path).as_identity()

"""MT-NLG's flow, tiny: its corpus is curated, its report shows the waterfall, `explain` answers for any
document, a changed threshold runs only what follows, and killed without warning it ends with the same bytes.
"""

import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.curation import Curation
from atelier.engine.data.copies import text_group
from atelier.engine.data.curation.minhash import jaccard, shingles
from atelier.engine.data.filter_text import DocumentText, check_of
from tests.engine.data.curation.drawn import write_sources
from tests.faults.command import CommandStore
from tests.flow.command import Atelier, done, refused

pytestmark = pytest.mark.slow

MODEL = ("experiment=tiny", "tracker=none", "model.hidden=32", "model.num_heads=2", "model.num_layers=1")
FILTERS = {"words": {"kind": "gopher_quality", "min_words": 90, "min_stop_words": 0}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mtnlg")


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Two drawn sources with copies and junk, and questions that some of their documents answer."""
    folder = tmp_path_factory.mktemp("sources")
    sources = write_sources(folder, seed=7, documents=300)
    texts = [path.read_text() for path in sorted(sources["other"].glob("*.txt"))[::9]]
    answers = [longest for each in texts if len(longest := max(each.split("."), key=len).split()) >= 13]
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps({"answer": " ".join(answer)}) + "\n" for answer in answers))
    curation = (
        "{filtered: [main], filters: {words: {kind: gopher_quality, min_words: 90, min_stop_words: 0}},"
        f" decontaminate: {{questions: {{quiz: {{source: {questions}}}}}, margin: 60, shortest: 80}}}}"
    )
    return (
        "mtnlg",
        *MODEL,
        "data=files",
        f"data.source={sources['main']}",
        f"data.blend={{other: {{source: {sources['other']}, weight: 0.5}}}}",
        "data.assignment=exact",
        f"+data.curation={curation}",
    )


def test_the_report_has_the_waterfall_and_the_model_says_what_it_read(
    atelier: Atelier, arguments: tuple[str, ...]
) -> None:
    out = done(atelier(*arguments))
    assert "Corpus: read, removed by reason, kept" in out and "near_copy" in out and "overlap.cut" in out
    [report] = atelier.records("report", "mtnlg")
    assert {"waterfall.png", "loss.png"} <= {file["path"].rsplit("/", 1)[-1] for file in report["files"]}
    [model] = atelier.records("model", "model")
    consumed = model["summary"]["consumed"]
    assert abs(consumed["main"]["samples"] - 2 * consumed["other"]["samples"]) <= 2
    assert "nothing to do" in done(atelier(*arguments))


def test_explain_answers_for_fifty_documents_and_each_answer_is_what_a_recomputation_gives(
    atelier: Atelier,
) -> None:
    draw = random.Random(2)
    documents = {name: by_id(atelier, "documents", name) for name in ("main", "other")}
    corpora = {name: by_id(atelier, "corpus", name) for name in ("main", "other")}
    checks = {
        name: check_of(spec) for name, spec in parse(Curation, {"filters": FILTERS}, "").filters.items()
    }
    seen: set[str] = set()
    for _ in range(50):
        name = draw.choice(("main", "other"))
        document = documents[name][draw.choice(sorted(documents[name]))]
        [answer] = json.loads(done(atelier("corpus", "explain", name, str(document["id"]), "--json")))
        assert (answer["id"], answer["text"]) == (document["id"], document["text"])
        verdict, text = answer["verdict"] or {}, document["text"]
        seen.add(verdict.get("reason", "") if answer["stage"] else "kept")
        refusals = [found for check in checks.values() if (found := check(DocumentText(text)))]
        if name == "main" and refusals:
            assert answer["stage"] == "filter_documents" and verdict["numbers"] == refusals[0].numbers
        elif answer["stage"] == "deduplicate":
            source, _, other = verdict["kept"].partition("/")
            kept = documents[source][other]["text"]
            if verdict["reason"] == "exact_copy":
                assert text_group(text) == text_group(kept)
            similarity = jaccard(shingles(text), shingles(kept))
            assert similarity >= 0.8 and verdict["numbers"]["jaccard"] == pytest.approx(similarity, abs=1e-4)
        elif answer["stage"] == "decontaminate":
            assert verdict["overlaps"]
        else:
            mine = [line for key, line in corpora[name].items() if key.split("/")[0] == document["id"]]
            pieces = verdict.get("pieces", [[0, len(text)]])
            assert [line["text"] for line in mine] == [text[begin:end] for begin, end in pieces]
            assert set(answer["splits"]) == {line["split"] for line in mine}
    assert {"kept", "near_copy", "words.min_words"} <= seen


def by_id(atelier: Atelier, kind: str, name: str) -> dict[str, dict[str, Any]]:
    """The lines of an artifact's shards."""
    from atelier.engine.io.artifact import open_input
    from atelier.engine.io.shards import shard_lines, shard_names

    [record] = atelier.records(kind, name)
    artifact = open_input(str(atelier.root / kind / record["fingerprint"][:16]))
    lines = (line for shard in shard_names(artifact) for line in shard_lines(artifact, shard, atelier.root))
    return {str(line["id"]): dict(line) for line in lines}


def test_a_document_is_found_by_its_text_and_a_wrong_word_is_refused_with_the_way_out(
    atelier: Atelier,
) -> None:
    [document] = list(by_id(atelier, "documents", "main").values())[:1]
    assert str(document["id"]) in done(atelier("explain", "main", document["text"][:60]))
    assert "did you mean" in refused(atelier("explain", "main", f"{document['id']}x"))
    assert "reasons there: " in refused(atelier("explain", "main", "--sample", "3", "--reason", "nope"))
    assert done(atelier("explain", "main", "--sample", "3", "--reason", "copy")).count("removed by") == 3


def test_a_changed_threshold_runs_only_what_follows_it(atelier: Atelier, arguments: tuple[str, ...]) -> None:
    changed = (*arguments[1:], "data.curation.deduplicate.threshold=0.85")
    states = {name: state for name, state in atelier.states("mtnlg", *changed).items()}
    reused = {name for name, state in states.items() if state == "reuse" and not name.startswith("pose.")}
    assert reused == {"collect", "collect-other", "filter_documents"}


def test_killed_at_drawn_moments_it_ends_with_equal_bytes(
    root: Path, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    whole, store, draw = CommandStore(root), CommandStore(tmp_path), random.Random(4)
    for _ in range(3):
        command = store.start(*arguments)
        command.until(lambda command=command: "store" in command.text, "its first line")
        time.sleep(draw.uniform(0.5, 6.0))
        for process in store.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        command.wait()
        store.wait_for_quiet()
    code, out, err = store.finish(*arguments)
    assert code == 0, out + err
    for kind in ("tokens", "model"):
        digests = [
            sorted(
                (each["name"], file["path"].rsplit("/", 1)[-1], file["sha256"])
                for each in one.records(kind)
                for file in each["files"]
            )
            for one in (whole, store)
        ]
        assert digests[0] == digests[1]

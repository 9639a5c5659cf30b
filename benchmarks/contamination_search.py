"""Questions planted in twelve ways: what an audit of the model finds, and what searches of its own text find.

python benchmarks/contamination_search.py [--peer-lm PYTHON] [--peer-datatrove PYTHON] [--repeats 5] [--trial]

Two DAGs of tiny models are trained (tests/flow/planted_dags.py), five minutes. Each case is a model and a
question. Searches: lm-eval's janitor and datatrove's NGramsDecontFilter, both with their defaults (runs of 13
words, and of 12 with those of the question too), and a set of the question's runs of 13 words. They get all
text that the model's own training could read. They tell neither route nor step. PYTHON: an interpreter that
has lm_eval 0.4.13, or datatrove 0.10.1 with spacy and xxhash < 4.

Goals: the audit is right in all cases, with route and first step; a DAG of ten artifacts whose corpora have
indices is audited in less than 5 s. The tasks' parts of that time are given; most of the rest is the start of
Prefect's server.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code

from atelier.engine.config.audit import AuditResult
from atelier.engine.data.audit.texts import SearchedText
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import open_input
from atelier.infra.report.ancestry import routes
from atelier.infra.report.lineage import Index
from atelier.infra.store.store import Store
from tests.flow.audited import audited, questions_of
from tests.flow.planted import Asked
from tests.flow.planted_dags import END, STEPS, Made, beside, in_line
from tests.flow.recounted import Recount

use_own_code()
RUN = 13
JANITOR = """
import contextlib, io, json, sys
from importlib.metadata import version
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    from lm_eval.decontamination.janitor import Janitor, word_ngrams_indices
    found = []
    for question, answer, texts in json.load(open(sys.argv[1])):
        janitor = Janitor()
        for each in (question, answer, f"{question} {answer}"):
            janitor.register_contaminant(each)
        found.append(any(  # as in its `clean`, which only returns what is left
            janitor.normalize_string(run) in janitor.dirt_ngrams
            for text in texts for run, _ in word_ngrams_indices(text, janitor.ngram_n)
        ))
print(json.dumps([version("lm_eval"), found]))
"""
DATATROVE = """
import json, sys
from importlib.metadata import version
from types import SimpleNamespace
from datatrove.data import Document
from datatrove.pipeline.decont import NGramsDecontFilter, NGramsDecontIndexer
from datatrove.pipeline.decont.n_grams import NGramsDecontConfig
config = NGramsDecontConfig(find_query_ngrams=True)
peer = NGramsDecontFilter(sys.argv[2], config)
own = SimpleNamespace(tokenizer=peer.tokenizer, config=config, hash_func=peer.hash_func)
found = []
for question, answer, texts in json.load(open(sys.argv[1])):
    peer._index_hashes = {n: "asked" for n in NGramsDecontIndexer.compute_hashes(own, answer, question)}
    found.append(any(peer.filter(Document(text=text, id="0")) is not True for text in texts))
print(json.dumps([version("datatrove"), found]))
"""


class Case(NamedTuple):
    """A question of a model. `way`: by which it was read; '' = by none."""

    name: str
    made: Made
    model: str
    question: str
    way: str

    @property
    def asked(self) -> Asked:
        return self.made.planted.questions[self.question]


def cases(line: Made, side: Made, scratch: Path) -> list[Case]:
    imitated = "imitations that a model wrote, the model that it started from"
    found = [
        Case("verbatim", line, "student", "own-verbatim", "its own text"),
        Case("re-wrapped", line, "student", "own-words", "its own text"),
        Case("inside a paragraph", line, "student", "own-inside", "its own text"),
        Case("the answer alone", line, "student", "own-answer", "its own text"),
        Case("teacher's text", line, "assistant", "master-verbatim", "its teacher"),
        Case("assistant's text", line, "student", "assistant-verbatim", "its teacher"),
        Case("teacher's teacher's text", line, "student", "master-verbatim", "its teacher, its teacher"),
        Case("labels of a tuning", line, "student/pretrained-0", label_read(line), "its own text"),
        Case("writer's text", line, "reader", "master-verbatim", "text that a model wrote"),
        Case("imitator's text", line, "judge", "master-verbatim", imitated),
        Case("source of another name", line, "student", "side-verbatim", "its own text"),
    ]
    recount = Recount(side.root, "elder", scratch)
    steps = {name: steps_of(recount, side.planted.questions[name]) for name in side.planted.questions}
    never = next(name for name, own in steps.items() if own == [])
    late = next(name for name, own in steps.items() if own and own[0] >= END)
    return [
        *found,
        Case("after the last step", side, "elder", never, ""),
        Case("after the last lesson", side, "pupil", late, ""),
        Case("none", line, "student", "none-0", ""),
    ]


def steps_of(recount: Recount, asked: Asked) -> list[int] | None:
    """None for a question that is in no training document of the long text."""
    place = asked.begin, asked.end
    document = f"{asked.file}:{asked.document + 1}"
    if asked.file != "long.jsonl" or recount.range_of("tokens.main", document, *place) is None:
        return None
    return recount.steps("tokens.main", document, place, 0, STEPS)


def label_read(made: Made) -> str:
    """A question of an example that the tuning drew."""
    found = questions_of(audited(made.root, "student/pretrained-0", made.asked, code=3))
    return next(name for name, one in found.items() if name.startswith("label") and one["status"] == "read")


def own_texts(made: Made, model: str, scratch: Path) -> list[str]:
    """The training documents of all that a model's own training could read."""
    store = Store(str(made.root))
    record = store.resolve(model, "model")
    tokenizer = store.address("tokenizer", record.parents["tokenizer"])
    vocabulary = Vocabulary.of(open_input(tokenizer), scratch)
    ends = {each.end.fingerprint: each.end.record for each in routes(Index(store), record) if not each.via}
    return [
        document.text
        for end in ends.values()
        if end is not None
        for document in SearchedText(
            open_input(store.address(end.kind, end.fingerprint)), scratch, None, vocabulary
        ).documents()
        if document.split == "train"
    ]


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def in_runs(question: str, answer: str, texts: list[str]) -> bool:
    """Whether a text has a run of RUN words of the question, its answer or both."""
    runs = {run for own in (question, answer, f"{question} {answer}") for run in runs_of(words_of(own))}
    return any(runs & runs_of(words_of(text)) for text in texts)


def runs_of(own: list[str]) -> set[tuple[str, ...]]:
    return {tuple(own[n : n + RUN]) for n in range(len(own) - RUN + 1)}


def told(result: AuditResult, question: str) -> dict[str, Any]:
    """What an audit says of a question."""
    found = questions_of(result).get(question)
    if found is None:
        return {"status": "clean"}
    overlap = found["overlaps"][0]
    best = max(overlap["readings"], key=lambda each: each["times"] or 0)
    return {
        "status": found["status"],
        "form": overlap["form"],
        "document": overlap["document"],
        "way": result["routes"][best["route"]].partition(":")[0],
        "times": best["times"],
        "first": best["first"],
        "last": best["last"],
        "after": max(each["after"] for each in overlap["readings"]),
    }


def is_right(case: Case, found: dict[str, Any]) -> bool:
    if not case.way:
        return found["status"] == ("clean" if case.name == "none" else "unread")
    document = f"{case.asked.file}:{case.asked.document + 1}"
    place = (
        "line" in found["document"] if case.asked.file == "labels.jsonl" else found["document"] == document
    )
    return (found["status"], found["way"]) == ("read", case.way) and place and found["first"] is not None


def peer(python: str, script: str, rows: list[Any], folder: Path) -> tuple[str, list[bool]]:
    given = folder / "given.json"
    given.write_text(json.dumps(rows))
    (folder / "index").mkdir(exist_ok=True)
    command = [python, "-c", script, str(given), str(folder / "index")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    version, found = json.loads(done.stdout.splitlines()[-1])
    return version, found


def speed(made: Made, repeats: int) -> dict[str, Any]:
    """Audits of student on sets that were never asked before, and one that is reused."""
    store = Store(str(made.root))
    graph = routes(Index(store), store.resolve("student", "model"))
    artifacts = {link.fingerprint for each in graph for link in each.chain}
    walls, tasks = [], dict[str, list[float]]()
    for number in range(repeats + 1):
        asked = made.planted.set(
            f"speed{number}.jsonl", "own-verbatim", "master-verbatim", f"none-{number % 4}"
        )
        begin = time.monotonic()
        said = run_audit(made.root, asked)
        walls.append(time.monotonic() - begin)
        for name, seconds in re.findall(r"^\+ (\S+) +done +([\d.]+) s", said, re.MULTILINE):
            tasks.setdefault(name.partition(".")[0], []).append(float(seconds))
    begin = time.monotonic()
    run_audit(made.root, asked)
    reused = time.monotonic() - begin
    return {
        "artifacts": len(artifacts),
        "wall_s": spread(walls[1:]),
        "tasks_s": {name: spread(own[1:]) for name, own in tasks.items() if len(own) > 1},
        "asked_again_s": round(reused, 2),
    }


def run_audit(root: Path, asked: str) -> str:

    # this process's own server is not for others
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    env |= {"ATELIER_ROOT": str(root), "PREFECT_HOME": str(root / "prefect")}
    command = [sys.executable, "-m", "atelier", "audit", "student", asked]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 3:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout + done.stderr


def spread(values: list[float]) -> list[float]:
    """Least, median, most."""
    return [round(one, 2) for one in (min(values), statistics.median(values), max(values))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-lm", default="", metavar="PYTHON")
    parser.add_argument("--peer-datatrove", default="", metavar="PYTHON")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--trial", action="store_true", help="writes no result")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = [folder / each for each in ("line", "line-texts", "side", "side-texts", "scratch")]
        for place in places:
            place.mkdir()
        line, side = in_line(*places[:2]), beside(*places[2:4])
        every = cases(line, side, places[4])
        rows = [[c.asked.question, c.asked.answer, own_texts(c.made, c.model, places[4])] for c in every]
        peers = {"13-gram set": ("", [in_runs(*row) for row in rows])}
        if given.peer_lm:
            peers["janitor"] = peer(given.peer_lm, JANITOR, rows, folder)
        if given.peer_datatrove:
            peers["datatrove"] = peer(given.peer_datatrove, DATATROVE, rows, folder)
        table = []
        for number, case in enumerate(every):
            found = told(audited(case.made.root, case.model, case.made.asked, code=3), case.question)
            row = {"case": case.name, "model": case.model, "was_read": bool(case.way), "audit": found}
            row["audit_is_right"] = is_right(case, found)
            row["says_found"] = {peer: told[1][number] for peer, told in peers.items()}
            table.append(row)
        numbers = {
            "cases": table,
            "right": {
                "audit": sum(row["audit_is_right"] for row in table),
                **{one: sum(row["says_found"][one] == row["was_read"] for row in table) for one in peers},
                "of": len(table),
            },
            "versions_of_peers": {peer: told[0] for peer, told in peers.items() if told[0]},
            "speed": speed(line, 1 if given.trial else given.repeats),
        }
    keep("contamination_search", numbers, is_trial=given.trial)


if __name__ == "__main__":
    main()

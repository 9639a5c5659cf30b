"""Tiny texts with planted questions, drawn from a seed: a file of documents for each training."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.engine.data.curation.texts import text, words

MANY, TWICE = 60, 12  # documents of `long.jsonl` with a question, and with one at two places
FORMS = ("verbatim", "words", "inside", "answer")


def phrase(rng: np.random.Generator, count: int) -> str:
    return " ".join(words(rng, count))


@dataclass
class Asked:
    """A question, and where it is planted: file, document (from 0), characters, and its second begin."""

    id: str
    question: str
    answer: str
    file: str = ""
    document: int = -1
    begin: int = -1
    end: int = -1
    again: int = -1

    def row(self) -> dict[str, str]:
        return {"id": self.id, "question": f"{self.question}?", "answer": self.answer}


def rewrapped(question: str) -> str:
    """The same words with other lines, blanks, capitals and markup."""
    own = question.split()
    own[2], own[5], own[-1] = f"<b>{own[2]}</b>", f"**{own[5]}**", own[-1].upper()
    return "\n   ".join(" ".join(own[n : n + 5]) for n in range(0, len(own), 5))


@dataclass
class World:
    """Files below `folder`, and the questions by id."""

    folder: Path
    rng: np.random.Generator
    questions: dict[str, Asked] = field(default_factory=dict)

    def ask(self, name: str, *, is_long: bool = False) -> Asked:
        """A new question; `is_long`: its answer can be searched for alone."""
        found = Asked(name, phrase(self.rng, 20), phrase(self.rng, 11 if is_long else 2))
        self.questions[name] = found
        return found

    def documents(self, count: int, paragraphs: int = 3) -> list[str]:
        return ["\n\n".join(text(self.rng, 2) for _ in range(paragraphs)) for _ in range(count)]

    def plant(self, name: str, form: str, file: str, own: list[str], document: int) -> None:
        """Put a question into a document, in one of FORMS."""
        one = self.ask(name, is_long=form == "answer")
        shown = {"words": rewrapped(one.question), "answer": one.answer}.get(form, one.question)
        left, right = "\n\n", "?\n\n"
        if form == "inside":
            left, right = f" {phrase(self.rng, 9)} ", f"? {phrase(self.rng, 9)}. "
        before = own[document] + left
        one.file, one.document, one.begin, one.end = file, document, len(before), len(before) + len(shown)
        own[document] = before + shown + right + self.documents(1)[0]

    def write(self, name: str, rows: list[dict[str, str]]) -> str:
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def texts(self, name: str, own: list[str]) -> str:
        return self.write(name, [{"text": each} for each in own])

    def set(self, name: str, *ids: str) -> str:
        """A file with these questions; none = all."""
        chosen = [self.questions[each] for each in ids] if ids else [*self.questions.values()]
        return self.write(name, [one.row() for one in chosen])

    def training(self, name: str, *forms: str) -> str:
        """A small file of documents, with a question in each form: `<name>-<form>`."""
        own = self.documents(14)
        for number, form in enumerate(forms):
            self.plant(f"{name}-{form}", form, f"{name}.jsonl", own, 2 * number + 1)
        return self.texts(f"{name}.jsonl", own)

    def long(self) -> str:
        """More text than a short training reads: `long-<document>`, `twice-<number>`."""
        own = self.documents(MANY, 5)
        for number in range(MANY):
            self.plant(f"long-{number}", FORMS[number % 4], "long.jsonl", own, number)
        own += self.documents(TWICE, 5)
        for number in range(TWICE):
            self.plant(f"twice-{number}", "verbatim", "long.jsonl", own, MANY + number)
            asked = self.questions[f"twice-{number}"]
            own[MANY + number] += f"\n\n{asked.question}?\n\n"
            asked.again = len(own[MANY + number]) - 3 - len(asked.question)
            own[MANY + number] += self.documents(1)[0]
        return self.texts("long.jsonl", own)

    def labels(self) -> str:
        """80 labelled examples, 8 of them with a question: `label-<line>`."""
        rows = [
            {"prompt": f"{phrase(self.rng, 24)} is", "completion": f" {word}"} for word in ("ba", "do") * 40
        ]
        for number in range(0, 80, 10):
            one = self.ask(f"label-{number}")
            rows[number]["prompt"] = f"{phrase(self.rng, 4)} {one.question}? is"
            one.file, one.document = "labels.jsonl", number
        return self.write("labels.jsonl", rows)


def world(folder: Path, seed: int = 3) -> World:
    return World(folder, np.random.default_rng(seed))

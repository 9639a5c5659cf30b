"""Evaluate models of a flow on evaluation sets and labelled examples; search their training text for the
questions (audit).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atelier.engine.config.data import Score
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.evaluation_set import KIND, Pose
from atelier.engine.config.exam import Examine
from atelier.engine.io.evaluation_files import find, is_source
from atelier.infra.dag import Reference
from atelier.infra.report.audit_routes import unseen_and_corpora
from atelier.infra.report.notes import ON
from atelier.infra.store.existing_model import store_in_use
from atelier.tasks.audit import audit
from atelier.tasks.examine import examine as examine_model
from atelier.tasks.index_words import index_words
from atelier.tasks.pose import pose_all, pose_held_out
from atelier.tasks.score import score as score_models

OF_CORPUS = "corpus:"  # prefix of a word for the held-out documents of a corpus


def posed(evals: list[str], pose: Pose) -> dict[str, Reference]:
    """The sets by name. A word is a source, `corpus:<name>` for the held-out documents of a corpus, or a set
    of the store. Raises ConfigError if none is named, and for unknown ones.
    """
    if not evals:
        raise ConfigError(
            "evals", "is empty", "name evaluation sets: evals=[mytask.yaml,boolq], files or of conf/questions"
        )
    found: dict[str, Reference] = {}
    for word in evals:
        if word.startswith(OF_CORPUS):
            corpus = _known(word.removeprefix(OF_CORPUS), "corpus")
            made = {f"{corpus.name}-text": pose_held_out(corpus, pose)}
        elif is_source(word):
            made = pose_all([word], pose)
        else:
            known = _known(word, KIND)
            made = {known.name: known}
        if both := found.keys() & made.keys():
            raise ConfigError(
                "evals", f"two sets are called {', '.join(sorted(both))}", "leave one out, or rename its file"
            )
        found |= made
    return found


def _known(word: str, kind: str) -> Reference:
    """An artifact of the store. Raises ConfigError, which for a set also names the sources."""
    try:
        record = store_in_use().resolve(word, kind)
    except AtelierError as error:
        if kind == KIND:
            find(word, "", (), "evals")  # raises with the nearest name
        raise ConfigError("evals", str(error)) from None
    return Reference(kind=record.kind, fingerprint=record.fingerprint, name=record.name, node="")


@dataclass(frozen=True)
class Evals:
    """The sets that a flow asks of a model which it trains."""

    words: list[str]
    pose: Pose
    examine: Examine

    def of(
        self, model: Reference, trained: int, corpora: Iterable[Reference]
    ) -> tuple[dict[str, Reference], dict[str, Reference]]:
        """The model's exams by set, and its audit by its name; nothing without sets. `trained`: tokens of
        the rows that it was trained on; `corpora`: its text.
        """
        if not self.words:
            return {}, {}
        sets = posed(self.words, self.pose)
        exams = examine_model(model, sets, self.examine, trained=trained)
        return exams, {model.name: audited(model, asked(self.words, self.pose, sets), corpora)}


def asked(words: list[str], pose: Pose, known: Mapping[str, Reference] | None = None) -> dict[str, Reference]:
    """The sets as they are searched for: without solved examples. Those of `known` are not made again."""
    plain = pose.model_copy(update={"shots": (0,), "draws": 1})
    names = {
        word: f"{find(word, pose.data, pose.allow, 'evals', 0).name}.0" for word in words if is_source(word)
    }
    found = {name: known[name] for name in names.values() if known and name in known}
    rest = [word for word in words if names.get(word) not in found]
    return found | (posed(rest, plain) if rest else {})


def audited(model: Reference, sets: dict[str, Reference], corpora: Iterable[Reference] = ()) -> Reference:
    """The audit of a model, with an index of the words of each corpus on a route to it. `corpora`: those of a
    model that is trained in this flow, which has no record yet.
    """
    store = store_in_use()
    record = store.find(model.kind, model.fingerprint)
    unseen, known = unseen_and_corpora(store, record) if record is not None else ((), [])
    every = {each.fingerprint: each for each in [*corpora, *known]}
    indices = {fp: index_words(fp[:8], corpus) for fp, corpus in sorted(every.items())}
    return audit(model, sets, indices, unseen)


def scored(
    own: str,
    models: Mapping[str, Reference],
    exams: Mapping[str, Reference],
    *,
    settings: Score,
    tokens: Reference | None,
    tokenizer: Reference,
    unasked: str = "",
    name: str = "score",
) -> dict[str, Reference]:
    """The scores of models by key `<own>/<model>`, and `<own> on <examples>/<model>` for other examples than
    the first, whose name is ''. `unasked`: key of a model that was not tuned; `name`: of the task.
    """
    scores: dict[str, Reference] = {}
    for examples, labels in exams.items():
        title = f"{own}{ON}{examples}" if examples else own
        scores |= score_models(
            {},
            {f"{title}/{key}": model for key, model in models.items()},
            settings=settings,
            tokens=tokens,
            tokenizer=tokenizer,
            labels=labels,
            shots={f"{title}/{unasked}": 0} if unasked else {},
            name=f"{name}.{examples}" if examples else name,
        )
    return scores

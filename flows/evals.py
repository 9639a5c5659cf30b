"""Evaluation sets of a flow, exams of its models on them, and audits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.evaluation_set import KIND, Pose
from atelier.engine.config.exam import Examine
from atelier.engine.io.evaluation_files import find, is_source
from atelier.infra.dag import Reference
from atelier.infra.report.audit_routes import unseen_and_corpora
from atelier.infra.store.existing_model import store_in_use
from atelier.tasks.audit import audit
from atelier.tasks.examine import examine as examine_model
from atelier.tasks.index_words import index_words
from atelier.tasks.pose import pose_all


def posed(evals: list[str], pose: Pose) -> dict[str, Reference]:
    """The sets by name; a word that is no source may name a set of the store. Raises ConfigError if none is
    named.
    """
    if not evals:
        raise ConfigError(
            "evals",
            "is empty",
            "name evaluation sets: evals=[mytask.yaml,boolq], files or of conf/questions",
        )
    known = {word: found for word in evals if not is_source(word) and (found := _known(word)) is not None}
    return pose_all([word for word in evals if word not in known], pose) | {
        one.name: one for one in known.values()
    }


def _known(word: str) -> Reference | None:
    try:
        record = store_in_use().resolve(word, KIND)
    except AtelierError:
        return None
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
    found: dict[str, Reference] = {}
    for word in words:
        name = f"{find(word, pose.data, pose.allow, 'evals', 0).name}.0" if is_source(word) else ""
        found |= {name: known[name]} if known and name in known else posed([word], plain)
    return found


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

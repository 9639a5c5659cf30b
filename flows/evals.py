"""Evaluation sets of a flow, and audits of its models."""

from collections.abc import Iterable

from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.evaluation_set import KIND, Pose
from atelier.engine.io.evaluation_files import is_source
from atelier.infra.dag import Reference
from atelier.infra.report.audit_routes import unseen_and_corpora
from atelier.infra.store.existing_model import store_in_use
from atelier.tasks.audit import audit
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

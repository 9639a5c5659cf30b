"""mtnlg: curate a corpus from several sources and pretrain a model on their blend (MT-NLG 530B, 2201.11990):
filters, near-duplicates, decontamination, exact blend; a verdict for every document; zero-, one- and few-shot
questions, and an audit of what was read of them.

atelier mtnlg experiment=tiny
atelier explain stdlib-prose --sample 5
"""

from atelier.engine.config.base import Name
from atelier.engine.config.data import Data, Score, Tokenizer
from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation_set import Pose
from atelier.engine.config.exam import Examine
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import Model, Objective, Optim
from atelier.engine.config.train import Train
from atelier.flows.evals import Evals
from atelier.flows.pretrain import one_model


def mtnlg(
    model: Model,
    objective: dict[str, Objective],
    optim: Optim,
    data: Data,
    tokenizer: Tokenizer,
    train: Train,
    parallel: Parallel,
    score: Score,
    evals: list[str],
    pose: Pose,
    examine: Examine,
    name: Name = "model",
) -> None:
    if data.curation is None:
        raise ConfigError(
            "data.curation", "is null, but this flow curates", "atelier pretrain trains without"
        )
    asked = Evals(evals, pose, examine)
    one_model(
        model, objective, optim, data, tokenizer, train, parallel, score, name, "", title="mtnlg", evals=asked
    )

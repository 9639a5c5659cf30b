"""The role that flow titan trains before all others."""

from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.infra.dag import Node
from atelier.infra.store.store import Store

TINY = ("experiment=tiny", "tracker=none")


def ahead(root: Path, *words: str) -> Node:
    nodes = collect_nodes(compose("titan", [*TINY, *words]), Store(str(root)))
    return next(node for node in nodes if node.name == "train.ahead")


def test_the_teacher_may_first_learn_from_plain_text_alone(tmp_path: Path) -> None:
    [(name, role)] = ahead(tmp_path, "ahead=teacher", "ahead.steps=8").training.roles.items()
    assert name == "teacher" and {key: spec.kind for key, spec in role.objective.items()} == {"lm": "lm"}


def test_without_an_objective_of_its_own_a_role_keeps_what_needs_neither_teacher_nor_imitations(
    tmp_path: Path,
) -> None:
    [(name, role)] = ahead(tmp_path, "ahead=assistant").training.roles.items()
    assert name == "assistant" and {"document", "mlm", "control"} <= role.objective.keys()
    assert not {"natural", "logits", "attention"} & role.objective.keys()


def test_the_setting_of_the_paper_trains_the_assistant_ahead() -> None:
    arguments: Any = compose("titan", ["experiment=titan_260b", "pool=h200"]).arguments
    assert (arguments.ahead.role, arguments.ahead.steps) == ("assistant", 500_000)


def test_its_objectives_have_one_order(tmp_path: Path) -> None:
    more = ("+ahead.objective.document.kind=document", "+ahead.objective.document.rows=0.5")
    [role] = ahead(tmp_path, "ahead=teacher", *more).training.roles.values()
    assert list(role.objective) == ["document", "lm"]


@pytest.mark.parametrize(
    ("kind", "needs"), [("natural", "imitations"), ("logits", "a teacher"), ("attention", "a teacher")]
)
def test_what_needs_a_teacher_or_imitations_is_refused(tmp_path: Path, kind: str, needs: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"ahead\.objective\.{kind}: {kind} needs {needs}, and there is none yet"
    ):
        ahead(tmp_path, "ahead=assistant", f"+ahead.objective.{kind}.kind={kind}")


def test_a_kinds_name_is_for_an_objective_of_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lm has kind document"):
        ahead(tmp_path, "ahead=assistant", "+ahead.objective.lm.kind=document")


def test_an_objective_that_the_role_cannot_have_alone_is_one_message(tmp_path: Path) -> None:
    given = "{kind: mlm, rows: 0.5, schedule: {kind: lead, nats: 0.3}}"
    with pytest.raises(ConfigError, match=r"^ahead: .*objective mlm follows a teacher's lead"):
        ahead(tmp_path, f"+ahead.objective.mlm={given}")


def test_only_roots_are_judged_by_their_heads_and_only_with_rows_to_judge_on(tmp_path: Path) -> None:
    def judged(*words: str) -> set[str]:
        nodes = collect_nodes(compose("titan", [*TINY, *words]), Store(str(tmp_path)))
        [scoring] = [node for node in nodes if node.name == "score"]
        return {key for key, product in scoring.products.items() if "heads" in product.identity}

    assert judged() == {"teacher", "baselines"} and judged("score.rows=0") == set()


def test_alone_it_may_learn_at_other_rates_than_later(tmp_path: Path) -> None:
    [own] = ahead(tmp_path, "~ahead.optim").training.roles.values()
    [other] = ahead(tmp_path, "ahead.optim.lr=7e-3").training.roles.values()
    assert (own.optim.lr, other.optim.lr) == (2e-3, 7e-3)

"""Which nodes a changed key of a past run changes, for every task of titan and mtnlg; what is refused."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from atelier.engine.config.error import AtelierError, ConfigError
from atelier.flows.cli.main import run
from atelier.flows.run.plan import make_plan
from atelier.flows.run.rerun import first_before, merged, rerun
from atelier.infra.dag import Node
from atelier.infra.store.lease import Holder
from atelier.infra.store.run_manifest import RunManifest, read_manifest, write_manifest
from atelier.infra.store.store import Store
from tests.flows.run.past_runs import KEYS, PAST, TINY, past


@dataclass(frozen=True)
class Past:
    """A past run and the flow as it was, with its edges."""

    store: Store
    manifest: RunManifest
    nodes: list[Node]

    def before(self, name: str) -> set[str]:
        """All that the task waits for, by the edges alone."""
        waits = {node.name: node.waits for node in self.nodes}
        found, left = set[str](), [*waits[name]]
        while left:
            if (one := left.pop()) not in found:
                found.add(one)
                left += waits[one]
        return found

    def changed_by(self, key: str) -> list[str]:
        """The first tasks that the key changes and those that take something from one of them."""
        first = KEYS[self.manifest.flow][key]
        prints = {p.fingerprint for n in self.nodes if n.name in first for p in n.products.values()}
        found = set(first)
        for node in self.nodes:
            mine = {fp for p in node.products.values() for fp in {**p.parents, **p.detail_parents}.values()}
            if mine & prints:
                found.add(node.name)
            if node.name in found:
                prints |= {p.fingerprint for p in node.products.values()}
        return [node.name for node in self.nodes if node.name in found]


@pytest.fixture(scope="module")
def pasts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Past]:
    found = {}
    for flow in KEYS:
        store = Store(str(tmp_path_factory.mktemp(flow)))
        os.environ["ATELIER_ROOT"] = store.root
        found[flow] = Past(store, *past(store, flow, *TINY))
    return found


@pytest.fixture
def titan(pasts: dict[str, Past], monkeypatch: pytest.MonkeyPatch) -> Past:
    monkeypatch.setenv("ATELIER_ROOT", pasts["titan"].store.root)
    return pasts["titan"]


@pytest.mark.parametrize(("flow", "key"), [(flow, key) for flow in KEYS for key in KEYS[flow]])
def test_a_key_changes_what_uses_it_and_what_follows_and_is_refused_before_from(
    pasts: dict[str, Past], monkeypatch: pytest.MonkeyPatch, flow: str, key: str
) -> None:
    one = pasts[flow]
    monkeypatch.setenv("ATELIER_ROOT", one.store.root)
    found = rerun(one.store, PAST, [key])
    expected = one.changed_by(key)
    assert set(found.changed) >= KEYS[flow][key] and set(found.changed) <= set(expected)
    unchanged = {node.name for node in one.nodes} - set(found.changed)
    own = {node.name: node.products for node in one.nodes}
    assert all(node.products == own[node.name] for node in found.nodes if node.name in unchanged)
    assert found.frozen.rerun is not None and found.frozen.rerun.run == PAST
    for node in one.nodes:  # --from every task of the flow
        wrong = one.before(node.name) & set(found.changed)
        first = first_before(found.nodes, found.changed, node.name)
        assert (first.name if first else "") == next((n.name for n in one.nodes if n.name in wrong), "")


@pytest.mark.slow
@pytest.mark.parametrize(("flow", "key"), [(flow, key) for flow in KEYS for key in KEYS[flow]])
def test_from_every_task_a_key_is_taken_or_refused_with_the_task_that_it_changes(
    pasts: dict[str, Past], monkeypatch: pytest.MonkeyPatch, flow: str, key: str
) -> None:
    one = pasts[flow]
    monkeypatch.setenv("ATELIER_ROOT", one.store.root)
    changed = rerun(one.store, PAST, [key]).changed
    for node in one.nodes:
        wrong = one.before(node.name) & set(changed)
        if not wrong:
            assert rerun(one.store, PAST, [key], node.name).changed == changed
            continue
        with pytest.raises(ConfigError) as refused:
            rerun(one.store, PAST, [key], node.name)
        first = next(each.name for each in one.nodes if each.name in wrong)
        assert f"{key} changes {first}, which is before {node.name}" in str(refused.value)
        assert f"--from {first}, or" in str(refused.value)
        assert rerun(one.store, PAST, [key], first).changed == changed  # the way out is one


@pytest.mark.parametrize(
    ("key", "task", "first"),
    [
        ("data.held_out=0.2", "register", "curate"),
        ("roles.student_b.optim.lr=0.003", "report", "train"),
        ("finetune.epochs=3", "score.labels", "finetune.teacher"),
    ],
)
def test_a_key_that_changes_a_task_before_from_is_refused_with_both(
    titan: Past, key: str, task: str, first: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        rerun(titan.store, PAST, [key], task)
    way_out = f"--from {first}, or without --from all that changes is made"
    assert (
        str(refused.value) == f"rerun --from {task}: {key} changes {first}, which is before {task}; {way_out}"
    )
    assert first in rerun(titan.store, PAST, [key], first).changed


@pytest.mark.parametrize("flow", list(KEYS))
def test_without_new_keys_nothing_changes_from_any_task(
    pasts: dict[str, Past], monkeypatch: pytest.MonkeyPatch, flow: str
) -> None:
    one = pasts[flow]
    monkeypatch.setenv("ATELIER_ROOT", one.store.root)
    found = rerun(one.store, PAST)
    assert found.changed == [] and not found.notes
    assert found.frozen.document == one.manifest.config and found.frozen.overrides == TINY


def test_of_several_keys_the_one_that_changes_an_earlier_task_is_named(titan: Past) -> None:
    with pytest.raises(ConfigError) as refused:
        rerun(titan.store, PAST, ["score.max_tokens=300", "finetune.epochs=3"], "score.labels")
    assert str(refused.value).startswith(
        "rerun --from score.labels: finetune.epochs=3 changes finetune.teacher"
    )


def test_new_words_take_the_place_of_those_of_their_keys() -> None:
    own = [
        "experiment=tiny",
        "train.steps=40",
        "++optim.lr=0.1",
        "resume.fresh=[train]",
        "resume.accept_code=true",
    ]
    assert merged(own, ["optim.lr=0.2", "train.tokens=4000"]) == [
        "experiment=tiny",
        "optim.lr=0.2",
        "train.tokens=4000",
    ]
    assert merged(own, ["experiment=laptop"]) == ["train.steps=40", "++optim.lr=0.1", "experiment=laptop"]


def test_a_task_that_the_flow_no_longer_has_is_refused_with_those_it_has(titan: Past) -> None:
    with pytest.raises(
        ConfigError, match=r"the flow titan no longer has the task train.controls with score.con"
    ):
        rerun(titan.store, PAST, ["score.controls=false"], "train.controls")
    with pytest.raises(
        ConfigError, match=r"rerun --from: no task scores; did you mean score\? there are: curate"
    ):
        rerun(titan.store, PAST, [], "scores")
    rows = titan.manifest.tasks
    gone = rows[0].model_copy(update={"name": "weigh", "key": "corpus"})
    write_manifest(titan.store, titan.manifest.model_copy(update={"id": "old", "tasks": (*rows, gone)}))
    with pytest.raises(ConfigError, match="the flow titan no longer has the task weigh; there are: curate"):
        rerun(titan.store, "old", [], "weigh")


def test_a_run_that_is_unknown_ambiguous_active_or_damaged_is_refused(titan: Past) -> None:
    with pytest.raises(ConfigError, match="rerun: no run 2031; `atelier runs --all` lists them"):
        rerun(titan.store, "2031")
    past(titan.store, "titan", *TINY, run_id="20261129-064500-ffffff")
    with pytest.raises(ConfigError, match=r"2 runs are called 20261129; give one's id: .*1a2b3c, .*ffffff"):
        rerun(titan.store, "20261129")
    assert rerun(titan.store, "1a2b3c").past.id == PAST
    active = titan.manifest.model_copy(
        update={"id": "active", "status": "running", "ended": None, "holder": vars(Holder.me())}
    )
    write_manifest(titan.store, active)
    with pytest.raises(ConfigError, match="run active is still running; wait for it, or stop it first"):
        rerun(titan.store, "active")
    place = Path(titan.store.root) / "runs" / "torn.json"
    place.write_text("{")
    with pytest.raises(AtelierError, match=r"torn.json"):
        rerun(titan.store, "torn")
    place.unlink()


def test_a_run_of_another_machine_that_has_no_end_is_run_again_with_a_note(titan: Past) -> None:
    holder = vars(Holder.me()) | {"host": "elsewhere"}
    update = {"id": "remote", "status": "running", "ended": None, "holder": holder}
    write_manifest(titan.store, titan.manifest.model_copy(update=update))
    assert "it may be active on its machine (elsewhere)" in rerun(titan.store, "remote").notes[0]


def test_a_flow_or_an_option_that_no_longer_exists_is_refused_with_the_run(titan: Past) -> None:
    update = {"id": "flowless", "flow": "titen"}
    write_manifest(titan.store, titan.manifest.model_copy(update=update))
    with pytest.raises(ConfigError, match=r"rerun flowless: .*titen.*did you mean titan"):
        rerun(titan.store, "flowless")
    own = (*TINY, "model@roles.teacher.model=gone_nano")
    write_manifest(titan.store, titan.manifest.model_copy(update={"id": "optionless", "overrides": own}))
    with pytest.raises(ConfigError, match=r"rerun optionless: .*gone_nano"):
        rerun(titan.store, "optionless")
    assert rerun(
        titan.store, "optionless", ["model@roles.teacher.model=ernie_nano"]
    ).nodes  # new words mend it


def test_a_default_of_conf_that_has_changed_since_stays_as_it_was(titan: Past) -> None:
    """The run's words left the vocabulary to conf/, which then said 600."""
    past(titan.store, "titan", *TINY, "tokenizer.vocab=600", run_id="older")
    older = read_manifest(titan.store, "older")
    write_manifest(titan.store, older.model_copy(update={"overrides": TINY}))
    found = rerun(titan.store, "older", ["score.max_tokens=300"])
    assert found.notes == ["tokenizer.vocab=600 as in run older: it would now be 512"]
    assert found.changed == ["score", "report"]
    assert "tokenizer.vocab=600" in found.frozen.overrides


def test_an_input_whose_content_has_changed_is_named_before_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    text = tmp_path / "text.txt"
    text.write_text("a first text\n" * 50)
    store = Store(str(tmp_path / "store"))
    past(store, "pretrain", *TINY, f"data.source={text}")
    time.sleep(0.01)
    text.write_text("another text now\n" * 50)
    with pytest.raises(ConfigError) as refused:
        rerun(store, PAST, ["score.max_tokens=300"], "score")
    assert f"curate, which is before score, is another one now than in run {PAST}" in str(refused.value)
    assert "content differs" in str(refused.value)
    assert "curate" in rerun(store, PAST).changed  # without --from it is made


def test_a_dry_run_prints_the_plan_and_changes_nothing(
    titan: Past, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(Path(titan.store.root).rglob("*"))
    assert run(["rerun", PAST, "--dry-run", "--json", "--from", "score", "score.max_tokens=300"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rerun_of"], found["changed"]) == (PAST, ["score", "report"])
    assert found["command"] == "atelier titan experiment=tiny tracker=none score.max_tokens=300"
    plan = make_plan(rerun(titan.store, PAST, ["score.max_tokens=300"]).frozen, titan.store)
    assert found["plan"]["totals"]["artifacts"] == len(plan.rows)
    assert run(["rerun", PAST, "--dry-run"]) == 0
    assert f"again    run {PAST}: atelier titan experiment=tiny tracker=none\n" in capsys.readouterr().out
    assert sorted(Path(titan.store.root).rglob("*")) == files


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "--verify train.seed=2",
            "rerun --verify: compares what the run made, and train.seed=2 would make another",
        ),
        ("--verify --dry-run", "leave one out"),
        ("--json", "rerun --json: a run prints its progress; add --dry-run or --verify"),
        ("train.sede=2", "did you mean seed"),
        ("--form score", "did you mean --from?"),
    ],
)
def test_words_that_do_not_fit_are_refused_in_one_line(
    titan: Past, capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    assert run(["rerun", PAST, *words.split()]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert says in line


def test_a_run_names_the_one_that_it_ran_again_where_runs_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    store = Store(str(tmp_path))
    past(store, "pretrain", *TINY)
    assert run(["runs"]) == 0 and "again" not in capsys.readouterr().out
    past(store, "pretrain", *TINY, run_id="20261129-070000-ffffff", rerun_of=PAST)
    assert run(["runs", "--json"]) == 0
    assert [row["rerun_of"] for row in json.loads(capsys.readouterr().out)] == ["", PAST]
    assert run(["runs"]) == 0 and "again" in capsys.readouterr().out
    assert run(["runs", "ffffff"]) == 0 and f"again    run {PAST}" in capsys.readouterr().out

"""The site of each task of a flow, and refusals before anything runs."""

import random
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.sites import Sites
from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes, placed_nodes
from atelier.flows.run.over_sites import Placement, SiteHere, decided_at, place, shares
from atelier.flows.run.plan import make_plan
from atelier.flows.run.site_rows import over_budget
from atelier.infra.dag import Node
from atelier.infra.store.store import Store

HERE = SiteHere("a", "/mail")
LOOPBACK = ("experiment=tiny", "train.link.every=6", "sites.loopback=true")
ELASTIC = ("train.link.membership.kind=elastic",)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    return tmp_path


def node(name: str, *waits: str) -> Node:
    return Node(name=name, task="score", products={}, waits=waits)


def drawn(seed: int) -> tuple[list[Node], Sites]:
    """A DAG, and which of its tasks are named to run at which site."""
    draw = random.Random(seed)
    nodes: list[Node] = []
    for number in range(draw.randint(2, 9)):
        before = [each.name for each in nodes]
        nodes.append(node(f"n{number}", *draw.sample(before, min(len(before), draw.randint(0, 3)))))
    names = ("a", "b", "c")[: draw.choice((2, 3))]
    at = {each.name: draw.choice(names) for each in draw.sample(nodes, draw.randint(0, len(nodes)))}
    return nodes, Sites(names=names, at=at)


def expected(nodes: list[Node], sites: Sites) -> dict[str, set[str]]:
    """The sites of each task: the one that it is named for; else those of the tasks that need it, home where
    none does.
    """

    def of(name: str) -> set[str]:
        if name in sites.at:
            return {sites.at[name]}
        return set[str]().union(*(of(each.name) for each in nodes if name in each.waits)) or {HERE.name}

    return {each.name: of(each.name) for each in nodes}


def refusal(nodes: list[Node], sites: Sites) -> str:
    """Of what a placement is refused, '' = of nothing: a task of another site lacks what it needs there, or a
    site has no task. Home gets files.
    """
    where = expected(nodes, sites)
    for each in nodes:
        if any(where[each.name] - where[waited] - {HERE.name} for waited in each.waits):
            return f"{each.name} needs"
    idle = [name for name in sites.names if name not in set[str]().union(*where.values())]
    return f"{idle[0]} has nothing to do" if idle else ""


@pytest.mark.parametrize("seed", range(60))
def test_each_task_has_what_it_needs_at_its_site(seed: int) -> None:
    """Drawn DAGs and drawn `sites.at`: what is placed finds all that it waits for at its own site, each task
    runs somewhere, one that is named runs there alone; or the placement is refused, with a way out, where it
    cannot be so.
    """
    nodes, sites = drawn(seed)
    if why := refusal(nodes, sites):
        with pytest.raises(ConfigError, match=why) as error:
            place(nodes, sites, HERE)
        assert error.value.place.startswith("sites") and "sites.at={" in error.value.way_out
        return
    found = place(nodes, sites, HERE)
    by_site = {"a": found.here, **found.there}
    for site, those in by_site.items():
        there = {each.name for each in those}
        if site != "a":  # to home come files
            assert all(waited in there for each in those for waited in each.waits)
        assert all(sites.at.get(each.given_name, site) == site for each in those)
    placed = {site: {each.given_name for each in those} for site, those in by_site.items()}
    where = expected(nodes, sites)
    assert placed == {site: {name for name in where if site in where[name]} for site in sites.names}


def test_draws_are_accepted_and_refused_for_either_reason() -> None:
    whys = [refusal(*drawn(seed)) for seed in range(60)]
    counts = [whys.count(""), sum("needs" in why for why in whys), sum("nothing" in why for why in whys)]
    assert min(counts) >= 10, counts


def sites_of(found: Placement) -> dict[str, list[str]]:
    return {"a": [each.name for each in found.here]} | {
        site: [each.name for each in nodes] for site, nodes in found.there.items()
    }


def test_a_training_runs_at_all_sites_and_so_does_what_it_needs(root: Path) -> None:
    frozen = compose("pretrain", [*LOOPBACK, "sites.names=[a,b]", "score.baselines=false"])
    found = sites_of(placed_nodes(frozen, Store(str(root))))
    assert {*found["a"]} == {
        "curate", "learn_tokenizer", "encode", "train", "score", "register", "report"
    }  # fmt: skip
    assert found["b"] == ["curate@b", "learn_tokenizer@b", "encode@b", "train@b"]
    alone = compose(
        "pretrain",
        ["experiment=tiny", "train.link.every=6", "train.link.rows={a:4,b:4}", "train.link.site=b",
         "train.link.mailbox=/mail", "score.baselines=false"],
    )  # fmt: skip
    same = {each.name: each.products for each in collect_nodes(alone, Store(str(root)))}
    for each in placed_nodes(frozen, Store(str(root))).there["b"]:
        assert each.products == same[each.given_name]  # as if it had been typed there


def test_rows_are_shared_as_equally_as_can_be() -> None:
    assert shares(8, ("b", "a")) == {"a": 4, "b": 4} and shares(8, ("c", "a", "b")) == {
        "a": 3,
        "b": 3,
        "c": 2,
    }
    with pytest.raises(ConfigError, match="is 1, for 2 sites"):
        shares(1, ("a", "b"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("sites.names=[a]",), "sites: [a]: a run at one site needs no sites"),
        (("sites.names=[a,any]",), "no site may be called any: this word has another meaning"),
        (("sites.names=[a,a]",), "sites: [a,a] has a name twice"),
        (("sites.names=[a,B]",), "sites.names"),
        (("sites.at={train:b}",), "sites.at.train: b is not one of the sites; name them with sites=[a,b]"),
        (
            ("sites.names=[a,b]", "sites.mbps={c:5}"),
            "sites.mbps: c is not one of the sites; sites: [a,b]",
        ),
        (("sites.names=[a,b]", "sites.at={train:c}"), "sites.at.train: c is not one of the sites; "),
        (("sites.names=[a,b]", "sites.at={trian:b}", "train.link.rows={a:4,b:4}"), "did you mean train?"),
        (("sites.names=[a,b]", "train.link.rows={a:4,c:4}"), "c is not one of sites"),
        (("sites.names=[a,b,c]", "train.link.rows={a:4,b:4}"), "c has nothing to do"),
        (("sites.names=[a,b]", "train.link.every=7"), "does not divide the 24 steps"),
        (("sites.name=[a,b]",), "sites.name"),
        (
            ("sites.names=[a,b]", "train.link.rows={a:4,b:4}", "sites.at={train:b}"),
            "is at b alone",
        ),
        (("sites.names=[a,b]", "train.link.mailbox=/elsewhere"), "/elsewhere, but the agent's is"),
        (
            ("sites.names=[a,b]", *ELASTIC, "train.link.membership.coordinator=any"),
            "train.link.membership.coordinator: any needs one mailbox that all sites reach, but agents carry"
            " messages between several; leave it out (then a is the coordinator), or name one of [a,b]",
        ),
        (
            ("sites.names=[a,b]", "model.num_experts=4", "model.experts.router.balance=bias"),
            "model.experts.router.balance: bias, whose bias no gradient changes",
        ),
        (
            ("sites.names=[a,b]", "model.num_experts=4", "optim=adamw", "parallel.tiers.experts=disk"),
            "parallel.tiers.experts: disk, and sites cannot exchange the experts of model on disk",
        ),
    ],
)
def test_sites_that_do_not_fit_are_one_line(root: Path, words: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        placed_nodes(compose("pretrain", [*LOOPBACK, *words]), Store(str(root)))
    assert why in str(refused.value) and "\n" not in str(refused.value)


def test_the_coordinator_over_sites_is_home_or_one_that_is_named(root: Path) -> None:
    elastic = [*LOOPBACK, "sites.names=[a,b]", *ELASTIC]
    for words, site in (((), "a"), (("train.link.membership.coordinator=b",), "b")):
        found: Any = compose("pretrain", [*elastic, *words]).document
        assert found["train"]["link"]["membership"]["coordinator"] == site


@pytest.mark.parametrize(
    ("words", "every"),
    [
        ((), 6), (("train.steps=100",), 25), (("train.steps=320",), 40), (("train.steps=1000",), 50),
        (("train.steps=100", "train.link.fragments=5"), 25), (("train.steps=24", "train.link.delay=5"), 6),
    ],
)  # fmt: skip
def test_sites_alone_are_enough(root: Path, words: tuple[str, ...], every: int) -> None:
    found = compose("pretrain", ["experiment=tiny", "sites=[a,b]", "sites.loopback=true", *words])
    assert found.sites.names == ("a", "b") and found.arguments.model_dump()["train"]["link"]["every"] == every


@pytest.mark.parametrize(
    "words", [("train.steps=101",), ("train.link.delay=6",), ("train.link.fragments=7",)]
)
def test_where_no_number_fits_it_is_asked_for(root: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"train.link.every: is not given"):
        compose("pretrain", ["experiment=tiny", "sites=[a,b]", "sites.loopback=true", *words])


def test_a_list_is_all_of_sites(root: Path) -> None:
    """Also where a flow has sites of its own."""
    assert compose("nebula", ["experiment=tiny"]).sites.loopback
    assert not compose("nebula", ["experiment=tiny", "sites=[]"]).sites.names
    given = compose("nebula", ["experiment=tiny", "sites.loopback=true", "sites=[x,y]"]).sites
    assert given.names == ("x", "y") and given.loopback
    with pytest.raises(ConfigError, match=r"has no site; .* or sites\.loopback=true to try it"):
        compose("nebula", ["experiment=tiny", "sites=[x,y]"])
    assert not compose("nebula", ["experiment=tiny"], from_form=True).sites.names


ROLES = "train.link.roles={a:[teacher],b:[student_a]}"


def test_each_site_trains_its_own_roles_and_home_scores_all(root: Path) -> None:
    words = ["experiment=tiny", "score.baselines=false"]
    found = placed_nodes(
        compose("distill", [*words, ROLES, "sites.loopback=true", "sites.names=[a,b]"]), Store(str(root))
    )
    assert sites_of(found)["b"] == ["curate@b", "learn_tokenizer@b", "encode@b", "train.b@b"]
    here, there = {each.name: each for each in found.here}, found.there["b"][-1]
    assert (
        not {"train", "train.b"} & here.keys() and {"train.a", "score", "report", "register"} <= here.keys()
    )
    assert {*here["train.a"].products} == {"teacher"} and {*there.products} == {"student_a"}
    assert {*here["report"].waits} >= {"score"} and "train.b" in here["score"].waits
    for site, node_there in (("a", here["train.a"]), ("b", there)):
        alone = compose("distill", [*words, ROLES, f"train.link.site={site}", "train.link.mailbox=/mail"])
        [same] = [each for each in collect_nodes(alone, Store(str(root))) if each.task == "train"]
        assert node_there.products == same.products  # as if it had been typed there


def test_roles_apart_say_at_which_site_a_run_is(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.link.site=a, or sites=\[a,b\]"):
        compose("distill", ["experiment=tiny", ROLES, "train.link.mailbox=/mail"])
    with pytest.raises(ConfigError, match="c is not one of sites"):
        compose(
            "distill",
            ["experiment=tiny", ROLES.replace("b:", "c:"), "sites.loopback=true", "sites.names=[a,b]"],
        )


def test_sites_without_keys_say_how_to_get_some(root: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ATELIER_SITE", str(root / "keys"))
    with pytest.raises(ConfigError, match="atelier site create"):
        compose("pretrain", ["experiment=tiny", "train.link.every=6", "sites=[a,b]"])


def test_a_plan_has_a_row_for_what_crosses_with_its_bytes_and_its_time(root: Path) -> None:
    """Seconds are bytes by the given rate, which a link carries each way."""
    words = ["experiment=tiny", "sites.loopback=true", "sites.names=[a,b]", "sites.mbps={b:8}"]
    store = Store(str(root))
    plan = make_plan(compose("pretrain", [*words, "train.link.every=6"]), store)
    [row], [cost] = plan.links, plan.links[0]["costs"]
    assert (row["task"], row["role"], row["kind"], row["sites"]) == (
        "train",
        "model",
        "contributions",
        ["a", "b"],
    )
    params = next(each["params"] for each in plan.rows if each["name"] == "train")
    assert 4 * params < cost["bytes"] < 4 * params + 10_000 and cost["sent"] == 4 * cost["bytes"]
    assert cost["seconds"] == pytest.approx(cost["bytes"] / 1e6) and row["messages"] == 4
    assert [(each["site"], each["tasks"]) for each in plan.sites] == [("a", 7), ("b", 4)]
    assert {**plan.document()}.keys() >= {"sites", "links"}
    apart = make_plan(compose("distill", [*words, ROLES]), store)
    [row], [cost] = apart.links, apart.links[0]["costs"]
    assert (row["role"], row["kind"], row["sites"]) == ("teacher", "answers", ["a", "b"])
    assert row["token_bytes"] == 98 and 8 * 64 * 98 < cost["bytes"] < 8 * 64 * 98 + 1000
    assert cost["sent"] == row["messages"] * cost["bytes"] and row["messages"] == 12  # from its start on
    turned = compose("distill", [*words, "train.link.roles={b:[teacher],a:[student_a]}"])
    [row] = make_plan(turned, store).links
    assert row["sites"] == ["b", "a"] and row["mbps"] == {"a": 8.0} and row["costs"][0]["seconds"] > 0


def test_what_would_cross_in_an_hour_beyond_a_policy_is_refused_with_its_numbers(root: Path) -> None:
    words = ["experiment=tiny", "sites.loopback=true", "sites.names=[a,b]", "train.link.every=6"]
    [row] = make_plan(compose("pretrain", words), Store(str(root))).links
    size = row["costs"][0]["bytes"] / 1e9
    row["step_s"] = 0.5  # 1,200 messages an hour, each both ways
    assert [*over_budget([row], "a", {"b": 2 * 1200 * size + 0.01})] == []
    assert [*over_budget([row], "c", {"b": 1e-9})] == [*over_budget([row], "a", {"c": 1e-9})] == []
    [many] = over_budget([row], "a", {"b": 2 * 1200 * size - 0.01})
    assert f"train.model: {2 * 1200 * size:.3g} GB an hour at 0.5 s a step" in many and "link.every" in many
    [large] = over_budget([row], "a", {"b": size / 2})
    assert f"a message of {size:.3g} GB" in large and "atelier site allow b --hourly at a" in large


def test_a_plan_has_a_row_for_what_a_generator_draws_for_another_site(root: Path) -> None:
    words = ["experiment=detector", "sites.loopback=true", "sites.names=[a,b]", ROLES]
    late = ["objective@roles.student_a.objective=replaced", "roles.student_a.objective.replaced.delay=3"]
    [row] = make_plan(compose("distill", [*words, *late, "roles.student_a.start=3"]), Store(str(root))).links
    [cost] = row["costs"]
    assert (row["role"], row["kind"], row["sites"]) == ("teacher", "drawings", ["a", "b"])
    assert (row["messages"], row["token_bytes"]) == (150, 6)
    hidden = round(16 * 64 * 0.15)
    assert hidden * 6 + 16 * 12 < cost["bytes"] < hidden * 6 + 16 * 12 + 500
    assert cost["sent"] == 150 * cost["bytes"]


def test_a_plan_of_one_site_says_nothing_of_sites(root: Path) -> None:
    plan = make_plan(compose("pretrain", ["experiment=tiny"]), Store(str(root)))
    assert not plan.sites and not plan.links


def test_more_fragments_than_blocks_are_refused_by_the_plan(root: Path) -> None:
    words = ["experiment=tiny", "sites.loopback=true", "sites=[a,b]", "train.link.every=6"]
    with pytest.raises(ConfigError, match=r"train.link.fragments: 6, and there are \d blocks"):
        make_plan(compose("pretrain", [*words, "train.link.fragments=6"]), Store(str(root)))


def test_a_rate_is_of_one_of_the_sites(root: Path) -> None:
    with pytest.raises(ConfigError, match="c is not one of"):
        compose("pretrain", ["experiment=tiny", "sites.loopback=true", "sites=[a,b]", "sites.mbps={c:8}"])


def test_who_decides_of_an_elastic_membership_is_one_of_its_sites() -> None:
    """Home where it is one; what was given stays."""
    membership = {"kind": "elastic"}

    def decides(home: str, **more: str) -> str:
        link = {"rows": {"c": 4, "b": 4}, "membership": membership | more}
        found: Any = decided_at({"train": {"link": link}}, home)
        return found["train"]["link"]["membership"]["coordinator"]

    assert (decides("c"), decides("a"), decides("a", coordinator="c")) == ("c", "b", "c")

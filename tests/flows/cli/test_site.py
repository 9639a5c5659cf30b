"""`atelier site`: keys and cards from the command line, and refusals."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from atelier.flows.cli.main import run
from atelier.infra.sites import keys
from atelier.infra.sites.desk import OrderDesk, OrderedProduct, OrderedTask, SiteOrder
from atelier.infra.sites.keys import Keys
from atelier.infra.sites.policy import Policies, SitePolicy


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Sites a and b, with their cards as files."""
    for name in ("a", "b"):
        monkeypatch.setenv("ATELIER_SITE", str(tmp_path / name))
        assert run(["site", "create", name, "--address", "127.0.0.1:7800"]) == 0
        capsys.readouterr()
        assert run(["site", "card"]) == 0
        (tmp_path / f"{name}.json").write_text(capsys.readouterr().out)
    return tmp_path


def test_a_site_is_trusted_by_its_card_until_it_is_revoked(
    cards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["site", "accept", str(cards / "a.json")]) == 0
    card = Keys(cards / "a").card
    assert card.digest[:32] in capsys.readouterr().out
    assert run(["site", "peers"]) == 0
    until = f"{card.end:%Y-%m-%d}"
    assert capsys.readouterr().out.split() == ["a", card.digest[:32], "until", until, "127.0.0.1:7800"]
    assert run(["site", "revoke", "a"]) == 0 and run(["site", "peers"]) == 0
    said = capsys.readouterr()
    assert said.out == "" and "no site is trusted yet: atelier site accept" in said.err


def test_a_site_that_was_revoked_has_no_policy_when_it_is_accepted_again(
    cards: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where revoking was cut off."""
    trust = ["site", "accept", str(cards / "a.json")]
    for is_cut_off in (False, True):
        assert run(trust) == run(["site", "allow", "a", "--tasks", "all"]) == 0
        with monkeypatch.context() as patch:
            if is_cut_off:
                patch.setattr(Path, "unlink", once(Path.unlink))
            assert run(["site", "revoke", "a"]) == (1 if is_cut_off else 0)
        assert run(trust) == 0 and not Policies(cards / "b").has("a")
    assert run(["site", "revoke", "../policy/a"]) == 2


def once(work: Callable[..., None]) -> Callable[..., None]:
    """What does its work once, and then fails."""
    calls = list[object]()

    def fail_then(*words: object, **more: object) -> None:
        calls.append(words)
        if len(calls) > 1:
            raise OSError("killed")
        work(*words, **more)

    return fail_then


def test_orders_are_listed_as_a_terminal_may_show_them(
    cards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "train\x1b[2J"
    product = OrderedProduct(kind="model", fingerprint="0" * 64)
    about: dict[str, Any] = {"act": "run", "home": "a", "site": "b", "flow": "pretrain"}
    tasks = {name: OrderedTask(task="train", products={"m": product})}
    OrderDesk(str(Keys(cards / "b").mailbox)).put(
        SiteOrder.of(**about, document={}, tasks=tasks, version="1")
    )
    assert run(["site", "orders"]) == 0
    said = capsys.readouterr().out
    assert "train\\x1b[2J" in said and "\x1b" not in said and len(said.splitlines()) == 1


def test_accept_prints_the_digest_and_the_address_that_card_prints_at_the_other_site(
    cards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["site", "card", "--keys", str(cards / "a")]) == 0
    there = capsys.readouterr().err.strip().removeprefix("a: ")
    assert there.startswith("certificate ") and there.endswith(", 127.0.0.1:7800")
    assert run(["site", "accept", str(cards / "a.json")]) == 0
    trusted, allowed = capsys.readouterr().out.splitlines()
    assert trusted == f"a is trusted: {there}" and allowed.startswith("a: runs no task here")


def test_another_certificate_of_a_site_is_trusted_only_in_place_of_the_one_before(
    cards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody else may have called his site so: what the first one is allowed is not his."""
    assert run(["site", "accept", str(cards / "a.json")]) == 0
    assert run(["site", "allow", "a", "--tasks", "train"]) == 0
    before = Keys(cards / "a").card
    assert run(["site", "rotate", "--keys", str(cards / "a"), "--address", "127.0.0.1:7801"]) == 0
    assert "with --replace" in capsys.readouterr().out
    (cards / "a.json").write_bytes((new := Keys(cards / "a").card).text)
    assert new.address == "127.0.0.1:7801"
    assert run(["site", "accept", str(cards / "a.json")]) == 2
    said = capsys.readouterr().err
    assert before.digest[:32] in said and new.digest[:32] in said and "--replace" in said
    assert Keys(cards / "b").peers["a"] == before
    assert run(["site", "accept", str(cards / "a.json"), "--replace"]) == 0
    assert "a: runs train here" in capsys.readouterr().out
    assert Keys(cards / "b").peers["a"] == new


def test_a_card_whose_certificate_has_ended_is_not_trusted(
    cards: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keys, "now", lambda: datetime.now(UTC) + timedelta(days=keys.DAYS + 1))
    assert run(["site", "accept", str(cards / "a.json")]) == 2
    said = capsys.readouterr().err
    assert "the certificate of a is not valid now" in said and "atelier site rotate at a" in said


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("serv",), "site: no act 'serv'; did you mean serve?"),
        (("create", "B!"), "'B!' is not a site name"),
        (("create", "any"), "'any' is not a site name"),
        (("create", "bucket"), "'bucket' is not a site name"),
        (("accept", "any.json"), "any.json: not a site's card (site: Value error, no site may be called any"),
        (("create", "b"), "has a key already; site rotate makes a new one"),
        (("create",), "site create: an argument is missing; give the site's name"),
        (("accept", "nowhere.json"), "nowhere.json cannot be read"),
        (("accept", "../b.json"), "is of b, the name of this site"),
        (("accept", "key.pem"), "key.pem: "),
        (
            ("create", "c", "--address", "nowhere"),
            "--address: is not a site address; give host:port, or the URL",
        ),
        (("create", "c", "--address", "s3://me:secret@b/x"), "without credentials, which are taken from the"),
        (("create", "c", "--address", "file:///a/../etc"), "--address: is not a site address"),
        (("create", "c", "--address", "zip://a::s3://b"), "--address: is not a site address"),
        (
            ("create", "c", "--address", "/nowhere/mail"),
            "file:///nowhere/mail is not a folder of this machine",
        ),
        (("create", "c", "--address", "/proc"), "--address: file:///proc cannot be reached"),
        (("create", "c", "--address", "nosuch://a/b"), "no such kind of storage (Protocol not known: nosuch"),
        (("revoke", "../b"), "site revoke: '../b' is not trusted"),
        (("allow", "c"), "site allow: 'c' is not trusted; trusted: a"),
        (("allow",), "site allow: an argument is missing"),
        (("allow", "a", "--tasks", "trian"), "--tasks: there is no 'trian'; did you mean train?"),
        (("allow", "a", "--pool", "nowhere"), "--pool: there is no 'nowhere'"),
        (("allow", "a", "--pool", "local"), "--pool: local is served by Prefect"),
        (("allow", "a", "--pool", "v100"), "--pool: v100 is for plans only: nothing can run on it; give a"),
        (("allow", "a", "--tracker", "mlfow"), "--tracker: there is no 'mlfow'; did you mean mlflow?"),
        (("allow", "a", "--read", "../x"), "--read: '../x' is not an absolute path or a URL"),
        (("allow", "a", "--hourly", "much"), "--hourly: 'much' is not a number of GB"),
        (("allow", "a", "--hourly", "nan"), "--hourly: 'nan' is not a number of GB"),
        (("allow", "a", "--send", "modle"), "--send: there is no 'modle'; did you mean model?"),
        (
            ("serve", "--listen", "127.0.0.1"),
            "--listen: '127.0.0.1' is not an address to listen at; give host",
        ),
        (
            ("serve", "--listen", "127.0.0.1:99999"),
            "--listen: '127.0.0.1:99999' is not an address to listen at",
        ),
        (("create", "c", "--address", "localhost:99999"), "--address: is not a site address"),
        (("create", "c", "--tasks", "train"), "--tasks: is not an option of site create; --address"),
        (("card", "--with-parent"), "--with-parent: is not an option of site card; --keys alone"),
        (("peers", "--listen", "127.0.0.1:0"), "--listen: is not an option of site peers; --keys alone"),
        (("cancel", "ab"), "site cancel: 0 orders begin with 'ab'"),
        (("work", "ab" * 32), "site work: there is no order abab"),
        (("serve", "--mailbox", "s3://bucket/mail"), "--mailbox: is not a local folder"),
        (("card", "--keys", "elsewhere"), "elsewhere has no site; atelier site create <name>"),
        (("orders", "--keys", "elsewhere"), "elsewhere has no site; atelier site create <name>"),
        (("allow", "a", "--keys", "elsewhere"), "elsewhere has no site; atelier site create <name>"),
        (("peers", "--keys", "elsewhere"), "elsewhere has no site; atelier site create <name>"),
        (("serve", "--mailbox", "key.pem"), "key.pem is a file; --mailbox <a folder in which the agent"),
        (
            ("serve", "--mailbox", "key.pem/mail"),
            "key.pem/mail cannot be created (Not a directory); --mailbox",
        ),
    ],
)
def test_what_a_site_cannot_do_is_said_in_one_line(
    cards: Path,
    words: tuple[str, ...],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(cards / "b")
    assert run(["site", "accept", str(cards / "a.json")]) == 0
    (cards / "b" / "any.json").write_text((cards / "a.json").read_text().replace('"a"', '"any"'))
    capsys.readouterr()
    assert run(["site", *words]) == 2
    said = capsys.readouterr().err
    assert problem in said and len(said.strip().splitlines()) == 1
    assert "secret" not in said and not (cards / "c").exists()


def test_what_is_not_given_stays_allowed_and_nothing_given_shows_it(
    cards: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(cards / "b")
    assert run(["site", "accept", str(cards / "a.json")]) == 0
    words = ["site", "allow", "a", "--tasks", "train,encode", "--send", "model"]
    assert run(words) == 0
    capsys.readouterr()
    assert run(words) == 0 and "before" not in capsys.readouterr().out
    assert run(["site", "allow", "a", "--hourly", "2.5"]) == 0
    now, before = capsys.readouterr().out.splitlines()
    assert now.startswith("a: runs train, encode here") and now.endswith("sends model; 2.5 GB an hour")
    assert before.startswith("before: runs train, encode here") and before.endswith("sends model")
    assert run(["site", "allow", "a"]) == 0 and capsys.readouterr().out.strip() == now
    assert run(["site", "allow", "a", "--tasks", "none", "--hourly", "0"]) == 0
    assert capsys.readouterr().out.startswith("a: runs no task here")
    assert Policies(cards / "b").of("a") == SitePolicy(site="a", sends=("model",))


def test_a_site_that_is_reached_in_a_folder_has_no_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATELIER_SITE", str(tmp_path / "keys"))
    (tmp_path / "mail").mkdir()
    assert run(["site", "create", "a", "--address", str(tmp_path / "mail")]) == 0
    assert Keys(tmp_path / "keys").card.address == f"file://{tmp_path / 'mail'}"
    assert not list((tmp_path / "mail").iterdir())
    assert run(["site", "rotate"]) == 0 and Keys(tmp_path / "keys").card.is_in_bucket
    capsys.readouterr()
    assert run(["site", "serve", "--listen", "127.0.0.1:0"]) == 2
    assert "--listen: a has no port; others reach it in file://" in capsys.readouterr().err
    (tmp_path / "mail").rmdir()
    assert run(["site", "serve"]) == 2
    assert "site serve: file://" in (said := capsys.readouterr().err) and "is not a folder of this" in said

"""`atelier site`: keys and cards from the command line, and what it refuses."""

from pathlib import Path

import pytest

from atelier.flows.cli.main import run
from atelier.infra.sites.keys import Keys


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
    digest = Keys(cards / "a").card.digest[:16]
    assert digest in capsys.readouterr().out
    assert run(["site", "peers"]) == 0
    assert capsys.readouterr().out.split() == ["a", digest, "127.0.0.1:7800"]
    assert run(["site", "revoke", "a"]) == 0 and run(["site", "peers"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("serv",), "site: no act 'serv'; did you mean serve?"),
        (("create", "B!"), "'B!' is no name of a site"),
        (("create", "b"), "has a key already; site rotate makes a new one"),
        (("create",), "site create: a word is missing; give the site's name"),
        (("accept", "nowhere.json"), "nowhere.json cannot be read"),
        (("accept", "../b.json"), "is of b, as this site is called"),
        (("accept", "key.pem"), "key.pem: "),
        (("revoke", "../b"), "site revoke: '../b' is not trusted"),
        (("allow", "c"), "site allow: 'c' is not trusted; trusted: a"),
        (("allow",), "site allow: a word is missing"),
        (("allow", "a", "--tasks", "trian"), "--tasks: there is no 'trian'; did you mean train?"),
        (("allow", "a", "--pool", "nowhere"), "--pool: there is no 'nowhere'"),
        (("allow", "a", "--pool", "local"), "--pool: local is served by Prefect"),
        (("allow", "a", "--tracker", "mlfow"), "--tracker: there is no 'mlfow'; did you mean mlflow?"),
        (("allow", "a", "--read", "../x"), "--read: '../x' is no whole path or URL"),
        (("allow", "a", "--hourly", "much"), "--hourly: 'much' is no number of GB"),
        (("allow", "a", "--hourly", "nan"), "--hourly: 'nan' is no number of GB"),
        (("cancel", "ab"), "site cancel: 0 orders begin with 'ab'"),
        (("work", "ab" * 32), "site work: there is no order abab"),
        (("serve", "--mailbox", "s3://bucket/mail"), "--mailbox: is no folder of this machine"),
        (("card", "--keys", "elsewhere"), "elsewhere has no site; atelier site create <name>"),
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
    capsys.readouterr()
    assert run(["site", *words]) == 2
    said = capsys.readouterr().err
    assert problem in said and len(said.strip().splitlines()) == 1

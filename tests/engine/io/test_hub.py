"""Sources on the hub: a server on loopback with its paths, branches that move, tokens, refusals."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from atelier.engine.config.data import Labels, Source
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.io import hub as addresses
from atelier.engine.io.source_files import content_id, files_of
from atelier.engine.io.survey import survey
from atelier.engine.io.tensorfile import head
from atelier.infra.store.source_contents import identity_of
from tests.engine.data.conftest import Workshop
from tests.engine.io.test_survey import entries
from tests.hub import LARGE, Hub, serving

pytest.importorskip("huggingface_hub", reason="huggingface_hub is missing: it is of the extra hf")
SHIPS = b"".join(json.dumps({"text": f"ship {n} " + "of oak " * 20}).encode() + b"\n" for n in range(60))
BOATS = b'{"text": "a boat"}\n{"text": "two boats"}\n'
REPOSITORY, URL = "datasets/port/ships", "hf://datasets/port/ships"
FILES = {"data/ships.jsonl": SHIPS, "data/boats.jsonl": BOATS, "README.md": b"# Ships"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as server:
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": server.url, "token": "key"})
        yield server


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


@pytest.mark.parametrize(
    "url", ["", "/data", "/data/*.jsonl", "@main", "@main/data", "@v1/**/*.jsonl", "@refs/convert/x/data"]
)
def test_every_form_of_an_address_leads_to_the_files_at_their_commit(hub: Hub, url: str) -> None:
    for branch in ("main", "v1", "refs/convert/x"):
        hub.commit(REPOSITORY, FILES, branch)
    branch = url.partition("@")[2].removesuffix("/data").removesuffix("/**/*.jsonl") or "main"
    at = f"{URL}@{hub.repositories[REPOSITORY].branches[branch]}"
    assert files_of(Source(source=URL + url)) == [f"{at}/data/boats.jsonl", f"{at}/data/ships.jsonl"]


def test_content_is_known_by_the_digest_of_lfs_or_git_and_only_by_that(hub: Hub, tmp_path: Path) -> None:
    assert len(BOATS) < LARGE < len(SHIPS)
    hub.commit(REPOSITORY, FILES)
    boats, ships = found = [(url, content_id(url)) for url in files_of(Source(source=URL))]
    (tmp_path / "ships.jsonl").write_bytes(SHIPS)
    assert ships[1] == content_id(str(tmp_path / "ships.jsonl"))  # a copy is the same source
    assert boats[1].startswith("remote:") and boats[1].endswith(f":{len(BOATS)}")
    hub.commit(REPOSITORY, {**FILES, "README.md": b"# More"})
    again = [(url, content_id(url)) for url in files_of(Source(source=URL))]
    assert [url for url, _ in again] != [url for url, _ in found]
    assert identity_of(again) == identity_of(found)  # another commit, the same texts
    hub.commit(REPOSITORY, {**FILES, "data/boats.jsonl": BOATS + b'{"text": "a raft"}\n'})
    assert identity_of([(url, content_id(url)) for url in files_of(Source(source=URL))]) != identity_of(found)


def test_files_of_lfs_have_the_identity_of_their_copies(hub: Hub, tmp_path: Path) -> None:
    for name in ("a/ships.jsonl", "b/ships.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(SHIPS)
    hub.commit(REPOSITORY, {"a/ships.jsonl": SHIPS, "b/ships.jsonl": SHIPS})
    here, there = (
        identity_of([(url, content_id(url)) for url in files_of(Source(source=source))])
        for source in (str(tmp_path), URL)
    )
    assert here == there


def test_a_branch_that_moves_between_plan_and_run_changes_nothing_of_the_run(
    hub: Hub, workshop: Workshop
) -> None:
    hub.commit(REPOSITORY, FILES)
    source = Source(source=URL)
    planned = workshop.files(source)
    before = workshop.curate(source, files=planned)
    hub.commit(REPOSITORY, {"data/ships.jsonl": SHIPS[:-100] + b"\n", "data/boats.jsonl": b""})
    after = workshop.curate(source, files=planned)
    assert workshop.lines(before, "documents.jsonl") == workshop.lines(after, "documents.jsonl")
    assert workshop.files(source) != planned  # the next plan sees it


def test_bytes_that_are_not_those_of_the_digest_are_refused(hub: Hub, workshop: Workshop) -> None:
    commit = hub.commit(REPOSITORY, FILES)
    source = Source(source=f"{URL}/data/ships.jsonl")
    [[url, digest]] = planned = workshop.files(source)
    hub.says[SHIPS.replace(b"oak", b"ash")] = hub.says_of(SHIPS)
    hub.repositories[REPOSITORY].commits[commit]["data/ships.jsonl"] = SHIPS.replace(b"oak", b"ash")
    assert content_id(url) == digest  # it still says so
    with pytest.raises(DataError, match="changed since the run was planned"):
        workshop.curate(source, files=planned)


def test_of_a_parquet_file_only_the_column_is_fetched(hub: Hub, workshop: Workshop) -> None:
    table = pa.table({"other": [bytes([n % 251] * 4096) + n.to_bytes(4) for n in range(2000)],
                      "text": [f"text {n}" for n in range(2000)]})  # fmt: skip
    target = io.BytesIO()
    parquet.write_table(table, target, row_group_size=500, compression="none", use_dictionary=False)
    hub.commit(REPOSITORY, {"a.parquet": target.getvalue()})
    corpus = workshop.curate(Source(source=f"{URL}/a.parquet"))
    assert corpus.record.summary["documents"] == 2000
    assert 0 < hub.sent < 200_000 < 8_000_000 < len(target.getvalue())


def test_the_listing_is_asked_once_not_for_every_file(hub: Hub) -> None:
    hub.commit(REPOSITORY, {f"data/{n}.jsonl": BOATS for n in range(40)})
    assert len([content_id(url) for url in files_of(Source(source=f"{URL}/data"))]) == 40
    assert len(hub.asked) < 10


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "hf://datasets/port/none/x.txt",
            r"has no such repository, or does not show it; .*HF_TOKEN.*hf://datasets/",
        ),
        ("hf://port/ships", "has no such repository"),  # a model of this name
        (f"{URL}@v9/data", "has no such revision; give a branch, tag or commit"),
        (f"{URL}@{'0' * 40}/data", "has no such revision"),
        (f"{URL}/date/ships.jsonl", r"does not exist .*did you mean .*/data"),
        (f"{URL}/data/*.txt", "no file matches"),
        ("hf://datasets/port", r"is not a hub address .*; hf://datasets/<owner>/<name>"),
        ("hf://", "is not a hub address"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line_with_a_way_out(hub: Hub, url: str, says: str) -> None:
    hub.commit(REPOSITORY, FILES)
    with pytest.raises((ConfigError, DataError), match=says) as caught:
        files_of(Source(source=url))
    [line] = str(caught.value).splitlines()
    assert line.startswith("data.source: ") and url in line


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_an_answer_that_is_no_answer_is_named(hub: Hub, status: int) -> None:
    hub.commit(REPOSITORY, FILES)
    hub.status = status
    with pytest.raises(ConfigError, match=rf"^data\.source: {URL}: {hub.url} answered {status}; HF_TOKEN"):
        files_of(Source(source=URL))


def test_labelled_examples_come_from_the_hub_too(hub: Hub) -> None:
    commit = hub.commit(REPOSITORY, FILES)
    assert files_of(Labels(source=f"{URL}/data/boats.jsonl")) == [f"{URL}@{commit}/data/boats.jsonl"]
    with pytest.raises(ConfigError, match=r"^finetune\.labels\.source: .* has no such repository"):
        files_of(Labels(source="hf://datasets/port/none"))


def test_a_private_repository_needs_the_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit(REPOSITORY, FILES)
    hub.only = "key"
    assert len(files_of(Source(source=URL))) == 2
    hub.only = "another"
    with pytest.raises(ConfigError, match=r"does not show it; .*HF_TOKEN"):
        files_of(Source(source=URL))


def test_a_hub_that_is_not_there_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": "http://127.0.0.1:1"})
    says = rf"^data\.source: {URL} cannot be reached \(ConnectError: .*\); check the network, and HF_ENDPOINT"
    with pytest.raises(ConfigError, match=says):
        files_of(Source(source=URL))


def test_without_the_package_the_way_out_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ConfigError, match=r"needs the package huggingface_hub; pip install huggingface_hub \(the extra hf\)"
    ):
        files_of(Source(source=URL))


def test_other_addresses_stay_as_they_are() -> None:
    for url in ("s3://bucket/x@y", "/a/b@c", "zip://x.txt::hf://datasets/a/b/c.zip", "texts/*.txt"):
        assert addresses.pinned(url, "data.source") == addresses.without_commit(url) == url


def test_of_weights_on_the_hub_the_headers_alone_are_sent(hub: Hub) -> None:
    config = {
        "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 4, "vocab_size": 4000, "tie_word_embeddings": True, "mlp_gate": 1,
    }  # fmt: skip
    weights = entries({name: value for name, value in config.items() if name != "mlp_gate"})
    data = head(weights) + bytes(sum(each.num_bytes for each in weights))
    files = {"config.json": json.dumps(config).encode(), "tokenizer.json": b"{}", "model.safetensors": data}
    hub.commit("models/port/guest", files)
    hub.sent = 0
    assert survey("hf://port/guest").refused == ["config.json: mlp_gate: 1: unknown key of the family llama"]
    assert hub.sent < len(head(weights)) + 2000 < len(data) / 100

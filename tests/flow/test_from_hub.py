"""Models and texts of the hub, by the command line: equal to copies in a folder, whatever a branch does
between plan and run.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.checkout import TOP
from tests.flow.command import Atelier
from tests.hub import LARGE, Hub, serving

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
KEY = "hf_2Kq9mShipsAndBoats"
TINY = ("experiment=tiny", "tracker=none", "train.steps=2")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with serving() as server:
        server.only = KEY
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2, of which only the weights are so large that the hub keeps them in LFS."""
    folder = tmp_path_factory.mktemp("guest")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["def read(path): return open(path).read()"], trainer)
    config = transformers.GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), n_embd=32, n_layer=2, n_head=2, n_positions=64, eos_token_id=0,
        bos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder, max_shard_size="60KB")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>"
    ).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    return folder


def said(atelier: Atelier, hub: Hub, *words: str, code: int = 0, token: str = KEY) -> str:
    """What a command prints, in a process of its own, with the hub's address as people give it."""
    env = os.environ | {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "ATELIER_ROOT": str(atelier.root)}
    command = [sys.executable, "-m", "atelier", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=TOP)
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def content(atelier: Atelier, name: str) -> list[tuple[str, str]]:
    [record] = atelier.records("model", name)
    return sorted((file["path"].rsplit("/", 1)[-1], file["sha256"]) for file in record["files"])


def test_a_model_of_the_hub_is_the_one_of_its_folder(atelier: Atelier, hub: Hub, folder: Path) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    shards = [name for name, data in files.items() if name.endswith(".safetensors") and len(data) > LARGE]
    assert len(shards) > 1
    commit = hub.commit("models/port/guest", files)
    said(atelier, hub, "adopt", f"source={folder}", "name=here")
    said(atelier, hub, "adopt", "source=hf://port/guest", "name=there")
    assert content(atelier, "here") == content(atelier, "there")
    [here], [there] = atelier.records("model", "here"), atelier.records("model", "there")
    alike = [
        {k: v for k, v in each["summary"].items() if k not in ("source", "revision")}
        for each in (here, there)
    ]
    assert alike[0] == alike[1] and alike[0]["licence"] == "mit"
    assert there["summary"]["revision"] == commit
    assert there["summary"]["source"] == f"hf://port/guest@{commit}"


def test_a_commit_that_changes_nothing_of_a_model_reuses_it_and_one_that_does_makes_another(
    atelier: Atelier, hub: Hub, folder: Path
) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.commit("models/port/guest", {**files, "notes.txt": b"new"})
    assert "othing to do" in said(atelier, hub, "adopt", "source=hf://port/guest@main", "name=there")
    config = json.loads(files["config.json"]) | {"layer_norm_epsilon": 1e-6}
    hub.commit("models/port/guest", {**files, "config.json": json.dumps(config).encode()})
    said(atelier, hub, "adopt", "source=hf://port/guest", "name=other")
    [there], [other] = atelier.records("model", "there"), atelier.records("model", "other")
    assert there["fingerprint"] != other["fingerprint"]


def test_weights_that_are_not_those_of_their_digest_are_refused_and_nothing_is_left(
    atelier: Atelier, hub: Hub, folder: Path
) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    name = next(name for name in sorted(files) if name.endswith(".safetensors"))
    lies = files[name][:-1] + bytes([files[name][-1] ^ 1])
    hub.says[lies] = "0" * 64
    hub.commit("models/port/lies", {**files, name: lies})
    line = said(atelier, hub, "adopt", "source=hf://port/lies", "name=lies", code=2)
    assert "does not match its store's digest" in line and not atelier.records("model", "lies")


def test_texts_of_the_hub_train_what_their_copies_train(atelier: Atelier, hub: Hub, tmp_path: Path) -> None:
    """Also that a gang has address and token, and the store has none of them."""
    texts = [{"text": f"def ship_{n}(sea):\n    return sea + {n * n}\n" * 9} for n in range(400)]
    data = "".join(json.dumps(text) + "\n" for text in texts).encode()
    (tmp_path / "ships.jsonl").write_bytes(data)
    hub.commit("datasets/port/ships", {"data/ships.jsonl": data})
    said(atelier, hub, "pretrain", "data.source=hf://datasets/port/ships/data/*.jsonl", "name=mine", *TINY)
    plan = said(
        atelier, hub, "plan", "pretrain", f"data.source={tmp_path}/ships.jsonl", "name=mine", *TINY, "--json"
    )
    assert {row["state"] for row in json.loads(plan)["tasks"]} == {"reuse"}
    kept = [path for path in atelier.root.rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if KEY.encode() in path.read_bytes()]


def test_a_tokenizer_of_the_hub_is_loaded(atelier: Atelier, hub: Hub, folder: Path) -> None:
    hub.commit("models/port/words", {"tokenizer.json": (folder / "tokenizer.json").read_bytes()})
    load = "tokenizer.load=hf://port/words/tokenizer.json"
    said(atelier, hub, "pretrain", load, "name=worded", *TINY)
    digests = [each["identity"].get("sha256") for each in atelier.records("tokenizer", "tokenizer")]
    data = (folder / "tokenizer.json").read_bytes()
    assert hashlib.sha256(data).hexdigest() in digests  # large enough for LFS
    line = said(atelier, hub, "plan", "pretrain", load.replace("words", "none"), *TINY, code=2)
    assert line.startswith("tokenizer.load: hf://port/none/tokenizer.json: ") and line.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("adopt", "source=hf://port/none", "name=x"), "source"),
        (("pretrain", "data.source=hf://datasets/port/none", *TINY), "data.source"),
        (("plan", "pretrain", "data.source=hf://datasets/port/none", *TINY), "data.source"),
    ],
)
def test_what_cannot_be_had_is_one_line_with_its_address_and_a_way_out(
    atelier: Atelier, hub: Hub, words: tuple[str, ...], place: str
) -> None:
    address = next(word for word in words if "hf://" in word).split("=")[1]
    for token in (KEY, "wrong"):
        line = said(atelier, hub, *words, code=2, token=token)
        assert line.startswith(f"{place}: {address}: {hub.url} has no such repository, or does not show it; ")
        assert line.count("\n") == 1 and "HF_TOKEN" in line

"""A model with a chat template is imported, learns conversations and is exported; transformers computes its
loss.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from atelier.engine.data.chat_tokens import BUILT_IN, PLAIN
from tests.chat_templates import CHATML, write_talks
from tests.flow.command import Atelier, done, refused

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

HOW = (
    "experiment=tiny",
    "tracker=none",
    "train.sequence=128",
    "train.precision=fp32",
    "train.steps=60",
    "train.eval_sequences=48",
)
RATE = "optim.lr=4e-3"
ASKED = "Is it seven? (6)"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("instructed")


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("talks") / "depths.jsonl"
    write_talks(path, 48)
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 with a tokenizer that has a chat template, as transformers saves them."""
    folder = tmp_path_factory.mktemp("qwen")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=360, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(
        ["Is it one? fathoms. system user assistant You are a helpful"] * 3, trainer
    )
    config = transformers.Qwen3Config(
        vocab_size=tokenizer.get_vocab_size() + 8, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, eos_token_id=0,
        bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", chat_template=CHATML
    ).save_pretrained(folder)
    return folder


def held_out_losses(atelier: Atelier, name: str) -> list[float]:
    """Of a model's training, in order of steps."""
    [model] = atelier.records("model", name)
    folder = atelier.root / "trajectory" / model["parents"]["trajectory"][:16]
    lines = [json.loads(line) for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]
    values = {line["step"]: line["values"] for line in lines if "values" in line}
    return [values[step]["eval/loss"] for step in sorted(values) if "eval/loss" in values[step]]


def held_out_rows(atelier: Atelier, name: str) -> set[tuple[int, ...]]:
    """The ids of the held-out rows that a model was judged on."""
    [model] = atelier.records("model", name)
    [record] = [
        r for r in atelier.records("chats", "chats") if r["fingerprint"] == model["parents"]["chats.main"]
    ]
    paths = {Path(one["path"]).name: one["path"] for one in record["files"]}
    folder = atelier.root / "chats" / record["fingerprint"][:16]
    ids = np.fromfile(folder / paths["held_out.bin"], dtype="<u2").tolist()
    ends = np.load(folder / paths["held_out.ends.npy"]).tolist()
    return {tuple(ids[begin:end]) for begin, end in zip([0, *ends[:-1]], ends, strict=True)}


def their_loss(folder: Path, talks: Path, rows: set[tuple[int, ...]]) -> tuple[float, int]:
    """What transformers computes, in nats a token of the assistant's in these rows; and how many it found."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    header = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    nats, count, found = 0.0, 0, 0
    for line in talks.read_text().splitlines():
        ids = tokenizer.apply_chat_template(json.loads(line)["messages"], return_dict=False)
        last = len(ids) - ids[::-1].index(end)
        if tuple(ids[:last]) not in rows:
            continue
        labels, is_said = [-100] * len(ids), False
        for place in range(len(header), len(ids)):
            is_said = is_said or ids[place - len(header) : place] == header
            labels[place] = ids[place] if is_said else -100
            is_said = is_said and ids[place] != end
        number = sum(label != -100 for label in labels[1:])
        with torch.no_grad():
            loss = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
        nats, count, found = nats + float(loss) * number, count + number, found + 1
    return nats / count, found


def test_an_adopted_chat_template_and_rows_of_messages_fine_tune(
    atelier: Atelier, checkpoint: Path, talks: Path, tmp_path: Path
) -> None:
    """The held-out loss falls, the export has the template, and transformers computes the same loss."""
    done(atelier("adopt", f"source={checkpoint}", "name=guest", "tracker=none"))
    words = ("instruct", "init=guest", f"chats.source={talks}", "chats.held_out=0.3", RATE, *HOW)
    done(atelier(*words))
    assert set(atelier.states(*words).values()) == {"reuse"}
    rows = held_out_rows(atelier, "instruct")
    before, found = their_loss(checkpoint, talks, rows)
    assert len(rows) == found >= 4
    losses = held_out_losses(atelier, "instruct")
    assert before > 5 and losses[-1] < 0.3 * before and losses[-1] < losses[0]
    done(atelier("export", "instruct", str(tmp_path / "out")))
    after, _ = their_loss(tmp_path / "out", talks, rows)
    [model] = atelier.records("model", "instruct")
    apart = abs(after - model["summary"]["eval_loss"])
    print(f"held-out loss {losses[-1] / before:.3f} of its start, transformers' {apart:.1e} nat from it")
    assert apart < 1e-4
    assert model["summary"]["eval_loss"] == losses[-1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template == CHATML
    # and it says the same
    ids_BT = tokenizer.apply_chat_template(
        [{"role": "user", "content": ASKED}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=False,
    )
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    drawn = loaded.generate(ids_BT, do_sample=False, max_new_tokens=40, eos_token_id=end)[
        0, ids_BT.shape[1] :
    ]
    assert drawn[-1] == end
    said = atelier("generate", "instruct", "--chat", ASKED, "--temperature", "0", "--max-tokens", "40")
    assert done(said).strip() == tokenizer.decode(drawn[:-1]) and "fathoms" in said.out
    assert f"{len(drawn) - 1} tokens" in said.err


def test_low_rank_additions_learn_conversations_and_are_an_adapter(atelier: Atelier, talks: Path) -> None:
    words = ("instruct", "init=guest", f"chats.source={talks}", "chats.held_out=0.3", "optim.lr=2e-2", *HOW)
    words = (*words, "trainable.kind=lora", "name=light")
    [row] = [row for row in atelier.plan(*words).rows if row["task"] == "train"]
    assert row["params"] > 0 and row["step_s"] > 0 and row["memory_gb"] > 0
    done(atelier(*words))
    losses = held_out_losses(atelier, "light")
    assert losses[-1] < losses[0] - 0.2
    [adapter], [guest] = atelier.records("adapter", "light-adapter"), atelier.records("model", "guest")
    assert adapter["parents"]["base"] == guest["fingerprint"]
    assert "48 conversations" in done(atelier("lineage", "light"))


def test_a_model_without_a_template_gets_a_plain_one_that_its_export_has(
    atelier: Atelier, talks: Path, tmp_path: Path
) -> None:
    done(atelier("pretrain", "experiment=tiny", "tracker=none", "model=gpt_nano", "name=base"))
    words = ("instruct", "init=base", f"chats.source={talks}", "name=spoken", *HOW)
    done(atelier(*words))
    [chats] = [r for r in atelier.records("chats", "chats") if r["summary"]["template"] == "plain"]
    assert chats["summary"]["conversations"] == 48
    done(atelier("export", "spoken", str(tmp_path / "out")))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template == BUILT_IN[PLAIN]
    text = tokenizer.apply_chat_template(
        json.loads(talks.read_text().splitlines()[0])["messages"], tokenize=False
    )
    assert text.startswith("user:\nIs it one? (0)\n\nassistant:\none fathoms.<|end|>\n\nuser:\n")
    done(atelier("instruct", "init=spoken", f"chats.source={talks}", "name=more", *HOW))
    newest = [r["summary"]["template"] for r in atelier.records("chats", "chats")]
    assert newest.count("own") == 2  # a model that was spoken with has a template of its own


def test_rows_that_are_too_long_are_told_of(atelier: Atelier, talks: Path, tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    long = {"messages": [{"role": "user", "content": "Why? " * 200}, {"role": "assistant", "content": "So."}]}
    path.write_text(talks.read_text() + json.dumps(long) + "\n")
    said = atelier("instruct", "init=guest", f"chats.source={path}", "name=cut", *HOW, "train.steps=4")
    assert (
        "0 rows are longer than train.sequence=128 tokens and end with an earlier answer, 1 are left out"
        in (said.out + said.err)
    )


def test_what_does_not_fit_is_refused_with_a_way_out(atelier: Atelier, talks: Path, tmp_path: Path) -> None:
    plan = ("plan", "instruct", f"chats.source={talks}", "experiment=tiny")
    assert refused(atelier(*plan)).startswith("init: a value is required")
    assert refused(atelier("plan", "instruct", "init=guest")).startswith("chats.source: a value is required")
    said = refused(atelier(*plan, "init=guest", "name=guest"))
    assert said == "name: is guest, which is the name of the initial model; name=guest-on"
    said = refused(atelier(*plan, "init=guest", "trainable.kind=none"))
    assert "no parameter would be trained" in said
    said = refused(atelier(*plan, "init=guest", "chats.template=chatlm"))
    assert said.startswith("chats.template: ") and "chatml" in said
    said = refused(atelier(*plan, "init=guest", "chats.source=nowhere.jsonl"))
    assert said.startswith("chats.source: ")
    (tmp_path / "talk.txt").write_text("x")
    said = refused(atelier(*plan, "init=guest", f"chats.source={tmp_path / 'talk.txt'}"))
    assert "is not a text file; known: .jsonl" in said
    said = refused(atelier(*plan, "init=guest", "chats.date=today"))
    assert said.startswith("chats.date: ") and "2024-07-26" in said
    said = refused(atelier(*plan, "init=guest", "tokenizer.vocab=512"))
    assert said == "tokenizer.vocab: does nothing in the flow instruct; leave it out"
    said = refused(atelier("plan", "pretrain", "experiment=tiny", "objective.chat.kind=chat"))
    assert said.startswith("objective: reads chats, but this flow has none of main")
    (tmp_path / "broken.jsonl").write_text(talks.read_text() + '{"messages": [{"role": "user"}]}\n')
    said = atelier("instruct", "init=guest", f"chats.source={tmp_path / 'broken.jsonl'}", "name=b", *HOW)
    assert (
        said.code == 2 and "broken.jsonl:49: message 1 of 'messages': field 'content' is missing" in said.err
    )
    assert "chats.on_error=skip" in said.err and "Traceback" not in said.err
    assert not atelier.records("model", "b")

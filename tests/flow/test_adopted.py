"""A checkpoint made by transformers is imported, teaches, is trained and tuned, and its student
is exported.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from atelier.engine.io.artifact import open_input
from atelier.engine.model.load import read_model
from atelier.infra.store.store import Store
from tests.flow.command import Atelier, done, refused

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.slow

PADDING = 24
TEMPLATE = "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
TALK = [{"role": "user", "content": "How deep is it?"}]
HERE = ("tokenizer.model=guest", "experiment=tiny", "tracker=none")
TEACHER = ("role@roles.teacher=finished", "roles.teacher.init=guest")
TAUGHT = ("distill", *TEACHER, f"roles.student_a.model.vocab_padding={PADDING}", *HERE)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adopted")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 with a byte-level tokenizer, as transformers saves them."""
    folder = tmp_path_factory.mktemp("qwen")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    lines = [path.read_text() for path in sorted(Path(torch.__file__).parent.glob("*.py"))[:8]]
    tokenizer.train_from_iterator(lines, trainer)
    size = tokenizer.get_vocab_size()
    config = transformers.Qwen3Config(
        vocab_size=size + PADDING, hidden_size=64, intermediate_size=160, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=24, tie_word_embeddings=True, eos_token_id=0,
        bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight) if weight.dim() == 1 else 3 * weight)
    model.generation_config.eos_token_id = [0, 5]  # an instruct model ends with more than one
    model.save_pretrained(folder)
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    whole.chat_template = TEMPLATE
    whole.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    return folder


def test_an_adopted_model_teaches_as_it_is(atelier: Atelier, checkpoint: Path) -> None:
    done(atelier("adopt", f"source={checkpoint}", "name=guest"))
    done(atelier(*TAUGHT))
    assert set(atelier.states(*TAUGHT).values()) == {"reuse"}
    [guest] = atelier.records("model", "guest")
    [student] = atelier.records("model", "student_a")
    assert student["parents"]["teacher"] == guest["fingerprint"]
    assert student["summary"]["teacher_forwards"] > 0
    assert not atelier.records("model", "teacher")  # nothing was trained in its name
    store = Store(str(atelier.root))
    assert {record.parents.get("teacher") for record in store.records("model")} == {
        None,
        guest["fingerprint"],
    }
    [report] = atelier.records("report", "distill")
    rows = {row["name"]: row for row in report["summary"]["table"]}
    assert rows["teacher"]["tokens"] is None and rows["student_a"]["tokens"] > 0


def test_the_plan_counts_the_forward_passes_of_the_teacher(atelier: Atelier) -> None:
    taught, alone = (
        next(row for row in atelier.plan(*words, "train.seed=2").rows if row["task"] == "train")
        for words in (TAUGHT, ("pretrain", "model=gpt_nano", f"model.vocab_padding={PADDING}", *HERE))
    )
    assert taught["params"] == alone["params"]
    assert 1.02 * alone["step_s"] < taught["step_s"] < 2 * alone["step_s"]


def test_a_student_is_the_same_whatever_it_says_of_attaching(atelier: Atelier) -> None:
    """A finished model has no start that a student could miss."""
    for attach in ("frozen", "replay"):
        assert set(atelier.states(*TAUGHT, f"roles.student_a.attach={attach}").values()) == {"reuse"}


def test_lineage_leads_from_the_student_to_source_and_licence(atelier: Atelier) -> None:
    above = done(atelier("lineage", "student_a"))
    assert "teacher: guest" in above and "qwen3 from qwen" in above and "licence apache-2.0" in above
    assert "student_a" in done(atelier("lineage", "guest")).split("leads to")[1]


def test_the_student_goes_out_and_transformers_computes_its_logits(atelier: Atelier, tmp_path: Path) -> None:
    said = done(atelier("export", "student_a", str(tmp_path / "out")))
    assert "its logits, read back, differ by 0 of their scale" in said
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids_BT = torch.tensor([tokenizer.encode("def read(path):\n    return open(path)")])
    drawn = loaded.generate(ids_BT, do_sample=False, max_new_tokens=12, min_new_tokens=12)[0]
    words = ("--max-tokens", "12", "--temperature", "0")
    ours = done(atelier("generate", "student_a", "--prompt", tokenizer.decode(ids_BT[0]), *words))
    assert tokenizer.decode(drawn).rstrip() in ours


def test_training_goes_on_from_an_adopted_model_and_low_rank_additions_tune_it(
    atelier: Atelier, checkpoint: Path, tmp_path: Path
) -> None:
    """Its templates go with it."""
    done(atelier("pretrain", "model=auto", "init=guest", "name=more", *HERE))
    [guest], [more] = atelier.records("model", "guest"), atelier.records("model", "more")
    assert more["parents"]["init"] == guest["fingerprint"]
    assert more["summary"]["params"] == guest["summary"]["params"]
    done(atelier("export", "more", str(tmp_path / "out")))
    here, there = (transformers.AutoTokenizer.from_pretrained(one) for one in (checkpoint, tmp_path / "out"))
    texts = [one.apply_chat_template(TALK, tokenize=False) for one in (here, there)]
    assert texts[0] == texts[1] == "[user] How deep is it?\n"
    said = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert said.eos_token_id == [0, 5] and said.bos_token_id is None
    words = ("finetune", "init=guest", "finetune.trainable.kind=lora", "experiment=tiny", "tracker=none")
    done(atelier(*words))
    tuned = [record for record in Store(str(atelier.root)).records("model") if record.parents.get("init")]
    assert len(tuned) > 1


def apart(one: Any, other: Any) -> float:
    ids_BT = torch.arange(64)[None]
    with torch.no_grad():
        mine, theirs = one(ids_BT).logits, other(ids_BT).logits
    return float((mine - theirs).abs().max() / theirs.std())


def test_our_adapter_on_the_exported_base_is_the_tuned_model(atelier: Atelier, tmp_path: Path) -> None:
    for name in ("guest", "guest/pretrained-0", "guest/pretrained-0-adapter"):
        done(atelier("export", name, str(tmp_path / name.replace("/", "-"))))
    [adapter] = atelier.records("adapter", "guest/pretrained-0-adapter")
    [guest] = atelier.records("model", "guest")
    assert adapter["parents"]["base"] == guest["fingerprint"]
    base, tuned = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name)
        for name in ("guest", "guest-pretrained-0")
    )
    assert apart(base, tuned) > 1e-3
    together = peft.PeftModel.from_pretrained(base, tmp_path / "guest-pretrained-0-adapter")
    print(f"our adapter in peft: {apart(together, tuned):.1e} apart")
    assert apart(together, tuned) < 1e-5


def test_peft_reads_our_soft_prompt_on_the_exported_base(atelier: Atelier, tmp_path: Path) -> None:
    words = ("finetune.trainable.kind=prompt", "finetune.trainable.length=6", "finetune.num_labels=40")
    here = ("finetune", "init=guest", *words, "finetune.scratch=false", "experiment=tiny", "tracker=none")
    done(atelier(*here, "finetune.optim.lr=0.3"))
    found = atelier.records("adapter", "guest/pretrained-0-adapter")
    [adapter] = [one for one in found if "vectors" in one["summary"]]
    done(atelier("export", "guest", str(tmp_path / "base")))
    done(atelier("export", adapter["fingerprint"][:16], str(tmp_path / "prompt")))
    base: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "prompt")
    ids_BT = torch.arange(5, 45)[None]
    with torch.inference_mode():
        expected = theirs(input_ids=ids_BT).logits[:, 6:]
        source = open_input(Store(str(atelier.root)).address("model", adapter["parents"]["model"]))
        model, spec = read_model(source, tmp_path, dtype=torch.float32)
        with_prompt_BT = torch.cat([spec.tokens + torch.arange(6)[None], ids_BT], dim=1)
        batch = {
            "tokens_BT": with_prompt_BT,
            "positions_BT": torch.arange(with_prompt_BT.shape[1])[None],
            "documents_BT": torch.zeros_like(with_prompt_BT),
        }
        mine = model.eval()(batch).hidden[:, 6:] @ model.head_weight.T
    assert float((mine - expected).abs().max() / expected.std()) < 1e-5
    middle = done(atelier(*here, "finetune.optim.lr=0.3", "finetune.trainable.place=middle"))
    assert "adapter" in middle
    found = atelier.records("adapter", "guest/pretrained-0-adapter")
    [other] = [one for one in found if one["summary"].get("place") == "middle"]
    said = refused(atelier("export", other["fingerprint"][:16], str(tmp_path / "other")))
    assert "have place middle in a prompt, but peft puts them in front" in said


def test_an_adapter_of_peft_comes_in_and_goes_out_with_its_bytes(
    atelier: Atelier, checkpoint: Path, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    how = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], use_rslora=True)
    theirs = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(checkpoint), how)
    for name, weight in theirs.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    done(atelier("adopt", f"source={tmp_path / 'theirs'}", "base=guest", "name=second", "tracker=none"))
    for name in ("second", "second-adapter"):
        done(atelier("export", name, str(tmp_path / name)))
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "second")
    print(f"peft's adapter here: {apart(ours, theirs):.1e} apart")
    assert apart(ours, theirs) < 1e-5
    weights = [tmp_path / name / "adapter_model.safetensors" for name in ("theirs", "second-adapter")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    above = done(atelier("lineage", "second"))
    assert "adapter: second-adapter" in above and "licence apache-2.0" in above
    wrong = atelier("adopt", f"source={tmp_path / 'theirs'}", "base=student_a", "name=third", "tracker=none")
    assert (
        wrong.code == 2 and "the adapter was tuned on" in wrong.err and not atelier.records("model", "third")
    )


def test_two_finished_models_teach_one_student_each_on_its_text(atelier: Atelier) -> None:
    words = (
        "+role@roles.second=finished",
        "roles.second.init=second",
        "data.blend.other.source='stdlib:json'",
        "+roles.student_a.objective.more={kind: logits, weight: 0.25, teacher: second, sources: [other]}",
    )
    done(atelier(*TAUGHT, *words, "train.seed=3"))
    guest, second = (atelier.records("model", name)[0]["fingerprint"] for name in ("guest", "second"))
    found = [one for one in atelier.records("model", "student_a") if "teacher.more" in one["parents"]]
    [student] = found
    assert student["parents"]["teacher"] == guest and student["parents"]["teacher.more"] == second
    above = done(atelier("lineage", student["fingerprint"][:16]))
    assert "teacher: guest" in above and "teacher.more: second" in above
    assert student["fingerprint"][:4] in done(atelier("lineage", "second")).split("leads to")[1]
    assert set(atelier.states(*TAUGHT, *words, "train.seed=3").values()) == {"reuse"}
    card = student["fingerprint"][:16]
    done(atelier("export", card, str(atelier.root / "of-both")))
    said = (atelier.root / "of-both" / "README.md").read_text()
    assert "taught by: guest" in said and "taught by: second" in said
    wrong = words[-1].replace("other", "ohter")
    said = refused(atelier("plan", *TAUGHT, *words[:-1], wrong))
    assert said.startswith("roles.student_a.objective.more.sources: there is no source 'ohter'")


def lines_of(folder: Path) -> list[str]:
    return next(folder.glob("payload-*/documents.jsonl")).read_text().splitlines()


def test_a_student_with_another_tokenizer_learns_from_text_that_the_model_writes(atelier: Atelier) -> None:
    words = ("data.written.by=guest", "data.written.documents=20", "data.written.tokens=24")
    done(atelier("pretrain", *words, "experiment=tiny", "tracker=none", "name=reader"))
    [natural] = atelier.records("corpus", "stdlib")
    [written] = atelier.records("corpus", "stdlib by guest")
    [guest] = atelier.records("model", "guest")
    assert written["parents"] == {"corpus": natural["fingerprint"], "model": guest["fingerprint"]}
    texts = [
        {line["id"]: line for line in map(json.loads, lines_of(folder))}
        for folder in (atelier.root / "corpus" / one["fingerprint"][:16] for one in (natural, written))
    ]
    changed = [line for name, line in texts[1].items() if line != texts[0][name]]
    assert len(changed) == 20 and {line["split"] for line in changed} == {"train"}
    assert {name for name, line in texts[0].items() if line["split"] == "held_out"} < set(texts[1])
    for line in changed:
        assert line["text"][:20] == texts[0][line["id"]]["text"][:20] and len(line["text"]) < 2000
    assert "model: guest" in done(atelier("lineage", "reader"))
    done(atelier("corpus", "experiment=tiny", "tracker=none"))
    other = refused(atelier("plan", "distill", *TEACHER, "experiment=tiny"))
    assert "512 tokens; id 0 is '<|endoftext|>' and '<|end|>')" in other
    assert "data.written.by=guest trains a student with any tokenizer" in other


def test_what_does_not_fit_is_refused_with_a_way_out(atelier: Atelier) -> None:
    plan = ("plan", "distill", "experiment=tiny")
    said = refused(atelier(*plan, *TEACHER))
    assert (
        said.startswith("roles.teacher.init: the tokenizer of guest is") and "tokenizer.model=guest" in said
    )
    said = refused(atelier(*TAUGHT, "roles.teacher.optim.lr=1e-4"))
    assert said == "roles.teacher.optim.lr: does nothing: teacher is a finished model; leave it out"
    said = refused(atelier(*TAUGHT, "roles.teacher.model.rope_theta=5000"))
    assert said.startswith("roles.teacher.model: differs from guest, which has rope_theta 10000")
    said = refused(atelier(*TAUGHT, "roles.teacher.start=0.5"))
    assert "start does nothing where trainable.kind=none" in said
    said = refused(atelier("plan", "pretrain", "model=auto", *HERE))
    assert said == "model: auto is the model of `init`, but init is empty; init=<model>, or a model"
    said = refused(atelier("plan", "pretrain", "init=guest", *HERE))
    assert said.endswith("the weights of guest do not fit model; model=auto takes its model")
    said = refused(atelier("plan", "pretrain", "model=auto", "init=guest", "name=guest", *HERE))
    assert said == "name: is guest, which is the name of the initial model; name=guest-on"
    said = refused(
        atelier("plan", "finetune", "init=guest", "finetune.trainable.kind=none", "experiment=tiny")
    )
    assert "moves nothing" in said
    said = refused(atelier(*TAUGHT, "tokenizer.vocab=5000"))
    assert said == "tokenizer.vocab: does nothing beside tokenizer.model; leave it out"

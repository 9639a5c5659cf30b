"""Conversations with drawn chat templates: the learned characters are those that the draw knows to be the
assistant's.

A case has a style, from which both the Jinja template and, apart from it, the text and its learned characters
are written, and several conversations.
"""

import json
import random
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, cast
from unittest import mock

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError
from atelier.engine.data import chat_template
from atelier.engine.data.chat_template import ChatMessage
from atelier.engine.data.chat_tokens import ASSISTANT, EDGE, MARK, ChatTokens
from atelier.engine.data.render import messages_of
from atelier.engine.io.artifact import open_input
from atelier.engine.io.limited_process import LimitedProcess, Limits
from tests.engine.trainings import artifact

COUNT = 16
TALKS = 6  # conversations of a case
Style = dict[str, Any]
Piece = tuple[
    str, bool, int
]  # text, whether the template wrote it, which message's it is learned of (0: none)

ROLES = ("system", "user", ASSISTANT)
SPECIALS = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|USER_TOKEN|>",
    "<|SYSTEM_TOKEN|>", "<|start|>", "<|end|>", "<|return|>", "<|channel|>", "<|message|>", "<start_of_turn>",
    "<end_of_turn>", "[INST]", "[/INST]",
]  # fmt: skip
# headers of system, user, assistant; what is written behind the prompt; ends of turns; what follows them
STYLES: dict[str, Style] = {
    "chatml": {"heads": [f"<|im_start|>{one}\n" for one in ("system", "user", "assistant")],
               "end": "<|im_end|>", "after": "\n"},
    "llama-3": {"heads": [f"<|start_header_id|>{one}<|end_header_id|>\n\n" for one in
                          ("system", "user", "assistant")], "end": "<|eot_id|>", "filter": "trim"},
    "zephyr": {"heads": ["<|system|>\n", "<|user|>\n", "<|assistant|>\n"], "end": "</s>", "after": "\n",
               "prompt": "inside"},
    "command-r": {"heads": [f"<|START_OF_TURN_TOKEN|><|{one}_TOKEN|>" for one in
                            ("SYSTEM", "USER", "CHATBOT")], "end": "<|END_OF_TURN_TOKEN|>"},
    "harmony": {"heads": ["<|start|>system<|message|>", "<|start|>user<|message|>", "<|start|>assistant"],
                "written": "<|channel|>final<|message|>", "end": "<|end|>", "last": "<|return|>"},
    "mistral": {"heads": ["", "[INST] ", ""], "written": " ", "end": "</s>", "user_end": " [/INST]",
                "system": "merged", "alternates": True, "bos": "<s>"},
    "gemma": {"heads": ["", "<start_of_turn>user\n", "<start_of_turn>model\n"], "end": "<end_of_turn>",
              "after": "\n", "filter": "trim", "system": "refused", "alternates": True, "bos": "<s>"},
    "words": {"heads": ["System: ", "User: ", "Assistant: "], "end": "", "after": "\n\n"},
}  # fmt: skip
CONTENTS = [
    "a", "is", "final", "assistant", "user", "system", "model", "end", "i", "n", "t", "s", "1", "No.",
    "channel", "message", "im_end", "_", "|", "<", ">", "<|", "|>", ":", "/s", "INST", "TURN", "id",
    "<|im_end|>", "</s>", "<|im_end", "a</s>", "<s>a", "<|end|>final<|message|>", "[/INST] a", "<|eot_id|>\n",
    " a", "a ", "\n\na\n\n", "a\r\n", "\ta", "a\u00a0", "\u2028a", "a\u200b", "naïve", "七", "🚢", "e\u0301",
    "שלום", "{{ 1 }}", "{% if %}", "'\"\\", "\x00", "a\x85", "\ufeffa", "two words", "a" * 300,
    "<think>why</think>a", "<think>\nwhy\n</think>\n\na", "</think>", "<think>", "Seven fathoms.",
    "", " ", "\n", MARK, f"a{EDGE}",
]  # fmt: skip
PROBED = ("How deep is it?", "a or b?", "Is it final, user?")


def draw(rng: random.Random) -> dict[str, Any]:
    name = rng.choice(list(STYLES))
    style = {
        "name": name, "bos": rng.choice(("", "<s>")), "written": "", "after": "", "filter": "", "last": "",
        "prompt": rng.choice(("header", "header", "inside", "none")), "system": "own", "alternates": False,
        "default": rng.choice(("", "", "Help the user.")), "reads_first": rng.random() < 0.3,
        "joined": rng.random() < 0.5, "user_end": None, **STYLES[name],
    }  # fmt: skip
    if rng.random() < 0.2:
        style["filter"] = rng.choice(("", "trim", "tojson", "thoughts"))
    if rng.random() < 0.1:
        style["written"] = rng.choice(("<|channel|>final<|message|>", "\n", "a", "<think>\n\n</think>\n\n"))
    return {"style": style, "talks": [_talk(rng) for _ in range(TALKS)]}


def _talk(rng: random.Random) -> list[dict[str, str]]:
    roles = ["user", ASSISTANT] * rng.randint(1, 3)
    shape = rng.random()
    if shape < 0.15:
        roles = roles[1:]  # the assistant speaks first
    elif shape < 0.2:
        roles.insert(rng.randrange(len(roles)), ASSISTANT)
    elif shape < 0.25:
        roles.append("user")
    elif shape < 0.27:
        roles.insert(rng.randrange(len(roles)), "tool")
    if rng.random() < 0.3:
        roles.insert(0, "system")
    content = [rng.choice(CONTENTS[:-5] if rng.random() < 0.98 else CONTENTS) for _ in roles]
    for place, role in enumerate(roles):
        if role != ASSISTANT and rng.random() < 0.7:
            content[place] = rng.choice(PROBED)
    return [{"role": role, "content": one} for role, one in zip(roles, content, strict=True)]


@cache
def _process(module: str, limits: Limits) -> LimitedProcess:
    """One for all cases, of which each sends its own template."""
    return LimitedProcess(module, limits)


def check(case: dict[str, Any], folder: Path) -> str:
    style = case["style"]
    files = {
        "tokenizer.json": _tokenizer().to_str().encode(),
        "tokenizer_config.json": json.dumps({"bos_token": "<s>", "eos_token": "</s>"}).encode(),
        "chat_template.jinja": template(style).encode(),
    }
    with mock.patch.object(chat_template, "LimitedProcess", _process):
        tokens = ChatTokens(open_input(artifact(folder / "model", "model", files)), folder)
    ends = {_outcome(tokens, style, talk) for talk in case["talks"]}
    return "works" if "works" in ends else "refused"


def _outcome(tokens: ChatTokens, style: Style, talk: list[ChatMessage]) -> str:
    messages = messages_of({"messages": cast(Json, talk)}, "messages")
    talk = [cast(ChatMessage, {**one, "content": one["content"].removeprefix("\ufeff")}) for one in talk]
    wanted = None if _is_refused(style, talk) else _rows(style, talk)
    try:
        rows = None if isinstance(messages, str) else tokens.rows(messages)
    except DataError as error:
        assert wanted is None or _may_be_refused(style, talk), f"refused: {error}: {talk}"
        return "refused"
    if rows is None or wanted is None:
        assert rows is wanted, f"{rows} where {wanted} is right ({messages}): {talk}"
        return "refused"
    special = {tokens.vocabulary.special(name) for name in SPECIALS}
    found = []
    for row in rows:
        said = [_text(tokens, row.ids[begin:end], special) for begin, end in row.learned]
        found.append((_text(tokens, row.ids, special), said, sum(one in special for one in row.ids)))
    assert found == wanted, f"{found} where {wanted} is right: {talk}"
    return "works"


def _text(tokens: ChatTokens, ids: Sequence[int], special: set[int]) -> str:
    vocabulary = tokens.vocabulary
    return b"".join(
        vocabulary.token(one).encode() if one in special else vocabulary.bytes_of([one]) for one in ids
    ).decode()


def _is_refused(style: Style, talk: list[ChatMessage]) -> bool:
    roles, contents = [one["role"] for one in talk], [one["content"] for one in talk]
    if "tool" in roles or ASSISTANT not in roles or any(not one.strip() for one in contents):
        return True
    if any(MARK in one or EDGE in one for one in contents):
        return True
    if style["system"] == "refused" and "system" in roles:
        return True
    turns = [role for role in roles if role != "system" or style["system"] == "own"]
    return style["alternates"] and any((one == "user") != (n % 2 == 0) for n, one in enumerate(turns))


def _may_be_refused(style: Style, talk: list[ChatMessage]) -> bool:
    """Where no user speaks before the first answer, and the template changes the answer's front."""
    roles = [one["role"] for one in talk]
    first = talk[roles.index(ASSISTANT)]["content"]
    changed = {"thoughts": "</think>" in first, "tojson": not first[0].isprintable()}.get(
        style["filter"], False
    )
    return changed and "user" not in roles[: roles.index(ASSISTANT)]


def _rows(style: Style, talk: list[ChatMessage]) -> list[tuple[str, list[str], int]]:
    """Of each row the text, what is learned of it, and how many special tokens the template wrote in it."""
    numbers = [n for n, one in enumerate(talk, start=1) if one["role"] == ASSISTANT]
    whole, each = _pieces(style, talk), [_cut(_pieces(style, talk[:n])) for n in numbers]
    if all(_joined(whole).startswith(_joined(one)) for one in each):
        pieces = _cut(whole)
        return [(_joined(pieces), [said for said, _, learned in _merged(pieces) if learned], _num(pieces))]
    return [(_joined(one), [_merged(one)[-1][0]], _num(one)) for one in each]


def _pieces(style: Style, talk: list[ChatMessage]) -> list[Piece]:
    """What the template of the style writes."""
    pieces: list[Piece] = [(style["bos"], True, 0)]
    system = talk[0]["content"] if style["system"] == "merged" and talk[0]["role"] == "system" else ""
    rest = talk[1:] if system else talk
    for n, one in enumerate(rest):
        mine = n + 1 if one["role"] == ASSISTANT else 0
        role, is_last = ROLES.index(one["role"]), n == len(rest) - 1
        if style["default"] and n == 0 and role != 0:
            pieces.append((style["heads"][0] + style["default"] + style["end"] + style["after"], True, 0))
        if role == 1 and system:
            pieces += [(style["heads"][1], True, 0), (f"{system}\n\n", False, 0)]
            system = ""
        elif role != 2 or style["prompt"] != "none":
            pieces.append((style["heads"][role], True, 0))
        else:
            pieces.append((style["heads"][role], True, n + 1))
        if role == 2:
            pieces.append((style["written"], True, n + 1))
        pieces.append((_content(style, one), False, mine))
        end = style["end"] if style["user_end"] is None or role != 1 else style["user_end"]
        if role == 2 and style["last"] and is_last:
            end = style["last"]
        pieces.append((end, True, mine))
        pieces.append((style["after"], True, 0 if end else mine))
    return pieces


def _content(style: Style, message: ChatMessage) -> str:
    content = message["content"]
    if style["filter"] == "thoughts" and message["role"] == ASSISTANT:
        return content.split("</think>")[-1].lstrip("\n")
    if style["filter"] == "tojson":
        return json.dumps(content, ensure_ascii=False)
    return content.strip() if style["filter"] == "trim" else content


def _cut(pieces: list[Piece]) -> list[Piece]:
    """Up to the last piece that is learned."""
    return pieces[: max(n for n, (_, _, learned) in enumerate(pieces) if learned) + 1]


def _joined(pieces: list[Piece]) -> str:
    return "".join(text for text, _, _ in pieces)


def _num(pieces: list[Piece]) -> int:
    longest = sorted(SPECIALS, key=len, reverse=True)
    special = re.compile("|".join(map(re.escape, longest)))
    return sum(len(special.findall(text)) for text, is_own, _ in pieces if is_own)


def _merged(pieces: list[Piece]) -> list[Piece]:
    """Neighbours that are learned alike, as one."""
    found = []
    for learned, some in groupby(pieces, key=lambda piece: piece[2]):
        found.append(("".join(text for text, _, _ in some), True, learned))
    return found


def template(style: Style) -> str:
    """The Jinja text of a style."""
    parts = ["{% if messages[0]['role'] == 'tool' %}{{ raise_exception('no') }}{% endif %}"] * style[
        "reads_first"
    ]
    parts += [_write(style["bos"]), "{% set ns = namespace(system='') %}{% set rest = messages %}"]
    if style["system"] == "merged":
        parts.append(
            "{% if messages and messages[0]['role'] == 'system' %}"
            "{% set ns.system = messages[0]['content'] %}{% set rest = messages[1:] %}{% endif %}"
        )
    parts.append("{% for message in rest %}")
    if style["system"] == "refused":
        parts.append("{% if message['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}")
    if style["alternates"]:
        parts.append(
            "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
            "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
        )
    if style["default"]:
        text = style["heads"][0] + style["default"] + style["end"] + style["after"]
        parts.append(f"{{% if loop.first and message['role'] != 'system' %}}{_write(text)}{{% endif %}}")
    parts += [_turn(style, role) for role in range(3)] + ["{% endif %}"]
    if style["prompt"] == "inside":
        parts.append(
            f"{{% if loop.last and add_generation_prompt %}}{_write(style['heads'][2])}{{% endif %}}"
        )
    parts.append("{% endfor %}")
    if style["prompt"] == "header":
        parts.append(f"{{% if add_generation_prompt %}}{_write(style['heads'][2])}{{% endif %}}")
    return "".join(parts)


def _turn(style: Style, role: int) -> str:
    content = "message['content']"
    if style["filter"] in ("trim", "tojson"):
        content += f" | {style['filter']}"
    if style["filter"] == "thoughts" and role == 2:
        content = "message['content'].split('</think>')[-1].lstrip('\\n')"
    content = f"({content})" if role != 1 else f"(ns.system + ('\\n\\n' if ns.system else '') + ({content}))"
    end = json.dumps(style["end"] if style["user_end"] is None or role != 1 else style["user_end"])
    if role == 2 and style["last"]:
        end = f"({json.dumps(style['last'])} if loop.last and not add_generation_prompt else {end})"
    written = style["written"] if role == 2 else ""
    each = [json.dumps(style["heads"][role] + written), content, end, json.dumps(style["after"])]
    body = f"{{{{ {' + '.join(each)} }}}}" if style["joined"] else "".join(f"{{{{ {one} }}}}" for one in each)
    forget = "{% set ns.system = '' %}" if role == 1 else ""
    return f"{{% {'elif' if role else 'if'} message['role'] == '{ROLES[role]}' %}}{body}{forget}"


def _write(text: str) -> str:
    return f"{{{{ {json.dumps(text)} }}}}" if text else ""


@cache
def _tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIALS, initial_alphabet=alphabet)
    made.train_from_iterator(["the answer is a final one: user assistant system model end"] * 4, trainer)
    return made


def broken() -> AbstractContextManager[object]:
    """An answer's text is searched for, and found in its header."""

    def searched(self: ChatTokens, messages: list[ChatMessage], after: str) -> int:
        content = messages[-1]["content"].strip()
        place = after.find(content, self._begin(messages, after)) + len(content)
        behind = self._tokens.pattern.search(after, place)
        return behind.end() if behind else len(after)

    return mock.patch.object(ChatTokens, "_end", searched)

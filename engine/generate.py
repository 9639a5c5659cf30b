"""Continue prompts with a model, answer chats, or serve requests: python -m atelier.engine.generate run.json

run.json: config is a Generation (engine/config/generation.py), inputs {"model": a model artifact}, no
outputs; the ranks of its layout are started here, on this machine. Prompts stream as {"prompt": number,
"text": piece}, finally {"done": {"tokens", "tokens_per_s"}}. With `serve` every input line is a Request as
JSON and gets one line: {"text": the whole continuation} or {"error": reason}, in request order, or with an
`id` when done. Rows are computed together; each has its own seed, and answers do not depend on each other.
"""

import os
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TextIO

import torch

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError
from atelier.engine.config.generation import MESSAGES, Generation, Sampling, messages_of
from atelier.engine.config.parallel import inference_axes, split_of
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.chat_template import ChatMessage
from atelier.engine.data.chat_tokens import ASSISTANT, ChatTokens
from atelier.engine.data.render import checked
from atelier.engine.inference.generator import Generator
from atelier.engine.inference.opened import opened_generator
from atelier.engine.inference.serving import serve
from atelier.engine.io.process import input_of, leave, run_verb, say
from atelier.engine.parallel.gang import other_ranks, start_gang

# below this many parameters one thread is as fast, and no token waits for a thread without a core
SMALL = 30_000_000
SPLIT = "ATELIER_SERVE_SPLIT"  # layout of a served model over ranks of this machine, such as tensor=2


def answer_prompts(generator: Generator, prompts: Iterable[str], sampling: Sampling, target: TextIO) -> None:
    """Write the pieces of each prompt's continuation as they arrive, then count and speed of tokens."""
    _say_all(generator, (generator.stream(prompt, sampling) for prompt in prompts), target)


def _say_all(generator: Generator, streams: Iterable[Iterable[str]], target: TextIO) -> None:
    before, began = generator.num_tokens, time.monotonic()
    for number, pieces in enumerate(streams):
        for piece in pieces:
            say(target, {"prompt": number, "text": piece})
    num_tokens = generator.num_tokens - before
    rate = num_tokens / max(time.monotonic() - began, 1e-9)
    say(target, {"done": {"tokens": num_tokens, "tokens_per_s": round(rate, 1)}})


def answer_chats(
    generator: Generator, tokens: ChatTokens, chats: Iterable[str], sampling: Sampling, target: TextIO
) -> None:
    """`answer_prompts` for conversations. Raises ConfigError for an invalid one."""
    prompts, ends = [tokens.prompt(conversation(chat)) for chat in chats], tokens.ends()
    _say_all(generator, (generator.answer(ids, sampling, ends) for ids in prompts), target)


def conversation(text: str) -> list[ChatMessage]:
    """A user's message, or the messages of a JSON list of objects. Raises ConfigError for a list that cannot
    be answered.
    """
    messages = messages_of(text)
    if messages is None:
        found = checked([{"role": "user", "content": text}], "it", "it")
    else:
        found = checked(messages, "it", "message {}")
        if isinstance(found, list) and found[-1]["role"] == ASSISTANT:
            found = "the last message is the assistant's"
    if isinstance(found, str):
        raise ConfigError("chat", found, MESSAGES)
    return found


def generate(run: RunFile, lines: Iterable[bytes], target: TextIO) -> None:
    """Run the generation of the run file: requests are read from `lines`, answers go to `target`."""
    generation = parse(Generation, run.config, "config")
    gang = start_gang(run.layout, run.gpu)
    source, scratch = input_of(run, "model"), Path(run.scratch)
    axes, memory = inference_axes(run.layout.for_world(gang.world)), int(generation.memory_gb * 1e9)
    with opened_generator(source, scratch, axes, gang, memory=memory) as generator:
        if generator is None:
            return
        if run.layout.threads == "auto" and generator.model.spec.num_params() < SMALL:
            torch.set_num_threads(1)
        if generation.serve:
            serve(generator, lines, target, memory=int(generation.cache_gb * 1e9))
        elif generation.chats:
            tokens = ChatTokens(source, scratch, now=datetime.now())
            answer_chats(generator, tokens, generation.chats, generation, target)
        else:
            answer_prompts(generator, generation.prompts, generation, target)


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code; one JSON line reports an error."""

    def act(run: RunFile) -> None:
        if words := os.environ.get(SPLIT, "") if run.config.get("serve") else "":
            run = run.model_copy(update={"layout": split_of(words, SPLIT)})
        ranks = run.layout.resolved(slots=1, cores=1).ranks
        with other_ranks("atelier.engine.generate", arguments[0], ranks):
            generate(run, sys.stdin.buffer, sys.stdout)

    return run_verb("generate", arguments, act)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))  # without interpreter shutdown, which would wait for the input thread

"""Chat templates in the manner of public ones, and conversations."""

import json
from pathlib import Path

from atelier.engine.data.chat_template import ChatMessage

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
THINKING = """{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role != "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- else %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last %}
            {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
HEADERS = (
    "{{- bos_token }}\n{%- for message in messages %}\n"
    "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}\n"
    "    {{- message['content'] | trim + '<|eot_id|>' }}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n"
)
ALTERNATING = (
    "{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}"
    "{%- for message in rest %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{% if loop.last and system is defined %}"
    "{{ '[INST] ' + system + '\\n\\n' + message['content'] + ' [/INST]' }}{% else %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% endif %}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
LINES = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
    "{{ '<|user|>\\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
    "{{ '<|system|>\\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n"
    "{{ '<|assistant|>\\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
GENERATION = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}"
    "{{ message.content }}<|im_end|>{% endif %}\n{{ '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,  # Qwen 2
    "thinking": THINKING,  # Qwen 3
    "headers": HEADERS,  # Llama 3
    "alternating": ALTERNATING,  # Mistral
    "lines": LINES,  # Zephyr
    "generation": GENERATION,
}
WORDS = {"bos_token": "<s>", "eos_token": "</s>"}


def talk(*said: str, system: str = "") -> list[ChatMessage]:
    """What is said in turns, by a user first."""
    roles = ("user", "assistant")
    turns: list[ChatMessage] = [{"role": roles[n % 2], "content": one} for n, one in enumerate(said)]
    return [{"role": "system", "content": system}, *turns] if system else turns


TALKS: dict[str, list[ChatMessage]] = {
    "one turn": talk("How deep is it?", "Seven fathoms."),
    "two turns": talk("How deep?", "Seven fathoms.", "And  there?\n", "  Nine — naïve, fünf Boote."),
    "system": talk("How deep?", "Seven.", "There?", "Nine.", system="Answer in fathoms."),
    "thoughts": talk("How?", "<think>\nThe lead.\n</think>\n\nSeven.", "So?", "<think>Hm</think>Nine."),
    "two answers": [*talk("How deep?", "Seven."), {"role": "assistant", "content": "Or eight."}],
    "open": talk("How deep is it?"),
}

DEPTHS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def write_talks(path: Path, count: int) -> None:
    """So many conversations, of which there is something to learn."""
    lines = []
    for n in range(count):
        first, second = DEPTHS[n % 9], DEPTHS[n * 5 % 7]
        messages = talk(f"Is it {first}? ({n})", f"{first} fathoms.", f"{second}?", f"{second} fathoms.")
        lines.append(json.dumps({"messages": messages}) + "\n")
    path.write_text("".join(lines))

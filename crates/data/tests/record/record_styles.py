"""Records ../golden/styles.json: the templates of ../golden/styles, rendered by Transformers 5.23 with jinja2.

    python record_styles.py [--show TEMPLATE CONVERSATION]

Of each template and conversation, without and with a generation prompt, the digest of the text (FNV-1a, 64 bits) or
`!` where Transformers raises. `--show` prints both texts of one case. Nothing here is needed to run the tests.
"""

import argparse
import copy
import datetime
import json
import pathlib

import transformers.utils.chat_template_utils as chat_template_utils
from conversations import CONVERSATIONS

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
NOW = 1_721_952_000 + 45_296  # 2024-07-26 12:34:56 UTC
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class FixedDatetime(datetime.datetime):
    """strftime_now reads this clock."""

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


chat_template_utils.datetime = FixedDatetime


def digest(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def rendered(template, messages, tools, documents, variables, prompt):
    out, _ = chat_template_utils.render_jinja_template(
        # As `apply_chat_template`, which drops what is null.
        conversations=[[{k: v for k, v in copy.deepcopy(m).items() if v is not None} for m in messages]],
        tools=tools,
        documents=documents,
        chat_template=template,
        add_generation_prompt=prompt,
        **{**TOKENS, **variables},
    )
    return out[0]


def record(template):
    out = []
    for _, *given in CONVERSATIONS:
        for prompt in (False, True):
            try:
                out.append(digest(rendered(template, *given, prompt)))
            except Exception:
                out.append("!")
    return " ".join(out)


def replaced(name, *pairs):
    text = (GOLDEN / "styles" / f"{name}.jinja").read_text()
    for old, new in pairs:
        assert old in text, (name, old)
        text = text.replace(old, new)
    return text


CHATML = "{{'<|im_start|>' + turn['role'] + '\n' + turn['content'] + '<|im_end|>' + '\n'}}"
ASSISTANT = "{{- '<|im_start|>assistant\\n' }}{%- generation %}"


def marked():
    """Templates of ../golden/styles with their assistant's turns marked, as TRL's training templates mark them."""
    said = "{% if turn['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}{{ turn['content'] + '<|im_end|>\n' }}{% endgeneration %}{% else %}"
    tool = '{%- elif turn.role == "tool" %}'
    return {
        "chatml": replaced("chatml", (CHATML, said + CHATML + "{% endif %}")),
        "mistral_v1": replaced(
            "mistral_v1", ("{{ turn['content'] + eos_token}}", "{% generation %}{{ turn['content'] + eos_token}}{% endgeneration %}")
        ),
        "qwen3": replaced(
            "qwen3",
            ('{%- elif turn.role == "assistant" %}', '{%- elif turn.role == "assistant" %}' + ASSISTANT),
            ("'<|im_start|>' + turn.role + '\\n<think>", "'<think>"),
            ("{{- '<|im_start|>' + turn.role + '\\n' + said }}", "{{- said }}"),
            (tool, "{%- endgeneration %}" + tool),
        ),
    }


def record_masks():
    """Which tokens of a conversation are the assistant's, by the marked templates, where the text is the unmarked's."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(GOLDEN / "model")
    out = []
    for name, template in marked().items():
        plain = (GOLDEN / "styles" / f"{name}.jinja").read_text()
        for conversation, messages, tools, documents, variables in CONVERSATIONS:
            given = {"tools": tools, "documents": documents, **variables}
            try:
                text = tokenizer.apply_chat_template(messages, chat_template=plain, tokenize=False, **given)
                tokens = tokenizer.apply_chat_template(
                    messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True, **given
                )
            except Exception:
                continue
            if 1 not in tokens["assistant_masks"] or any("role" not in m for m in messages):
                continue
            assert text == tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **given), (name, conversation)
            learned = "".join(map(str, tokens["assistant_masks"]))
            out.append({"template": name, "conversation": conversation, "learned": learned})
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--show", nargs=2)
    show = parser.parse_args().show
    if show:
        template = (GOLDEN / "styles" / f"{show[0]}.jinja").read_text()
        given = next(c[1:] for c in CONVERSATIONS if c[0] == show[1])
        for prompt in (False, True):
            print(repr(rendered(template, *given, prompt)))
    else:
        names = ("name", "messages", "tools", "documents", "variables")
        conversations = [dict(zip(names, c)) for c in CONVERSATIONS]
        templates = {p.stem: record(p.read_text()) for p in sorted((GOLDEN / "styles").glob("*.jinja"))}
        lines = lambda rows: "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
        texts = ",\n".join(f"{json.dumps(n)}: {json.dumps(v)}" for n, v in templates.items())
        out = f'{{"now": {NOW}, "tokens": {json.dumps(TOKENS)}, "conversations": {lines(conversations)}, "templates": {{\n{texts}\n}}, "masks": {lines(record_masks())}}}\n'
        (GOLDEN / "styles.json").write_text(out)

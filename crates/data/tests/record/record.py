"""Records templates.json and prepared.json of ../golden with Transformers 5.23, TRL 1.16 and jinja2.

    python record.py [--model FOLDER]

`golden/model` holds the tokenizer and chat template that the recordings use; `golden/rows` the rows. FOLDER is a
Llama folder with the same tokenizer and with weights: TRL's trainer wants a model although only its prepared rows are
recorded. Without it templates.json alone is written. Nothing here is needed to run the tests.
"""

import argparse
import datetime
import json
import pathlib
import re

import transformers.utils.chat_template_utils as chat_template_utils
from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
NOW = 1_721_952_000 + 45_296  # 2024-07-26 12:34:56 UTC


class FixedDatetime(datetime.datetime):
    """strftime_now reads this clock."""

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


chat_template_utils.datetime = FixedDatetime

U = {"role": "user", "content": "How warm is it in Oslo?"}
A = {"role": "assistant", "content": "Four degrees."}
S = {"role": "system", "content": "  Answer briefly. \n"}
U2 = {"role": "user", "content": "And in Âlesund – “now”?"}
A2 = {"role": "assistant", "content": "Fünf 🌧 Grad."}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says the \"weather\" <now> & here's more",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Which city – Ålesund?"},
                "items": {"type": "array", "items": {"type": "string", "enum": ["rain", "sun"]}},
                "days": {"type": ["integer", "null"], "default": 1, "minimum": 0.5},
            },
            "required": ["city"],
        },
    },
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo", "days": 2, "exact": True, "unit": None, "scale": 1.0}}}],
}
RESULT = {"role": "tool", "name": "weather", "content": '{"celsius": 4}'}
THINK = {"role": "assistant", "content": "<think>\nlook it up\n</think>\n\nFour degrees."}
BLOCKS = {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "image"}, {"type": "text", "text": "two"}]}

CHATS = {
    "single": [U],
    "pair": [U, A],
    "system": [S, U, A, U2, A2],
    "tools": [S, U, CALL, RESULT, A],
    "think": [U, THINK, U2, THINK],
    "blocks": [BLOCKS, A],
    "reasoning": [U, {"role": "assistant", "content": "4", "reasoning": "sum"}, U2],
}

# Small exercises, each on features that published chat templates use.
TEMPLATES = {
    "header_blocks": """{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.content is string %}
        {{- m.content | trim }}
    {%- elif m.content is iterable and m.content is not mapping %}
        {%- for part in m.content %}
            {%- if part.type == 'text' %}{{ part.text }}{% else %}<|{{ part['type'] }}|>{% endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""",
    "whitespace": """{% for m in messages %}
  {% if loop.first %}
first {{ m.role }}
  {% elif loop.last -%}
    last {{ m.role }}
  {%- else %}
  middle {{ m.role }}
  {% endif %}
{% endfor %}
{# a comment {% on its own %} #}
end
{{- eos_token }}

""",
    "system_slice": """{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'].strip() %}{% set rest = messages[1:] %}{% else %}{% set system = none %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate, row ' ~ loop.index ~ ' is ' ~ m['role']) }}{% endif %}{% if loop.index0 == 0 and system is not none %}{% set text = '<<' + system + '>> ' + m['content'] %}{% else %}{% set text = m['content'] %}{% endif %}{% if m['role'] == 'user' %}[I] {{ text }} [/I]{% else %} {{ text }}{{ eos_token }}{% endif %}{% endfor %}""",
    "namespace_tools": """{%- set ns = namespace(found=false, last=-1, names=[]) %}
{%- for m in messages %}
  {%- if m.role == 'user' and not ns.found %}{% set ns.found = true %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- if tools %}
{{- '# Tools\\n' }}
{%- for tool in tools %}{{ tool | tojson }}
{{ tool.function.parameters.properties | tojson(indent=2) }}
{% endfor %}
{%- endif %}
{%- for m in messages %}
[{{ m.role }}{% if loop.index0 == ns.last %}*{% endif %}]
{%- if m.tool_calls is defined and m.tool_calls %}
  {%- for call in m.tool_calls %}
    {%- set f = call.function if call.function is defined else call %}
 {"name": "{{ f.name }}", "arguments": {{ f.arguments if f.arguments is string else f.arguments | tojson }}}
    {%- for k, v in f.arguments.items() %} {{ k }}={{ v }}/{{ v | string | length }}{% endfor %}
    {%- for k, v in f.arguments | items %}{% if not loop.last %} {{ k | upper }},{% endif %}{% endfor %}
  {%- endfor %}
{%- elif m.content is not none and m.content is defined %} {{ m.content }}
{%- endif %}
{%- endfor %}
{{ '[assistant]' if add_generation_prompt else '' }}""",
    "macro_schema": """{%- macro kind(spec) -%}
  {%- if spec.type is string -%}{{ spec.type }}
  {%- elif spec.type is iterable -%}{{ spec.type | join(' | ') }}
  {%- else -%}any{%- endif -%}
  {%- if spec.type == 'array' %}<{{ kind(spec['items']) }}>{% endif -%}
  {%- if spec.enum is defined %} in ({% for e in spec.enum %}{{ e | tojson }}{{ ', ' if not loop.last }}{% endfor %}){% endif -%}
{%- endmacro -%}
{%- macro tool(t, prefix='- ') -%}
{{ prefix }}{{ t.name }}: {{ t.description | replace('"', "'") }}
{%- for name, spec in t.parameters.properties.items() %}
  {{ name }}{{ '' if name in t.parameters.required else '?' }}: {{ kind(spec) }}{% if spec.default is defined %} = {{ spec.default }}{% endif %}
{%- endfor %}
{%- endmacro -%}
{%- if tools is not none and tools | length > 0 %}
{%- for t in tools %}{{ tool(t.function) }}
{% endfor %}{% endif %}
{%- for m in messages %}{{ '\\n' ~ loop.index ~ '/' ~ messages | length ~ ' ' ~ m.role | capitalize }}: {{ (m.content or '-') | string | trim }}{% endfor %}""",
    "think_strip": """{%- set ns = namespace(last=messages | length - 1) %}
{%- for m in messages[::-1] %}
  {%- set index = (messages | length - 1) - loop.index0 %}
  {%- if m.role == 'user' and ns.last == messages | length - 1 %}{% set ns.last = index %}{% endif %}
{%- endfor %}
{%- for m in messages %}
{%- set content = m.content if m.content is string else '' %}
{%- if m.role == 'assistant' %}
  {%- set thought = '' %}
  {%- if m.reasoning_content is string %}{% set thought = m.reasoning_content %}
  {%- elif '</think>' in content %}
    {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
  {%- endif %}
  {%- if loop.index0 > ns.last and (loop.last or thought) %}{{ '(' + thought.strip() + ') ' }}{% endif %}
{%- endif %}
{{- m.role ~ ': ' ~ content }}
{% endfor %}
{%- if add_generation_prompt %}assistant:{% if enable_thinking is defined and enable_thinking is false %} (){% endif %}{% endif %}""",
    "date": """{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}Today: {{ date_string }} ({{ strftime_now('%A, %B %d, %Y at %H:%M, day %j, %y-%m-%dT%I%p') }})
{%- for m in messages if m.role != 'system' %}
{{ loop.index }}. {{ m.role }} {{- ' …' if m.content is not string }}
{%- else %} nothing
{%- endfor %}""",
    "control": """{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role[0] | upper }}{{ m.role[1:3] }}{% if loop.index >= 4 %}{% break %}{% endif %}{% endfor %}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | join('+') }} {{ messages | map(attribute='role') | unique | list | tojson }} {{ (messages | last).role }} {{ messages | first | length }} {{ range(3) | list }} {{ range(1, 10, 4) | join(',') }}
{{- undefined_thing }}{{ undefined_thing | default('d') }}{{ none | default('n', true) }}{{ '' | default('e', true) }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ 2 ** 3 }} {{ 7 / 2 }} {{ 1.0 }} {{ true }} {{ none }} {{ [1, 'a', none, false, 2.5] }} {{ {'k': 'v', 'n': [1]} }} {{ (1, 2) }} {{ 'ab' * 2 }} {{ 'x' in 'xyz' }} {{ 'k' in {'k': 1} }}""",
    "methods": """{{ '  pad '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '--a'.lstrip('-') }}|{{ 'a--'.rstrip('-') }}|{{ 'a,b,c'.split(',') }}|{{ 'a,b,c'.split(',', 1)[1] }}|{{ ' a  b '.split() }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith(('c', 'd')) }}|{{ 'aXbX'.replace('X', '-') }}|{{ 'aXbX'.replace('X', '-', 1) }}|{{ 'mixed Case'.title() }}|{{ 'aB'.upper() }}{{ 'aB'.lower() }}|{{ 'word'.capitalize() }}|{{ 'abcabc'.find('c') }}|{{ 'abc'.find('z') }}|{{ 'abcabc'.rfind('c') }}|{{ 'abcabc'.count('b') }}|{{ '12'.isdigit() }}|{{ ', '.join(['a', 'b']) }}|{{ 'pre-x'.removeprefix('pre-') }}|{{ 'x.suf'.removesuffix('.suf') }}|{{ 'a=b=c'.partition('=') }}|{{ 'a=b=c'.rpartition('=') }}|{{ 'a b c'.rsplit(' ', 1) }}|{{ '7'.zfill(3) }}|{{ 'ab'.ljust(4, '.') }}|{{ 'ab'.rjust(4) }}|{{ 'ab'.center(5, '*') }}|{{ 'l1\\nl2'.splitlines() }}|{{ '{} and {}'.format('a', 1) }}|{{ {'a': 1}.get('b', 'none') }}|{{ {'a': 1}.get('b') }}|{{ {'a': 1, 'b': 2}.keys() | list }}|{{ {'a': 1, 'b': 2}.values() | list }}|{{ {'b': 1, 'a': 2} | dictsort }}|{{ 'a' ~ 1 ~ none ~ true ~ 2.0 }}|{{ 'tok' | upper | replace('T', 't') | length }}|{{ [3, 1, 2] | sort | join }}|{{ 'abc'[::-1] }}|{{ 'abc'[-1] }}|{{ [1, 2] + [3] }}|{{ 'x' if false }}|{{ 'a\\tb' | tojson }}|{{ 'é<&\\'' | tojson }}|{{ 1e20 | tojson }}|{{ 0.1 | tojson }}|{{ {'a': [1, {'b': none}], 'c': []} | tojson(indent=4) }}|{{ {'b': 1, 'a': true} | tojson(sort_keys=true, separators=(',', ':')) }}|{{ 'é' | tojson(ensure_ascii=true) }}|{{ '%s-%d' | format('a', 3) }}|{{ 5 | int + '6' | int }}|{{ '1.5' | float }}|{{ [1, 2, 3] | sum }}|{{ 3.7 | round }}|{{ ['a', 'b'] | last }}|{{ 'a b' | wordcount if false else 'w' }}|{{ 'text' is string and 1 is number and 1 is integer and 1.5 is float and {} is mapping and [] is sequence and 'a' is sequence and true is boolean and none is none }}|{{ 4 is even }}{{ 3 is odd }}{{ 9 is divisibleby 3 }}""",
    "tests_and_scope": """{%- set outer = 'o' -%}
{%- for m in messages -%}
{%- set outer = outer ~ m.role[0] -%}
{%- endfor -%}
{{ outer }} {{ m is defined }} {{ messages is sequence }} {{ none is iterable }} {{ missing is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ tools is none }} {{ tools is defined }} {{ documents is none }} {{ custom is defined }} {{ custom | default('no custom') }}
{%- set joined %}{% for m in messages %}<{{ m.role }}>{% endfor %}{% endset %} {{ joined | length }} {{ joined }}
{%- with a = 1, b = 'c' %} {{ a }}{{ b }}{% endwith %}
{%- if messages[-1].role in ['user', 'tool'] and not messages[0].name %} asks{% elif messages[-1]['role'] not in ('user',) %} answers{% endif %} {{ messages[0].missing }} {{ pad_token is defined }} {{ unk_token is defined }}
{%- for a, b in [(1, 2), (3, 4)] %} {{ a }}:{{ b }}{% endfor %}
{%- for k in {'x': 1, 'y': 2} %} {{ k }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.revindex }}{% endfor %}
{%- filter upper %} filtered {{ messages[0].role }}{% endfilter %}
{%- raw %} {{ not rendered }}{% endraw %}""",
    "generation": """{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}{% generation %}{{ m.content }}{{ '<|im_end|>' }}{% endgeneration %}

{% else %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "generation_trimmed": """{% for m in messages %}
<{{ m.role }}>
  {%- if m.role == 'assistant' %}
    {%- generation -%}
      {{ m.content | trim }}
      {%- if m.tool_calls %}{% for c in m.tool_calls %} call {{ c.function.name }}{% endfor %}{% endif %}
    {%- endgeneration -%}
    <|im_end|>
  {%- else %}{{ m.content | trim }}<|im_end|>
  {%- endif %}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}""",
}


def rendered(tokenizer, template, chat, **kwargs):
    """One case: the text or the error, and with masks the ids and where the assistant's are."""
    case = {"chat": chat, **{k: v for k, v in kwargs.items() if k != "variables"}}
    variables = kwargs.pop("variables", {})
    if variables:
        case["variables"] = variables
    try:
        case["text"] = tokenizer.apply_chat_template(
            CHATS[chat], chat_template=template, tokenize=False, **kwargs, **variables
        )
    except Exception as error:
        case["error"] = str(error)
        return case
    if re.search(r"\{%-?\s*generation", template) and not kwargs.get("continue_final_message"):
        out = tokenizer.apply_chat_template(
            CHATS[chat], chat_template=template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True,
            **kwargs, **variables,
        )
        case["input_ids"] = out["input_ids"]
        case["assistant_masks"] = "".join(map(str, out["assistant_masks"]))
    return case


def record_templates():
    tokenizer = AutoTokenizer.from_pretrained(GOLDEN / "model")
    templates = []
    for name, template in TEMPLATES.items():
        cases = []
        for chat in CHATS:
            cases.append(rendered(tokenizer, template, chat))
            cases.append(rendered(tokenizer, template, chat, add_generation_prompt=True))
        cases.append(rendered(tokenizer, template, "tools", tools=[TOOL]))
        cases.append(rendered(tokenizer, template, "single", tools=[]))
        cases.append(rendered(tokenizer, template, "single", add_generation_prompt=True, variables={"enable_thinking": False, "custom": [1, "x"], "date_string": "1 May", "eos_token": "</s>"}))
        cases.append(rendered(tokenizer, template, "system", continue_final_message=True))
        templates.append({"name": name, "template": template, "cases": cases})
    write("templates.json", {"now": NOW, "tokens": tokenizer.special_tokens_map, "tool": TOOL, "chats": CHATS, "templates": templates})


def record_prepared(model):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer
    from transformers import AutoModelForCausalLM

    read = lambda name: [json.loads(line) for line in (GOLDEN / "rows" / f"{name}.jsonl").read_text().splitlines()]
    split = lambda row: {"prompt": row["messages"][:-1], "completion": row["messages"][-1:]}
    sharegpt = lambda row: {"conversations": [{"from": m["role"], "value": m["content"]} for m in row["messages"]]}
    rows = {
        "lm": read("lm"),
        "prompt_completion": read("prompt_completion"),
        "conversations": read("conversations"),
        "chat_prompt_completion": [split(r) for r in read("conversations")],
        "sharegpt": [sharegpt(r) for r in read("conversations")],
    }
    marked = TEMPLATES["generation"]
    wanted = [
        ("lm", {"max_length": 32}, None),
        ("lm", {"max_length": 32, "truncation_mode": "keep_end"}, None),
        ("lm", {"max_length": None}, None),
        ("lm", {"max_length": 48, "packing": True}, None),
        ("prompt_completion", {"max_length": 96}, None),
        ("prompt_completion", {"max_length": 40}, None),
        ("prompt_completion", {"max_length": 64, "completion_only_loss": False}, None),
        ("prompt_completion", {"max_length": 64, "truncation_mode": "keep_end"}, None),
        ("prompt_completion", {"max_length": 128, "packing": True}, None),
        ("conversations", {"max_length": 96}, None),
        ("conversations", {"max_length": 128, "assistant_only_loss": True}, marked),
        ("conversations", {"max_length": 100, "assistant_only_loss": True, "packing": True, "packing_strategy": "bfd_split"}, marked),
        ("conversations", {"max_length": 64, "packing": True, "packing_strategy": "wrapped"}, None),
        ("chat_prompt_completion", {"max_length": 128}, None),
        ("chat_prompt_completion", {"max_length": 128, "assistant_only_loss": True, "completion_only_loss": False}, marked),
        ("chat_prompt_completion", {"max_length": 128, "assistant_only_loss": True}, marked),
        ("sharegpt", {"max_length": 80}, None),
    ]
    cases = []
    for name, options, template in wanted:
        tokenizer = AutoTokenizer.from_pretrained(GOLDEN / "model")
        if template is not None:
            tokenizer.chat_template = template
        args = SFTConfig(output_dir="/tmp/record-prepared", bf16=False, report_to="none", use_cpu=True, **options)
        trainer = SFTTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
            args=args,
            train_dataset=Dataset.from_list(rows[name]),
            processing_class=tokenizer,
        )
        out = []
        for row in trainer.train_dataset:
            # A label is the token or -100, so one bit a token is enough.
            assert all(l in (-100, i) for l, i in zip(row["labels"], row["input_ids"]))
            bits = "".join("0" if l == -100 else "1" for l in row["labels"])
            out.append({"input_ids": row["input_ids"], "learned": bits, **({"seq_lengths": row["seq_lengths"]} if "seq_lengths" in row else {})})
        cases.append({"rows": name, "options": options, "template": "generation" if template else None, "completion_only": trainer.completion_only_loss, "out": out})
    write("prepared.json", cases)


def write(name, value):
    lines = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (GOLDEN / name).write_text(lines.replace('{"chat":', '\n{"chat":').replace('{"input_ids":', '\n{"input_ids":') + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    model = parser.parse_args().model
    record_templates()
    if model:
        record_prepared(model)

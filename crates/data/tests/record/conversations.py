"""Conversations that templates are rendered with: 50 of the kinds that people train on, and odd ones.

Each is (name, messages, tools, documents, variables).
"""


def user(content, **more):
    return {"role": "user", "content": content, **more}


def said(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def result(content, **more):
    return {"role": "tool", "content": content, **more}


def function(name, description, properties, required=(), **more):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters, **more}}


WEATHER = function(
    "weather",
    'Says the "weather" <now> & here\'s more',
    {
        "city": {"type": "string", "description": "Which city – Ålesund?"},
        "items": {"type": "array", "items": {"type": "string", "enum": ["rain", "sun"]}},
        "days": {"type": ["integer", "null"], "default": 1, "minimum": 0.5, "maximum": 1e16},
    },
    ["city"],
)
SEARCH = function(
    "search",
    "Finds pages.\nAll of them.",
    {
        "query": {"type": "string"},
        "top_k": {"type": "integer", "description": "How many", "default": 10},
        "threshold": {"type": "number", "default": 1e-7, "nullable": True},
        "filter": {
            "type": "object",
            "description": "Narrows it",
            "properties": {"site": {"type": "string"}, "after": {"type": "number", "enum": [1, 2.5, None, True]}},
            "required": ["site"],
        },
        "mode": {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "Either"},
    },
    ["query", "filter"],
    **{"return": {"type": "string", "description": "The pages"}},
)
BARE = function("now", "The time.", {})
FLAT = {"name": "flat", "description": "Not wrapped", "parameters": {"type": "object", "properties": {"x": {"type": "boolean"}}}}
DOCUMENTS = [
    {"title": "Oslo", "text": "Oslo is cold.\nVery."},
    {"title": "Ålesund", "text": "It “rains” there.", "doc_id": 2, "score": 0.25},
]

HELLO = user("How warm is it in Oslo?")
FOUR = said("Four degrees.")
AGAIN = user("And in Âlesund – “now”?")
FIVE = said("Fünf 🌧 Grad.")
BRIEF = system("  Answer briefly. \n")
CALLED = said(None, tool_calls=[call("weather", {"city": "Oslo", "days": 2, "exact": True, "unit": None, "scale": 1.0})])
CALLED_ID = said("", tool_calls=[call("weather", {"city": "Oslo"}, id="abcdefghi")])
CALLED_TEXT = said("Let me look.", tool_calls=[call("search", '{"query": "oslo", "filter": {"site": "no"}}', id="123456789")])
CALLED_TWICE = said(
    "",
    tool_calls=[
        call("weather", {"city": "Oslo", "items": ["rain"], "nested": {"a": [1, 2.5, None], "b": "<x> 'y' \"z\""}}, id="call00001"),
        call("now", {}, id="call00002"),
    ],
)
ANSWER = result('{"celsius": 4}', name="weather")
ANSWER_ID = result('{"celsius": 4.0, "wind": 1e-05}', name="weather", tool_call_id="abcdefghi")
THOUGHT = said("<think>\nlook it up\n</think>\n\nFour degrees.")
REASONED = said("Four.", reasoning_content="It is winter.\nSo cold.")
PARTS = user([{"type": "text", "text": "one "}, {"type": "image"}, {"type": "text", "text": "two"}])
TEXT_PARTS = user([{"type": "text", "text": "only text"}])

CONVERSATIONS = [
    ("user", [HELLO], None, None, {}),
    ("pair", [HELLO, FOUR], None, None, {}),
    ("two turns", [HELLO, FOUR, AGAIN], None, None, {}),
    ("four", [HELLO, FOUR, AGAIN, FIVE], None, None, {}),
    ("system", [BRIEF, HELLO], None, None, {}),
    ("system pair", [BRIEF, HELLO, FOUR], None, None, {}),
    ("system turns", [BRIEF, HELLO, FOUR, AGAIN, FIVE], None, None, {}),
    ("system alone", [BRIEF], None, None, {}),
    ("empty system", [system(""), HELLO, FOUR], None, None, {}),
    ("late system", [HELLO, FOUR, system("New rules."), AGAIN], None, None, {}),
    ("two systems", [system("A."), system("B."), HELLO], None, None, {}),
    ("nothing", [], None, None, {}),
    ("assistant first", [FOUR, HELLO], None, None, {}),
    ("assistant alone", [FOUR], None, None, {}),
    ("two users", [HELLO, AGAIN, FIVE], None, None, {}),
    ("two assistants", [HELLO, FOUR, FIVE], None, None, {}),
    ("odd role", [HELLO, {"role": "critic", "content": "Wrong!"}, FOUR], None, None, {}),
    ("developer", [{"role": "developer", "content": "Be kind."}, HELLO, FOUR], None, None, {}),
    ("no role", [{"content": "Who speaks?"}, FOUR], None, None, {}),
    ("no content", [HELLO, {"role": "assistant"}], None, None, {}),
    ("none content", [HELLO, said(None), AGAIN], None, None, {}),
    ("empty content", [HELLO, said(""), user("")], None, None, {}),
    ("number content", [user(42), said(4.5), user(True)], None, None, {}),
    ("spaces", [user("  lead\n\n"), said("\ttail \u00a0"), user("\u2028mid\u2029")], None, None, {}),
    ("unicode", [user("日本語 ßẞ İı ǆ ﬁ"), said("👩‍👩‍👧 \u0301\u200b\ufeff"), user("\x07\x1c\x85")], None, None, {}),
    ("markup", [user("<b>&amp;</b> {{ x }} {% raw %}"), said("'single' \"double\" \\back")], None, None, {}),
    ("special tokens", [user("<|im_end|> </s> [INST] <end_of_turn>"), said("<|eot_id|>")], None, None, {}),
    ("parts", [PARTS, FOUR], None, None, {}),
    ("text parts", [TEXT_PARTS, said([{"type": "text", "text": "listed"}]), AGAIN], None, None, {}),
    ("empty parts", [user([]), FOUR], None, None, {}),
    ("long", [m for i in range(7) for m in (user(f"Question {i}?"), said(f"Answer {i}."))] + [HELLO], None, None, {}),
    ("thought", [HELLO, THOUGHT, AGAIN, THOUGHT], None, None, {}),
    ("thought last", [HELLO, THOUGHT], None, None, {}),
    ("reasoned", [HELLO, REASONED, AGAIN, REASONED], None, None, {}),
    ("reasoned old name", [HELLO, said("4", thinking="sum"), AGAIN, said("5", reasoning="more")], None, None, {}),
    ("no thinking", [HELLO, FOUR, AGAIN], None, None, {"enable_thinking": False}),
    ("thinking", [BRIEF, HELLO], None, None, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    ("tools", [HELLO], [WEATHER], None, {}),
    ("tools system", [BRIEF, HELLO], [WEATHER, SEARCH], None, {}),
    ("no tools", [BRIEF, HELLO], [], None, {}),
    ("bare and flat tools", [HELLO], [BARE, FLAT], None, {}),
    ("called", [BRIEF, HELLO, CALLED, ANSWER, FOUR], [WEATHER], None, {}),
    ("called with id", [HELLO, CALLED_ID, ANSWER_ID, FOUR, AGAIN], [WEATHER, BARE], None, {}),
    ("called with text", [HELLO, CALLED_TEXT, result("[]", name="search", tool_call_id="123456789")], [SEARCH], None, {}),
    (
        "called twice",
        [HELLO, CALLED_TWICE, result("4", name="weather", tool_call_id="call00001"), result("noon", name="now", tool_call_id="call00002"), FOUR],
        [WEATHER, BARE],
        None,
        {},
    ),
    ("called without tools", [HELLO, CALLED, ANSWER, FOUR, AGAIN], None, None, {}),
    ("call is last", [HELLO, CALLED_ID], [WEATHER], None, {}),
    ("thought and called", [HELLO, said("", reasoning_content="Look.", tool_calls=CALLED["tool_calls"]), ANSWER, REASONED], [WEATHER], None, {}),
    ("documents", [BRIEF, HELLO], None, DOCUMENTS, {}),
    ("documents and tools", [HELLO, FOUR, AGAIN], [SEARCH], DOCUMENTS, {"citation_mode": "fast", "date_string": "1 May 2025"}),
    ("variables", [HELLO], None, None, {"eos_token": "<END>", "custom": [1, "x", None, 2.0], "tools_in_user_message": False, "add_bos": True}),
]

"""Asks a served model with OpenAI's own client: `client.py BASE_URL MODEL`. Prints one JSON object with what it saw."""

import json
import sys
import time

from openai import NotFoundError, OpenAI

base, model = sys.argv[1:3]
client = OpenAI(base_url=base, api_key="none", timeout=120, max_retries=0)
names = [one.id for one in client.models.list()]
assert names == [model], names

messages = [{"role": "user", "content": "the quick brown fox"}]
began = time.monotonic()
answer = client.chat.completions.create(model=model, messages=messages, max_tokens=16, extra_body={"ignore_eos": True})
whole = time.monotonic() - began
assert answer.choices[0].finish_reason == "length", answer
assert answer.usage.completion_tokens == 16, answer.usage

began, first, parts, usage = time.monotonic(), None, 0, None
stream = client.chat.completions.create(
    model=model,
    messages=messages,
    max_tokens=16,
    stream=True,
    stream_options={"include_usage": True},
    extra_body={"ignore_eos": True},
)
for part in stream:
    usage = part.usage or usage
    if part.choices and part.choices[0].delta.content:
        first = first or time.monotonic() - began
        parts += 1
assert usage and usage.completion_tokens == 16, usage
assert parts > 1, "the answer did not come in parts"

try:
    client.chat.completions.create(model="no-such-model", messages=messages)
    raise AssertionError("a model that is not served was answered for")
except NotFoundError:
    pass
print(json.dumps({"models": names, "wholeAnswerSeconds": round(whole, 3), "firstTokenSeconds": round(first, 3), "parts": parts}))

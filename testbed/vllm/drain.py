"""Streams an answer of some twenty seconds and says when it began: `drain.py BASE_URL MODEL FILE`.

Exits with 1 if the answer does not end well.
"""

import json
import sys
import time

from openai import OpenAI

SECONDS = 20
base, model, started = sys.argv[1:4]
client = OpenAI(base_url=base, api_key="none", timeout=300, max_retries=0)


def ask(tokens: int):
    return client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "the quick brown fox"}],
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )


began = time.monotonic()
for _ in ask(30):
    pass
pace = (time.monotonic() - began) / 30
wanted = min(3000, max(100, int(SECONDS / pace)))

usage, reason, began = None, None, time.monotonic()
for part in ask(wanted):
    if usage is None and reason is None:
        with open(started, "w") as file:
            file.write("streaming\n")
    usage = part.usage or usage
    if part.choices:
        reason = part.choices[0].finish_reason or reason
tokens = usage.completion_tokens if usage else 0
print(json.dumps({"tokens": tokens, "finish": reason, "seconds": round(time.monotonic() - began, 1)}))
sys.exit(0 if tokens == wanted and reason == "length" else 1)

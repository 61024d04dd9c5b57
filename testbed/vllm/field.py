"""Prints a field of the status of the object on standard input, by its path: `field.py load.copies`."""

import json
import sys

value = json.load(sys.stdin).get("status", {})
for part in sys.argv[1].split("."):
    value = value.get(part, {})
for one in value if isinstance(value, list) else [value]:
    if isinstance(one, dict):
        one = ", ".join(f"{key} {part}" for key, part in one.items() if key != "at")
    print(one)

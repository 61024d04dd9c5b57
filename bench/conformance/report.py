"""Compares a list of test names with the JUnit report of one run and prints `N passed, N failed`.

A name that did not run counts as failed: a list nobody ran proves nothing.
"""

import pathlib
import sys
import xml.etree.ElementTree as ET


def main() -> int:
    wanted_file, report, log = sys.argv[1:4]
    wanted = [
        line.strip()
        for line in pathlib.Path(wanted_file).read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    outcome = {}
    for path in pathlib.Path(report).glob("*.xml"):
        for case in ET.parse(path).iter("testcase"):
            name = case.get("name", "").removeprefix("[It] ")
            if case.find("skipped") is not None:
                continue
            bad = case.find("failure") if case.find("failure") is not None else case.find("error")
            outcome[name] = None if bad is None else (bad.get("message") or bad.text or "failed").strip()
    failed = 0
    for name in wanted:
        # Ginkgo appends labels to the name; the list holds the text without them.
        hit = next((k for k in outcome if k == name or k.startswith(name)), None)
        if hit is not None and outcome[hit] is None:
            continue
        failed += 1
        reason = "did not run" if hit is None else outcome[hit].splitlines()[0][:200]
        print(f"FAILED {name}\n       {reason}")
    if failed:
        print(f"log: {log}")
    print(f"{len(wanted) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

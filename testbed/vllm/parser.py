"""Shows command lines to vLLM's own parser and its checks before loading; exits with 1 if one is refused.

    parser.py COMMANDS      a file of JSON lines: {"from": …, "args": [words], "process": [words]}
    parser.py --list        what the parser knows, one argument a line
"""

import contextlib
import io
import json
import sys

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser


class Refused(Exception):
    pass


def refuse(self, message):
    raise Refused(message)


def main(parser, path: str) -> int:
    refused, seen = 0, 0
    for line in open(path):
        case = json.loads(line)
        # In its image `vllm serve` comes first; on a node without images a line of shell adds where to listen.
        assert case["process"][:2] == ["sh", "-c"] and "--host" in case["process"][2], case["process"]
        for words in (case["args"], [*case["args"], "--host", "127.1.2.3"]):
            seen += 1
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    parsed = parser.parse_args(["serve", *words])
                    serve.validate(parsed)
                if parsed.model_tag != words[0]:
                    raise Refused(f"the model was read as {parsed.model_tag}")
            except (Refused, SystemExit, TypeError, ValueError) as error:
                refused += 1
                print(f"refused: {case['from']}: {error}\n  {json.dumps(words)}")
    print(f"vLLM's parser was shown {seen} command lines and refused {refused}")
    return 1 if refused or not seen else 0


def known(parser) -> None:
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        kind = type(action).__name__
        of = getattr(action.type, "__name__", str(action.type))
        choices = list(action.choices) if action.choices else None
        print(json.dumps({"names": names, "action": kind, "type": of, "nargs": action.nargs, "choices": choices}))


serve = ServeSubcommand()
parser = FlexibleArgumentParser(prog="vllm")
own = serve.subparser_init(parser.add_subparsers(dest="subparser"))
FlexibleArgumentParser.error = refuse
if sys.argv[1] == "--list":
    known(own)
else:
    sys.exit(main(parser, sys.argv[1]))

"""Runs the common cases with one Python client: `program.py ADAPTER --bootstrap ADDRESS --prefix PREFIX CASE...`."""

import argparse
import importlib
import json
import sys
import time
import traceback

import cases


def say(**line):
    print(json.dumps(line), flush=True)


def ask(what):
    """Asks the harness to do something to the broker, and returns its answer when it is done."""
    say(ask=what)
    answer = json.loads(sys.stdin.readline())
    if not answer["ok"]:
        raise RuntimeError(f"the harness could not {what} the broker: {answer['error']}")
    return answer


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("adapter")
    arguments.add_argument("--bootstrap", required=True)
    arguments.add_argument("--prefix", required=True)
    arguments.add_argument("cases", nargs="+")
    given = arguments.parse_args()
    client = importlib.import_module(f"with_{given.adapter}").Client(given.bootstrap)
    say(version=client.version())
    for name in given.cases:
        say(begin=name)
        begun = time.monotonic()
        try:
            cases.run(name, client, given.prefix + name, ask)
            status, detail = "pass", ""
        except Exception as error:
            traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[-1]
            status, detail = "fail", f"{type(error).__name__}: {error} ({where.name}:{where.lineno})"
        say(case=name, status=status, detail=detail, ms=(time.monotonic() - begun) * 1000)
    client.close()


main()

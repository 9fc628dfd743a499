"""Checks the files of docker/ without a Docker engine; compat-tests/README.md says how a program talks to the harness."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback

import composed
import image
import monitoring
import static


class Skipped(Exception):
    """This case is not run, and why."""


def in_a_world_of_its_own(script, *arguments, seconds):
    """Its processes, mounts and network end with its first process."""
    world = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*world, sys.executable, pathlib.Path(__file__).with_name(script), *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=seconds,
    )
    sys.stderr.write(done.stderr)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1][:1000]


def cluster():
    in_a_world_of_its_own("cluster.py", seconds=170)


def binary():
    if os.environ.get("FELIX_FULL") != "1":
        raise Skipped("builds the release anew, for minutes: only with --full")
    in_a_world_of_its_own("static.py", static.build(), seconds=90)


CASES = {
    "image": image.check,
    "compose": composed.check,
    "monitoring": monitoring.check,
    "cluster": cluster,
    "static": binary,
}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--bootstrap")
    arguments.add_argument("--prefix")
    arguments.add_argument("cases", nargs="+")
    for case in arguments.parse_args().cases:
        print(json.dumps({"begin": case}), flush=True)
        begun = time.monotonic()
        status, detail = "pass", ""
        try:
            CASES[case]()
        except Skipped as why:
            status, detail = "skip", str(why)
        except Exception as error:
            traceback.print_exc()
            status, detail = "fail", str(error)
        ms = int((time.monotonic() - begun) * 1000)
        print(json.dumps({"case": case, "status": status, "detail": detail, "ms": ms}), flush=True)


main()

"""Checks the files of docker/ without a Docker engine; compat-tests/README.md says how a program talks to the harness."""

import argparse
import json
import pathlib
import subprocess
import sys
import time
import traceback

import composed
import image
import monitoring


def cluster():
    """Its processes and network are a world of their own, which ends with its first process."""
    script = pathlib.Path(__file__).with_name("cluster.py")
    world = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*world, sys.executable, script], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=170
    )
    sys.stderr.write(done.stderr)
    assert done.returncode == 0, done.stderr.strip()[-2000:]


CASES = {"image": image.check, "compose": composed.check, "monitoring": monitoring.check, "cluster": cluster}


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
        except Exception as error:
            traceback.print_exc()
            status, detail = "fail", str(error)
        ms = int((time.monotonic() - begun) * 1000)
        print(json.dumps({"case": case, "status": status, "detail": detail, "ms": ms}), flush=True)


main()

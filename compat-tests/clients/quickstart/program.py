"""Runs docs/quickstart.md as a newcomer would: every `sh` block in one shell, what is printed compared with the `text` block behind it.

The page uses Felix's own ports, so the shell runs in a network namespace of its own; the harness's broker is not used.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

PROJECT = pathlib.Path(__file__).resolve().parents[3]
MARK = "--- end of block"
SECONDS = 160
# Three times 180 s are allowed for both (client.toml).
BUILD_SECONDS = 360


def log_tail(folder):
    logs = sorted(folder.glob("*.log"))
    return "; ".join(f"{log.name}: {log.read_text()[-800:]}" for log in logs) or "no logs"


def blocks(page):
    """The page's `sh` blocks, each with the output that the page promises ("" where it promises none)."""
    found = re.findall(r"^```sh\n(.*?)^```\n(?:\s*^```text\n(.*?)^```$)?", page, re.MULTILINE | re.DOTALL)
    assert found, "the page has no blocks"
    return found


def run(page):
    """Runs the blocks; raises with the first difference."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # The page runs in the project's folder; its data and logs must not land there, so the folder here has only the way to it.
        starter = folder / "broker" / "run"
        starter.parent.mkdir()
        starter.write_text(f'#!/bin/sh\nexec "{PROJECT}/broker/run" "$@"\n')
        starter.chmod(0o755)
        script = ["ip link set lo up", "set -e", "trap 'kill -9 $felix $etcd ${brokers[*]} 2> /dev/null || true' EXIT"]
        for commands, _ in blocks(page):
            script += [commands, f"echo '{MARK}'"]
        tools = pathlib.Path(os.environ["OUT"]) / "bin"
        profile = {"FELIX_BUILD_PROFILE": "compat"}
        # A newcomer's first start builds the broker; how long that takes is not what the page is about.
        subprocess.run([PROJECT / "broker/run", "--version"], env=os.environ | profile, stdout=subprocess.DEVNULL, check=True, timeout=BUILD_SECONDS)
        shell = subprocess.Popen(
            ["unshare", "--net", "bash", "-c", "\n".join(script)],
            cwd=folder,
            env=os.environ | profile | {"PATH": f"{tools}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, _ = shell.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired as late:
            os.killpg(shell.pid, signal.SIGKILL)
            printed = (late.stdout or b"").decode()
            stuck = blocks(page)[printed.count(MARK)][0]
            raise AssertionError(f"not done after {SECONDS} s, in {stuck!r}; {log_tail(folder)}") from None
        outputs = stdout.split(MARK + "\n")
        for (commands, promised), printed in zip(blocks(page), outputs):
            if printed != promised:
                raise AssertionError(f"{commands!r} printed {printed!r}, not {promised!r}; {log_tail(folder)}")
        assert shell.returncode == 0 and len(outputs) == len(blocks(page)) + 1, f"exit code {shell.returncode}"


def main():
    print(json.dumps({"begin": "quickstart"}), flush=True)
    begun = time.monotonic()
    status, detail = "pass", ""
    try:
        run((PROJECT / "docs/quickstart.md").read_text())
    except Exception as error:
        status, detail = "fail", str(error)
    ms = (time.monotonic() - begun) * 1000
    print(json.dumps({"case": "quickstart", "status": status, "detail": detail, "ms": ms}), flush=True)


sys.exit(main())

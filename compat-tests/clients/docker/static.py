"""The case `static`: the image's binary, built as the Dockerfile builds it and run where there is nothing else.

The root directory that it sees holds what Docker gives a container (/proc, some of /dev, three files in /etc) and the binary. Its
listener is a name of /etc/hosts, etcd's is one that only DNS knows: a static C library must find both without its shared parts.
"""

import contextlib
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading

from containers import eventually, shell
from files import PROJECT, Image, run

HOST = "felix-here"
ETCD = "etcd-somewhere"
ENVIRONMENT = {"PATH": os.environ["PATH"]}


def build():
    """Where the binary is, or a failure; takes minutes."""
    code, said = run("rustc", "-vV")
    target = next(line.split()[1] for line in said.splitlines() if line.startswith("host:"))
    (command,) = [rest for rest in Image().all("RUN", 0) if "cargo build" in rest]
    # The same words that the image is built with, from the clone instead of a copy of it.
    words = "cargo build --locked --release --package felix-broker --target"
    assert words in command and "RUSTFLAGS='-C target-feature=+crt-static'" in command, command
    folder = pathlib.Path(os.environ["OUT"]) / "static"
    environment = os.environ | {"RUSTFLAGS": "-C target-feature=+crt-static", "CARGO_TARGET_DIR": str(folder)}
    subprocess.run([*words.split(), target], cwd=PROJECT, env=environment, check=True, stdout=sys.stderr)
    binary = folder / "felix"
    subprocess.run(["strip", "--strip-debug", "-o", binary, folder / target / "release" / "felix"], check=True)
    code, said = run("readelf", "--program-headers", binary)
    assert code == 0 and "INTERP" not in said, said
    return binary


def answer_names():
    """A DNS server that knows one name."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))

    def serve():
        while True:
            question, client = server.recvfrom(512)
            at, labels = 12, []
            while length := question[at]:
                labels.append(question[at + 1 : at + 1 + length].decode())
                at += length + 1
            (kind,) = struct.unpack(">H", question[at + 1 : at + 3])
            known = labels == [ETCD]
            # A pointer to the name in the question, an address for a minute.
            record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + bytes([127, 0, 0, 1])
            records = record if known and kind == 1 else b""
            head = struct.pack(">HHHHH", 0x8180 if known else 0x8183, 1, len(records) // 16, 0, 0)
            server.sendto(question[:2] + head + question[12 : at + 5] + records, client)

    threading.Thread(target=serve, daemon=True).start()


@contextlib.contextmanager
def bare_root(binary):
    """A root directory as Docker makes one of an image that holds nothing but the binary."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        root.chmod(0o755)
        for place in ("etc", "dev", "proc", "data"):
            (root / place).mkdir()
        (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.0.2 {HOST}\n")
        (root / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
        (root / "etc/hostname").write_text(f"{HOST}\n")
        shutil.copy(binary, root / "felix")
        os.chown(root / "data", 65532, 65532)
        mounts = [f"-t proc proc {root}/proc"]
        for device in ("null", "random", "urandom"):
            (root / "dev" / device).touch()
            mounts.append(f"--bind /dev/{device} {root}/dev/{device}")
        with contextlib.ExitStack() as mounted:
            for mount in mounts:
                shell(f"mount {mount}")
                # What is mounted there must not be taken for files to remove.
                mounted.callback(shell, f"umount {mount.split()[-1]}")
            yield root


@contextlib.contextmanager
def running(log, *command):
    """A process that does not outlive this."""
    process = subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main(binary):
    shell("ip link set lo up")
    answer_names()
    etcd = pathlib.Path(os.environ["FELIX_CACHE"]) / "etcd-3.6" / "etcd"
    with tempfile.TemporaryDirectory() as folder, bare_root(binary) as root, open(f"{folder}/log", "w+") as log:
        inside = ["chroot", "--userspec=65532:65532", root, "/felix"]
        settings = ["--data-dir=/data", f"--listeners=PLAINTEXT://{HOST}:9092", f"--metrics-bind={HOST}:9644"]
        health = [*inside, "health", f"--metrics-bind={HOST}:9644"]
        try:
            with (
                running(log, etcd, f"--data-dir={folder}/etcd", "--log-level=error"),
                running(log, *inside, *settings, f"--etcd={ETCD}:2379") as felix,
            ):
                ready = lambda: subprocess.run(health, env=ENVIRONMENT, capture_output=True).returncode == 0
                eventually("it is ready", ready, 20)
                asked = ["kcat", "-L", "-b", "127.0.0.2:9092"]
                told = subprocess.run(asked, capture_output=True, text=True, timeout=20)
                assert f"{HOST}:9092" in told.stdout, told
                felix.terminate()
                assert felix.wait(timeout=30) == 0
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read()[-2000:])
            raise


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

"""The files of docker/, read."""

import os
import pathlib
import re
import shlex
import subprocess

import yaml

PROJECT = pathlib.Path(__file__).resolve().parents[3]
DOCKER = PROJECT / "docker"
COMPOSE = ["compose.yaml", "compose.cluster.yaml"]
# A program of the clone's own target, or of the one that the caller builds in.
FELIX = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target")) / "compat" / "felix"


class Image:
    """The Dockerfile: its stages, each a list of (instruction, the rest of the line)."""

    def __init__(self):
        text = re.sub(r"^\s*#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
        self.stages = []
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            if not line.strip():
                continue
            name, rest = line.split(maxsplit=1)
            if name == "FROM":
                self.stages.append([])
            self.stages[-1].append((name, rest))

    def all(self, name, stage=-1):
        return [rest for instruction, rest in self.stages[stage] if instruction == name]

    def one(self, name, stage=-1):
        found = self.all(name, stage)
        assert len(found) == 1, f"{name} {len(found)} times"
        return found[0]

    def environment(self):
        return dict(word.split("=", 1) for rest in self.all("ENV") for word in shlex.split(rest))

    def command(self, name):
        """The program and arguments of ENTRYPOINT or HEALTHCHECK; only the form without a shell will do."""
        listed = re.search(r"\[.*\]", self.one(name))
        assert listed, f"{name} needs a shell, and there is none"
        return yaml.safe_load(listed.group())

    def health_check(self):
        return self.command("HEALTHCHECK")


def compose(name):
    return yaml.safe_load((DOCKER / name).read_text())


def is_felix(service):
    return service["image"] == "felix"


def is_etcd(service):
    return "/etcd:" in service["image"]


def felix_environment(image, service):
    """What a broker's container has in its environment."""
    return {"PATH": os.environ["PATH"]} | image.environment() | service.get("environment", {})


def listeners(text):
    """`NAME://host:port,...` as {name: (host, port)}."""
    found = re.findall(r"(\w+)://([^,]*):(\d+)", text)
    return {name: (host, int(port)) for name, host, port in found}


def ports(service):
    """Published ports: (address of this machine, its port, the container's)."""
    published = [port.split(":") for port in service.get("ports", [])]
    return [(address, int(outer), int(inner)) for address, outer, inner in published]


def volumes(service):
    """Mounts: (volume or path, place in the container)."""
    return [tuple(volume.split(":")[:2]) for volume in service.get("volumes", [])]


def run(*command, env=None, cwd=None):
    """Runs to the end: (exit code, all that it said)."""
    done = subprocess.run(
        [str(word) for word in command],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout

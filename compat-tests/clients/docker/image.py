"""The case `image`: the Dockerfile, as far as it can be judged without building it."""

import fnmatch
import pathlib
import re
import shutil
import tempfile
import tomllib

from files import DOCKER, FELIX, PROJECT, Image, listeners, run


def check():
    image = Image()
    stages(image)
    runtime(image)
    context(image)
    packages(image)
    settings(image)


def stages(image):
    (build, name), (final,) = (image.one("FROM", stage).split(" AS ") for stage in (0, 1))
    cargo = tomllib.loads((PROJECT / "Cargo.toml").read_text())
    wanted = cargo["workspace"]["package"]["rust-version"]
    assert build.startswith(f"rust:{wanted}-"), f"built by {build}, but the project needs Rust {wanted}"
    assert final == "scratch", final
    for copied in image.all("COPY"):
        assert f"--from={name}" in copied, f"{copied}: the last stage takes only what was built"
    compiled = " ".join(image.all("RUN", 0))
    assert "--locked" in compiled and "+crt-static" in compiled and "INTERP" in compiled, compiled


def runtime(image):
    user, group = image.one("USER").split(":")
    assert int(user) > 0 and int(group) > 0, "root, or a name that the image does not know"
    placed = dict(reversed(copied.split()[-2:]) for copied in image.all("COPY"))
    owners = {copied.split()[-1]: re.search(r"--chown=(\S+)", copied) for copied in image.all("COPY")}
    for program in (image.command("ENTRYPOINT")[0], image.health_check()[0]):
        assert program in placed, f"{program} is not in the image, only {list(placed)}"
    data = image.environment()["FELIX_DATA_DIR"]
    assert data in image.one("VOLUME"), f"{data} is no volume"
    assert owners[data] and owners[data].group(1) == f"{user}:{group}", f"{data} belongs to somebody else"
    assert image.one("STOPSIGNAL") == "SIGTERM"
    exposed = set(image.one("EXPOSE").split())
    environment = image.environment()
    bound = [str(port) for _, port in listeners(environment["FELIX_LISTENERS"]).values()]
    bound.append(environment["FELIX_BROKER_METRICS_BIND"].rsplit(":", 1)[1])
    assert exposed >= set(bound), f"listens on {bound}, exposes {exposed}"


def ignored(path):
    """Whether the ignore file keeps a path out of the context: the last rule that matches it or a folder above it counts."""
    out = False
    lines = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    for rule in (line for line in lines if line and not line.startswith("#")):
        pattern = rule.removeprefix("!")
        for place in [path, *path.parents]:
            # `**/x` is x at any depth, also at none.
            if fnmatch.fnmatch(str(place), pattern) or fnmatch.fnmatch(str(place), pattern.removeprefix("**/")):
                out = not rule.startswith("!")
    return out


def context(image):
    """Copies what the build would see and asks cargo whether it can begin with that."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for copied in image.all("COPY", 0):
            *sources, place = copied.split()
            for source in map(pathlib.Path, sources):
                assert (PROJECT / source).exists(), f"COPY {copied}: {source} does not exist"
                inner = pathlib.Path(place) if (PROJECT / source).is_dir() else pathlib.Path(place) / source.name
                found = [PROJECT / source]
                if (PROJECT / source).is_dir():
                    code, listed = run("git", "-C", PROJECT, "ls-files", "-co", "--exclude-standard", source)
                    assert code == 0, listed
                    found = [PROJECT / line for line in listed.splitlines()]
                kept = [file for file in found if file.is_file() and not ignored(file.relative_to(PROJECT))]
                assert kept, f"COPY {copied}: everything in {source} is kept out of the context"
                for file in kept:
                    target = folder / inner / file.relative_to(PROJECT / source)
                    target = folder / inner if file == PROJECT / source else target
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, target)
        code, said = run("cargo", "metadata", "--locked", "--format-version=1", "--no-deps", cwd=folder)
        assert code == 0, f"cargo cannot begin with what is copied: {said}"
        code, said = run("cargo", "tree", "--locked", "--package=felix-broker", "--depth=1", cwd=folder)
        assert code == 0, f"the lock file does not fit what is copied: {said}"
        for source in folder.rglob("*.rs"):
            for included in re.findall(r'include_(?:str|bytes)!\("([^"]+)"\)', source.read_text()):
                assert (source.parent / included).exists(), f"{source.relative_to(folder)} includes {included}"
        for manifest in folder.rglob("Cargo.toml"):
            built = manifest.parent / "build.rs"
            assert built.exists() == (PROJECT / built.relative_to(folder)).exists(), f"{built} is not copied"


def prerequisites():
    """Debian's packages that the project's own check of a machine asks for."""
    script = (PROJECT / ".ci" / "prerequisites").read_text()
    return {name for listed in re.findall(r"\|\| printf '([^']*)'", script) for name in listed.split()}


def packages(image):
    wanted = []
    for line in image.all("RUN", 0):
        for listed in re.findall(r"apt-get install ([^&|;]*)", line):
            wanted += [word for word in listed.split() if not word.startswith("-")]
    assert prerequisites() <= set(wanted), f"{prerequisites()} are needed, {wanted} are there"

    def missing():
        found = {name: run("apt-cache", "policy", name)[1] for name in wanted}
        return [name for name, said in found.items() if not re.search(r"Candidate: \d", said)]

    if missing():
        run("apt-get", "-o", "DPkg::Lock::Timeout=60", "update", "-q")
    assert not missing(), f"Debian has no {missing()}"


def settings(image):
    code, said = run(FELIX, "--check-config", env=image.environment())
    assert code == 0, said
    # Nothing runs: the check must say no, and not that it does not understand.
    quiet = image.environment() | {"FELIX_BROKER_METRICS_BIND": "127.0.0.1:9"}
    code, said = run(FELIX, *image.health_check()[1:], env=quiet)
    assert code == 1, f"{code}: {said}"

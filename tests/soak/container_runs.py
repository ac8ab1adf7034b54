"""Image of the Dockerfile: built with buildah upon Debian's own packages, and run. It takes minutes and a network of packages,
so it is not in the suite.

Without a registry of images the base is made with debootstrap; the Dockerfile takes it as the argument BASE.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rigs.results import ROOT, Result
from tests.soak.runs import Run

MIRROR = "http://deb.debian.org/debian"
RELEASE = "bookworm"
PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"
CERTIFICATES = "/etc/ssl/certs"
BUILT_WITHIN_S = 1_800.0
ANSWERS_WITHIN_S = 60.0
IMAGE, BASE = "stagepost", "stagepost-base"
USER = "10001"
MAGIC = "2147483690"
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "requirements", "tools", "src")
POOLS: dict[str, object] = {"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": []}
TOPOLOGY: dict[str, list[str]] = {"localRoots": [], "publicRoots": []}


class Builder:
    """Images and containers in a folder of their own, without a daemon and without namespaces that a machine may forbid."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        places = ("--root", str(folder / "images"), "--runroot", str(folder / "run"))
        self._command = ("buildah", "--storage-driver", "vfs", *places)

    def words(self, *words: str) -> list[str]:
        return [*self._command, *words]

    def run(self, *words: str, within_s: float = ANSWERS_WITHIN_S) -> str:
        """Return what a command of the builder prints; an assertion fails where it ends badly."""
        done = subprocess.run(
            self.words(*words), capture_output=True, text=True, timeout=within_s, check=False
        )
        assert done.returncode == 0, (
            f"buildah {' '.join(words)}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"
        )
        return done.stdout.strip()

    def inside(self, container: str, *words: str) -> list[str]:
        """Return the command line that runs `words` in a container, as its user."""
        return self.words("run", "--isolation", "chroot", container, "--", *words)

    def make_base(self) -> None:
        tree = self.folder / "base"
        made = ("debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(tree), MIRROR)
        subprocess.run(made, check=True, capture_output=True, timeout=BUILT_WITHIN_S)
        for mounted in ("proc", "sys"):
            subprocess.run(["umount", str(tree / mounted)], check=False, capture_output=True)
        container = self.run("from", "scratch")
        self.run("copy", "--quiet", container, str(tree), "/", within_s=BUILT_WITHIN_S)
        self.run("commit", "--quiet", "--rm", container, BASE, within_s=BUILT_WITHIN_S)
        shutil.rmtree(tree)

    def build(self) -> None:
        """Build the image from the sources of this revision. Settings of pip on this machine are valid in the build, too."""
        context, settings = self.folder / "context", self.folder / "pip.conf"
        context.mkdir()
        archived = subprocess.run(
            ["git", "archive", "HEAD", *SOURCES], cwd=ROOT, capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", str(context)], input=archived.stdout, check=True)
        given = {
            name[4:].lower().replace("_", "-"): value
            for name, value in os.environ.items()
            if name.startswith("PIP_")
        }
        given.pop("find-links", None)
        settings.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in given.items()))
        self.run(
            *(
                "build",
                "--format",
                "docker",
                "--isolation",
                "chroot",
                "--build-arg",
                f"BASE=localhost/{BASE}",
            ),
            *("--volume", f"{settings}:/etc/pip.conf:ro", "--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"),
            *("--tag", IMAGE, "--file", str(ROOT / "Dockerfile"), str(context)),
            within_s=BUILT_WITHIN_S,
        )


def container(run: Run) -> Iterator[Result]:
    """Build the image, run commands in it, and a DMQ node whose health check is that of the image."""
    missing = [one for one in ("buildah", "debootstrap") if shutil.which(one) is None]
    if missing or os.geteuid() != 0:
        run.say(f"no builder: {' and '.join(missing) or 'root'} cannot be had here")
        return
    with tempfile.TemporaryDirectory() as name:
        builder = Builder(Path(name))
        builder.make_base()
        run.say("base made")
        builder.build()
        run.say("image built")
        use_image(builder, run)
    yield from ()


def use_image(builder: Builder, run: Run) -> None:
    inner = builder.run("from", f"localhost/{IMAGE}")
    told = json.loads(builder.run("inspect", "--type", "image", f"localhost/{IMAGE}"))["Docker"]["config"]
    assert told["Entrypoint"] == ["stagepost"]
    assert told["User"] == "stagepost"
    _, *health = told["Healthcheck"]["Test"]

    def output(*words: str) -> str:
        done = subprocess.run(
            builder.inside(inner, *words),
            capture_output=True,
            text=True,
            timeout=ANSWERS_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    run.say(output("stagepost", "--version"))
    assert output("id", "-u") == USER
    assert output("stat", "-c", "%a %u", "/data") == f"700 {USER}"
    output("stagepost", "keys", "new", "/data/pool", "--start-kes-period", "0")
    for file, content in (("pools", POOLS), ("topology", TOPOLOGY)):
        output("sh", "-c", f"echo '{json.dumps(content)}' > /data/{file}.json")
    command = (
        *("stagepost", "node", "dmq", "--host-addr", "127.0.0.1", "--port", "0", "--data", "/data"),
        *("--dmq-network-magic", MAGIC, "--pools", "/data/pools.json"),
        *("--topology-file", "/data/topology.json", "--local-socket", "/data/dmq-node.socket"),
    )
    node = subprocess.Popen(
        builder.inside(inner, *command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    ends = time.monotonic() + ANSWERS_WITHIN_S
    while subprocess.run(builder.inside(inner, *health), capture_output=True, check=False).returncode:
        assert node.poll() is None, f"the node ended: {node.stderr.read() if node.stderr else b''!r}"
        assert time.monotonic() < ends, "the node is not healthy"
    run.say("a node in the container is healthy")
    # A container of this isolation has the process ids of the machine.
    os.kill(int(json.loads(output("cat", "/data/node.json"))["pid"]), signal.SIGTERM)
    node.wait(ANSWERS_WITHIN_S)

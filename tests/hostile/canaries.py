"""S10: keys that can be recognised, used in every way there is; then everything that was said and written is searched for them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.error
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.hostile.storms import Figure
from tests.hostile.victim import Victim
from tests.worlds.dmq.node_processes import NETWORK_MAGIC, command, ending

SEED_BYTES = 32
KES_SEEDS_AT = (0, *range(32, 608, 96))
"""In a KES signing key of 608 bytes: the leaf's seed, then per level a seed and two public keys."""
EVOLVED = "evolved/period-4"
PAGES = ("metrics", "status", "healthz", "readyz")


@dataclass
class Search:
    """Secrets, in every spelling, and where they were looked for."""

    secrets: set[bytes] = field(default_factory=set)
    looked_at: int = 0
    bytes_seen: int = 0
    hits: list[str] = field(default_factory=list)

    def learn(self, folder: Path, evolved: Path | None = None) -> None:
        """The secrets of a pool as they are now; those before stay secret."""
        self.secrets.add(_content(folder / "cold.skey")[:SEED_BYTES])
        for path in (folder / "kes.skey", evolved):
            if path is not None and path.exists():
                key = _content(path)
                self.secrets |= {seed for at in KES_SEEDS_AT if any(seed := key[at : at + SEED_BYTES])}

    def look(self, where: str, said: bytes | str) -> None:
        said = said.encode() if isinstance(said, str) else said
        self.looked_at += 1
        self.bytes_seen += len(said)
        lower = said.lower()
        for secret in self.secrets:
            if secret.hex().encode() in lower or any(one in said for one in _spellings(secret)):
                self.hits.append(f"a secret is in {where}")


def _content(path: Path) -> bytes:
    """The bytes of a key file: its CBOR is one byte string."""
    raw = bytes.fromhex(json.loads(path.read_text())["cborHex"])
    return raw[2 if raw[0] == 0x58 else 3 :]


def _spellings(secret: bytes) -> Iterator[bytes]:
    """Raw, as Python shows bytes, and in base64 at each of the three places where it can begin."""
    yield secret
    yield repr(secret)[2:-1].encode()
    for offset in range(3):
        encoded = b64encode(bytes(offset) + secret)
        yield encoded[4 if offset else 0 : 40]


def searching(*, is_thorough: bool = True) -> tuple[Figure, list[str]]:
    """A run that is not thorough leaves out most of the ways in which a command can be asked for the same."""
    search = Search()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        node = _prepared(folder, search)
        with ending([node]):
            node.start()
            _use(folder, node, search, is_thorough)
            _misuse(folder, search, is_thorough)
            _look_at_process(node.pid, "the node", search)
            for page in PAGES:
                search.look(f"/{page}", _page(node, page))
            node.terminate()
        for path in sorted(node.folder.rglob("*")):
            if path.is_file():
                search.look(f"the node's {path.name}", path.read_bytes())
    faults = search.hits + ([] if search.secrets else ["there was no secret to search for"])
    figure: Figure = {
        "promise": "S10",
        "target": "canary keys",
        "outputs_searched": search.looked_at,
        "secrets": len(search.secrets),
        "bytes_searched": search.bytes_seen,
        "hits": len(search.hits),
        "failures": len(faults),
    }
    return figure, faults


def _prepared(folder: Path, search: Search) -> Victim:
    made = command("keys", "new", "pool", "--json", folder=folder)
    search.learn(folder / "pool")
    search.look("keys new", made.stdout + made.stderr)
    pool_id = json.loads(made.stdout)["pool_id"]
    pools = {
        "max_kes_evolutions": 62,
        "slots_per_kes_period": 129_600,
        "pools": [{"pool_id": pool_id, "stake": 1}],
    }
    (folder / "pools.json").write_text(json.dumps(pools))
    (folder / "debug.toml").write_text('[log]\nlevel = "debug"\n')
    (folder / "note").write_bytes(b"canary" * 30)
    return Victim(folder / "node", folder / "pools.json", flags=("--config", str(folder / "debug.toml")))


def _use(folder: Path, node: Victim, search: Search, is_thorough: bool) -> None:
    """Everything that signs, shows and evolves, and works."""
    reach = ("--socket", str(node.socket), "--network-magic", str(NETWORK_MAGIC))
    uses = (
        ("keys", "show", "pool"),
        ("keys", "show", "pool", "--json"),
        ("message", "make", "note", "--keys", "pool", "--out", "note.cbor"),
        ("message", "inspect", "note.cbor"),
        ("message", "verify", "note.cbor"),
        ("send", "note", "--keys", "pool", *reach),
        ("-v", "send", "note", "--keys", "pool", "--kes-period", "3", *reach),
        ("keys", "evolve", "pool/kes.skey", "--to", "4", "--out", EVOLVED),
        ("send", "note", "--keys", "pool", "--evolved-key", EVOLVED, *reach),
        ("listen", "--count", "3", "--until-idle", "2s", *reach),
        ("queue", "ls", "--data", str(node.folder)),
        ("check", "--data", str(node.folder)),
        ("peers", "--data", str(node.folder)),
    )
    for arguments in uses if is_thorough else uses[:2] + uses[6:8]:
        done = command(*arguments, folder=folder)
        search.learn(folder / "pool", folder / EVOLVED)
        search.look(" ".join(arguments[:2]), done.stdout + done.stderr)
        # A node without peers is not in full health, and `check` says so.
        assert done.returncode == 0 or arguments[0] == "check", f"{arguments} failed: {done.stderr}"
    _look_at_a_waiting_command(folder, search)


def _misuse(folder: Path, search: Search, is_thorough: bool) -> None:
    """Errors quote what they found; a secret must not be among it."""
    pool = folder / "pool"
    text = (pool / "kes.skey").read_text()
    for name, content in {
        "cut.skey": text[: len(text) // 2],
        "no-hex.skey": text.replace("58", "zz", 1),
        "wrong-kind.skey": text.replace("KesSigningKey_ed25519_kes_2^6", "Something", 1),
        "long.skey": text.replace('"cborHex": "', '"cborHex": "00', 1),
        "open.skey": text,
    }.items():
        (folder / name).write_text(content)
        (folder / name).chmod(0o644 if name == "open.skey" else 0o600)
    kes, cold = str(pool / "kes.skey"), str(pool / "cold.skey")
    node = ("node", "dmq", "--host-addr", "127.0.0.1", "--data", "other", "--local-socket", "other.socket")
    misuses = (
        *(("-v", "keys", "show", name) for name in ("cut.skey", "no-hex.skey")),
        *(("-v", "keys", "evolve", name, "--out", "other/new") for name in ("cut.skey", "no-hex.skey")),
        *(("-v", "keys", "show", name) for name in ("wrong-kind.skey", "long.skey", "open.skey")),
        ("-v", "keys", "evolve", kes, "--to", "0", "--out", "other/new"),
        ("-v", "keys", "evolve", cold, "--out", "other/new"),
        ("-v", "keys", "new", "pool"),
        ("-v", "message", "inspect", kes),
        ("-v", "message", "verify", cold),
        ("-v", "wire", "inspect", kes),
        ("-v", "send", "note", "--keys", "pool", "--socket", "nowhere.socket", "--network-magic", "1"),
        ("-v", "send", "note", "--keys", kes),
        ("-v", "config", "check", "--config", kes),
        ("-v", *node, "--pools", kes),
        ("-v", *node, "--pools", "pools.json", "--topology-file", cold),
        ("-v", *node, "--pools", "pools.json", "--config", kes),
        ("-v", *node, "--pools", "pools.json", "-c", kes),
    )
    for arguments in misuses if is_thorough else misuses[::6]:
        done = command(*arguments, folder=folder)
        search.look(" ".join(arguments[1:3]), done.stdout + done.stderr)
        assert done.returncode != 0, f"{arguments} is no misuse: {done.stdout}"


def _look_at_a_waiting_command(folder: Path, search: Search) -> None:
    """A command that has read its key and waits for its content: what other users can see of it."""
    arguments = ["message", "make", "-", "--keys", "pool"]
    process = subprocess.Popen(
        [sys.executable, "-m", "stagepost.cli.main", *arguments],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        _look_at_process(process.pid, "a signing command", search)
        said, _ = process.communicate(b"canary" * 30, timeout=60)
        search.look("message make", said)
    finally:
        process.kill()
        process.wait()


def _look_at_process(pid: int, what: str, search: Search) -> None:
    for name in ("cmdline", "environ"):
        search.look(f"{name} of {what}", Path(f"/proc/{pid}/{name}").read_bytes())


def _page(node: Victim, page: str) -> str:
    try:
        return node._fetch(page)
    except urllib.error.HTTPError as error:
        return error.read().decode()

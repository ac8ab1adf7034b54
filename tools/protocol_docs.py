"""Writes docs/protocols from the protocol specs: `python tools/protocol_docs.py FOLDER`. A test compares the result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from stagepost.catchain import overlay_protocol
from stagepost.dmq import local_notification, local_submission, peer_sharing, submission
from stagepost.dmq.cardano import state_query
from stagepost.dmq.profiles import PROFILES, MiniProtocol, Profile
from stagepost.dmq.specs import ALL_SPECS
from stagepost.full_node.local_client import INTAKE_VERSION, INTAKE_VERSIONS
from stagepost.ground.net import handshake
from stagepost.ground.net import keep_alive_protocol as keep_alive
from stagepost.ground.net.version_data import CARDANO_VERSIONS, DMQ_VERSIONS, NETWORK_MAGICS
from stagepost.ground.statemachine.render import diagram, states_table, table, transitions_table
from stagepost.ground.statemachine.spec import ProtocolSpec
from stagepost.remp.links import authentication as link_authentication
from stagepost.remp.links import local_intake
from stagepost.remp.links import protocols as link_protocols
from stagepost.remp.links.specs import LINK_SPECS, PROTOCOLS, LinkProtocol
from stagepost.remp.links.versions import DATA_FIELDS, PLAIN_DATA_FIELDS, LinkVersion

SPECS = (*ALL_SPECS, *LINK_SPECS)
GENERATED = "<!-- Written by `make docs` from the code; changes made here are lost. -->"

ORIGINS: dict[str, str] = {
    handshake.HANDSHAKE.name: "Protocol 0. It comes first on every connection; other protocols begin after it.",
    keep_alive.KEEP_ALIVE.name: "Node to node. The server returns the client's cookie unchanged, which shows that the connection works.",
    peer_sharing.PEER_SHARING.name: "Node to node, if both sides agreed to it in the handshake. The client asks for addresses of other peers.",
    submission.SUBMISSION_V1.name: "Node to node, handshake version 1. The initiator of the connection supplies messages.",
    submission.SUBMISSION_V2.name: "Node to node, handshake version 2. The initiator of the connection pulls messages.",
    submission.SEED_SUBMISSION.name: "Node to node, as in the project's documents (profile `seed`). The initiator of the connection supplies messages.",
    local_submission.LOCAL_SUBMISSION.name: "Program to node, as in the nodes that run today: without time limits. The program submits messages.",
    local_submission.SEED_LOCAL_SUBMISSION.name: "Program to node, as in the project's documents (profile `seed`). The program submits messages.",
    local_notification.LOCAL_NOTIFICATION.name: "Program to node, as in the nodes that run today: without time limits. The program receives messages.",
    local_notification.SEED_LOCAL_NOTIFICATION.name: "Program to node, as in the project's documents (profile `seed`). The program receives messages.",
    state_query.LOCAL_STATE_QUERY.name: (
        "DMQ node to cardano-node, number 7 on the cardano-node's socket. The DMQ node asks for time, epoch and stake."
    ),
    link_authentication.AUTHENTICATION.name: (
        "Links, right after the handshake. Both sides prove their keys; no other protocol is served before."
    ),
    overlay_protocol.CATCHAIN_OVERLAY.name: (
        "Links between members of a session. Each side opens one instance of the protocol, and only that side sends in it."
    ),
    link_protocols.REMP_MESSAGES.name: "Links between full nodes and validators. The full node opens it and sends external messages.",
    link_protocols.REMP_RECEIPTS.name: "Links between full nodes and validators. The validator opens it and sends receipts.",
    local_intake.LOCAL_INTAKE.name: (
        "The local socket of a full node. Programs submit external messages and follow them."
    ),
    link_protocols.DELIVERY_BODIES.name: (
        "Links between programs (`SocketTransport`). Each side opens one instance of the protocol, and only that side sends in it."
    ),
}


def pages() -> dict[str, str]:
    """Every page by file name."""
    written = {f"{_file_name(spec)}.md": _protocol_page(spec) for spec in SPECS}
    return {"README.md": _overview(), **written}


def _file_name(spec: ProtocolSpec) -> str:
    return spec.name.lower().replace(" ", "-")


def _protocol_page(spec: ProtocolSpec) -> str:
    parts = [
        GENERATED,
        f"# {spec.name}",
        ORIGINS[spec.name],
        "## States",
        states_table(spec),
        "## Transitions",
        transitions_table(spec),
        f"```mermaid\n{diagram(spec)}\n```",
    ]
    if spec.pipelined:
        waiting = " and ".join(state.name for state in spec.pipelined)
        parts.append(
            f"Pipelining: while answers in {waiting} are due, the requesting side may send further requests; answers come in the order of the requests."
        )
    return "\n\n".join(parts) + "\n"


def _overview() -> str:
    parts = [
        GENERATED,
        "# Protocols",
        "\n".join(f"- [{spec.name}]({_file_name(spec)}.md): {ORIGINS[spec.name]}" for spec in SPECS),
        "## Wire profiles",
        _profiles_table(),
        "## Links",
        "Links are the connections of full nodes and validators, and of programs that are linked directly. They have a listening address and protocol numbers of their own, "
        "which DMQ peers do not use.",
        _links_table(),
        "## Handshake versions",
        _versions_table(),
        "## Network magics",
        table(("network", "magic"), ((name, str(magic)) for name, magic in NETWORK_MAGICS.items())),
    ]
    return "\n\n".join(parts) + "\n"


def _profiles_table() -> str:
    facts: dict[str, Callable[[Profile], str]] = {
        **{protocol.value: _number(protocol) for protocol in MiniProtocol},
        "tags of message submission": lambda profile: profile.flavour.value,
        "form of written lists": lambda profile: profile.list_form.value,
        "message layouts that are read": lambda profile: ", ".join(
            sorted(f"{layout.value} elements" for layout in profile.message_layouts)
        ),
        "versions proposed, node to node": lambda profile: ", ".join(
            map(str, profile.node_versions_proposed)
        ),
        "time for the first mini-protocol to begin, node / local": lambda profile: (
            f"{profile.start_node_within_s:g} s / {profile.start_local_within_s:g} s"
        ),
        "unacknowledged ids at most": lambda profile: str(profile.window.ids_unacknowledged_max),
        "time after which a supplier without new messages answers a blocking request": lambda profile: (
            f"{profile.no_news_reply_s:g} s"
        ),
    }
    rows = ((name, *(fact(profile) for profile in PROFILES.values())) for name, fact in facts.items())
    return table(("", *PROFILES), rows)


def _number(protocol: MiniProtocol) -> Callable[[Profile], str]:
    return lambda profile: str(profile.numbers.get(protocol, "–"))


def _links_table() -> str:
    rows = []
    for protocol in LinkProtocol:
        spec, _, waiting_bytes_max = PROTOCOLS[protocol]
        rows.append((f"[{spec.name}]({_file_name(spec)}.md)", f"{protocol:#x}", f"{waiting_bytes_max} B"))
    return table(("mini-protocol", "number", "may wait unread"), rows)


def _versions_table() -> str:
    rows = []
    for origin, versions in (("DMQ", DMQ_VERSIONS), ("Cardano, accepted by `seed`", CARDANO_VERSIONS)):
        for kind, shapes in versions.items():
            for number, shape in shapes.items():
                rows.append((origin, kind.value, str(number), ", ".join(shape.value)))
    for version in LinkVersion:
        fields = DATA_FIELDS if version.is_encrypted else PLAIN_DATA_FIELDS
        purpose = version.kind.value if version.is_encrypted else f"{version.kind.value}, plain"
        rows.append(("links", purpose, f"{version:#x}", ", ".join(fields)))
    intake_data = ", ".join(INTAKE_VERSIONS[INTAKE_VERSION].value)
    rows.append(("local socket of a full node", "program to full node", f"{INTAKE_VERSION:#x}", intake_data))
    return table(("origin", "connection", "number", "data"), rows)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for stale in set(folder.glob("*.md")) - {folder / name for name in wanted}:
        stale.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

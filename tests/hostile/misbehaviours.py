"""Every misbehaviour of the kit, by name: what is done, in which state, and what the node must do within which time."""

from __future__ import annotations

from tests.hostile.playbook import Misbehaviour
from tests.hostile.rows_cbor import CBOR
from tests.hostile.rows_handshake import HANDSHAKES
from tests.hostile.rows_local import LOCAL
from tests.hostile.rows_messages import MESSAGES
from tests.hostile.rows_mux import MUX
from tests.hostile.rows_puller import PULLING
from tests.hostile.rows_small_protocols import SMALL_PROTOCOLS
from tests.hostile.rows_supplier import SUPPLYING

MISBEHAVIOURS: tuple[Misbehaviour, ...] = (
    *MUX,
    *HANDSHAKES,
    *CBOR,
    *PULLING,
    *SUPPLYING,
    *SMALL_PROTOCOLS,
    *MESSAGES,
    *LOCAL,
)
BY_NAME = {row.name: row for row in MISBEHAVIOURS}

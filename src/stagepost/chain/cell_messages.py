"""External messages as bags of cells, in the form of TON: ids are representation hashes, of the message and of its body.

Needs the extra `ton`.
"""

from __future__ import annotations

from typing import Any

from stagepost.chain.message_values import CELLS_MAGIC, NEVER, ReadMessage
from stagepost.errors import ConfigError, ErrorCode, TlDecodeError
from stagepost.remp.message import ExternalMessage

try:
    from pytoniq_core.boc import Builder, Cell
except ImportError as error:  # pragma: no cover - the tests install it
    raise ConfigError(
        "this chain takes messages as bags of cells, and the package that reads them is not installed",
        advice="install stagepost[ton]",
    ) from error

DEPTH_MAX = 511
REFERENCES_MAX = 4
CELLS_MAX = 4_096
"""Cells of one message, at most: the header of a bag is checked before the bag is unpacked."""

_HEADER_BYTES_MIN = 6
_INDEX_BYTES_MAX = 4
_EXTERNAL_INBOUND = 0b10
_NO_ADDRESS, _EXTERNAL_ADDRESS, _STANDARD_ADDRESS = 0b00, 0b01, 0b10


def read_cell_message(data: bytes) -> ReadMessage:
    """Read a message; `DecodeError` unless it is a single message from outside to one account, within all
    limits.
    """
    _check_header(data)
    try:
        root = Cell.one_from_boc(data)
        cells = _all_cells(root)
        depth = root.get_depth(0)
    except Exception as error:  # the package raises whatever its parts raise
        raise TlDecodeError(f"the bag of cells cannot be unpacked: {error}") from error
    if any(len(cell.refs) > REFERENCES_MAX for cell in cells):
        raise TlDecodeError(f"the bag has a cell with more than {REFERENCES_MAX} references")
    if depth > DEPTH_MAX:
        raise TlDecodeError(
            f"the message is {depth} cells deep; at most {DEPTH_MAX} are accepted",
            code=ErrorCode.TL_LIMIT,
            limit=DEPTH_MAX,
            found=depth,
        )
    if root.is_exotic or root.level_mask.mask:
        raise TlDecodeError("the message's root must be an ordinary cell of level 0")
    return _read(root, data)


def _check_header(data: bytes) -> None:
    if data[:4] != CELLS_MAGIC or len(data) < _HEADER_BYTES_MIN:
        raise TlDecodeError("a bag of cells begins with b5ee9c72 and its header")
    size = data[4] & 7
    if not 1 <= size <= _INDEX_BYTES_MAX or len(data) < _HEADER_BYTES_MIN + 3 * size:
        raise TlDecodeError(f"the bag's header gives {size} bytes to an index, or ends early", found=size)
    counts = (int.from_bytes(data[at : at + size], "big") for at in range(6, 6 + 3 * size, size))
    cells, roots, absent = counts
    if cells > CELLS_MAX:
        raise TlDecodeError(
            f"the bag has {cells} cells; at most {CELLS_MAX} are accepted",
            code=ErrorCode.TL_LIMIT,
            limit=CELLS_MAX,
            found=cells,
        )
    if roots != 1 or absent:
        raise TlDecodeError(
            f"a message has one root and no absent cells; this bag has {roots} roots and {absent} absent"
        )


def _all_cells(root: Any) -> list[Any]:
    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        cell = waiting.pop()
        if id(cell) not in found:
            found[id(cell)] = cell
            waiting += cell.refs
    return list(found.values())


def _read(root: Any, data: bytes) -> ReadMessage:
    part = _Part(root)
    if part.number(2) != _EXTERNAL_INBOUND:
        raise TlDecodeError("the message is not an external inbound one")
    source = part.number(2)
    if source == _EXTERNAL_ADDRESS:
        part.number(part.number(9))
    elif source != _NO_ADDRESS:
        raise TlDecodeError("the message's source must be absent or an external address")
    if part.number(2) != _STANDARD_ADDRESS:
        raise TlDecodeError("the message's destination must be a standard address")
    if part.number(1):
        raise TlDecodeError("the message's destination must be without anycast")
    workchain = part.number(8)
    account = part.number(256).to_bytes(32, "big")
    part.number(8 * part.number(4))  # the fee
    if part.number(1):  # an initial state, which our accounts do not need
        if part.number(1):
            part.reference()
        else:
            _skip_initial_state(part)
    if part.number(1):
        body = part.reference()
        if part.is_left:
            raise TlDecodeError("something is left over behind the message's body")
    else:
        body = part.rest()
    signed = workchain - 256 if workchain > 127 else workchain
    external = ExternalMessage(root.hash, body.hash, signed, account, data)
    return ReadMessage(external, NEVER, body.bits.tobytes())


def _skip_initial_state(part: _Part) -> None:
    if part.number(1):
        part.number(5)
    if part.number(1):
        part.number(2)
    for _ in range(3):
        if part.number(1):
            part.reference()


class _Part:
    """Reads a cell from front to back, and never beyond its end; the package's own reader gives less than was asked."""

    def __init__(self, cell: Any) -> None:
        self._slice = cell.begin_parse()

    @property
    def is_left(self) -> bool:
        return bool(self._slice.remaining_bits or self._slice.remaining_refs)

    def number(self, bits: int) -> int:
        if bits > self._slice.remaining_bits:
            raise TlDecodeError(
                f"the message needs {bits} more bits; {self._slice.remaining_bits} are left in its root",
                code=ErrorCode.TL_TRUNCATED,
                limit=self._slice.remaining_bits,
                found=bits,
            )
        return int(self._slice.load_uint(bits)) if bits else 0

    def reference(self) -> Any:
        if not self._slice.remaining_refs:
            raise TlDecodeError(
                "the message names a reference that its root does not have", code=ErrorCode.TL_TRUNCATED
            )
        return self._slice.load_ref()

    def rest(self) -> Any:
        return Builder().store_slice(self._slice).end_cell()

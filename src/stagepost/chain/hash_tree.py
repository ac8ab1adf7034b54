"""A mapping from 256-bit keys to values as a tree of hashes, never changed in place.

A key stands at the first place on its way, bit by bit, that it has for itself: so the shape, and with it the
hash, follows from the content alone, whatever the order of changes. A change copies the nodes on one way from
the root; everything else is shared. The accounts of a shard are one part of the tree, so a split takes parts
and a merge puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, Generic, TypeVar

import msgspec

from stagepost.errors import LocalProtocolError

KEY_BYTES = 32
KEY_BITS = KEY_BYTES * 8
EMPTY_HASH = bytes(32)
LEAF_TAG, BRANCH_TAG = b"\x00", b"\x01"

Value = TypeVar("Value")


# Structs, for they are made in C, and by the thousand; without the garbage collector, for a tree has no circles.


class _Leaf(msgspec.Struct, eq=False, gc=False):
    """`number` is the key's."""

    key: bytes
    number: int
    value: Any
    known_hash: bytes = b""

    def hash(self, of_value: Callable[[Any], bytes]) -> bytes:
        if not self.known_hash:
            self.known_hash = leaf_hash(self.key, of_value(self.value))
        return self.known_hash


class _Branch(msgspec.Struct, eq=False, gc=False):
    """At least two keys stand below it, maybe all on one side."""

    left: _Leaf | _Branch | None
    right: _Leaf | _Branch | None
    known_hash: bytes = b""

    def hash(self, of_value: Callable[[Any], bytes]) -> bytes:
        if not self.known_hash:
            left = EMPTY_HASH if self.left is None else self.left.hash(of_value)
            right = EMPTY_HASH if self.right is None else self.right.hash(of_value)
            self.known_hash = sha256(BRANCH_TAG + left + right).digest()
        return self.known_hash


class TreePath(msgspec.Struct, frozen=True):
    """The way of one key from the root of a tree to the place where the key stands, or would stand.

    `siblings`: the hashes beside the way, from the root down, `EMPTY_HASH` where nothing stands. `leaf`: key and
    hash of the value of the leaf at the end of the way; None for an empty place.
    """

    siblings: tuple[bytes, ...]
    leaf: tuple[bytes, bytes] | None


_Node = _Leaf | _Branch | None
"""Values are of any type here; `HashTree` is where they have theirs."""


class HashTree(Generic[Value]):
    """`of_value` hashes a value; all trees that are joined with one another have the same function."""

    __slots__ = ("_of_value", "_root")

    def __init__(self, of_value: Callable[[Value], bytes], root: _Node = None) -> None:
        self._of_value = of_value
        self._root = root

    @property
    def hash(self) -> bytes:
        """Hash of the content, worked out when it is read, and only where something has changed since."""
        return EMPTY_HASH if self._root is None else self._root.hash(self._of_value)

    @property
    def is_empty(self) -> bool:
        return self._root is None

    def __eq__(self, other: object) -> bool:
        """Compare by hash."""
        return isinstance(other, HashTree) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def get(self, key: bytes) -> Value | None:
        node, number, bit = self._root, int.from_bytes(key, "big"), KEY_BITS
        while isinstance(node, _Branch):
            bit -= 1
            node = node.right if number >> bit & 1 else node.left
        if node is None or node.key != key:
            return None
        value: Value = node.value
        return value

    def path(self, key: bytes) -> TreePath:
        """Return the way of `key`, from which anybody can compute the tree's hash."""
        siblings: list[bytes] = []
        node, number, bit = self._root, int.from_bytes(key, "big"), KEY_BITS
        while isinstance(node, _Branch):
            bit -= 1
            node, beside = (node.right, node.left) if number >> bit & 1 else (node.left, node.right)
            siblings.append(EMPTY_HASH if beside is None else beside.hash(self._of_value))
        return TreePath(tuple(siblings), None if node is None else (node.key, self._of_value(node.value)))

    def with_value(self, key: bytes, value: Value) -> HashTree[Value]:
        if len(key) != KEY_BYTES:
            raise LocalProtocolError(
                f"a key of a hash tree has {KEY_BYTES} bytes, not {len(key)}", limit=KEY_BYTES, found=len(key)
            )
        return HashTree(
            self._of_value, _put(self._root, _Leaf(key, int.from_bytes(key, "big"), value), KEY_BITS)
        )

    def without(self, key: bytes) -> HashTree[Value]:
        root = _drop(self._root, int.from_bytes(key, "big"), KEY_BITS)
        return self if root is self._root else HashTree(self._of_value, root)

    def items(self) -> Iterator[tuple[bytes, Value]]:
        """Return keys and values by ascending key."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            if isinstance(node, _Branch):
                waiting += [node.right, node.left]
            elif node is not None:
                yield node.key, node.value

    def part(self, prefix: int, bits: int) -> HashTree[Value]:
        """Return the tree of the keys whose first `bits` bits are those of `prefix`, a number of so many
        bits.
        """
        return HashTree(self._of_value, _part(self._root, prefix, bits, KEY_BITS))

    def joined_with(self, other: HashTree[Value]) -> HashTree[Value]:
        """Return the tree of both contents; they have no key in common."""
        return HashTree(self._of_value, _join(self._root, other._root, KEY_BITS))


def tree_of(of_value: Callable[[Value], bytes], items: Iterable[tuple[bytes, Value]] = ()) -> HashTree[Value]:
    tree = HashTree(of_value)
    for key, value in items:
        tree = tree.with_value(key, value)
    return tree


def leaf_hash(key: bytes, value_hash: bytes) -> bytes:
    return sha256(LEAF_TAG + key + value_hash).digest()


def root_above(end: bytes, key: bytes, siblings: Sequence[bytes]) -> bytes:
    """Return the hash of a tree in which `end` stands at the end of the way of `key`, beside `siblings`."""
    number, found = int.from_bytes(key, "big"), end
    for depth in range(len(siblings), 0, -1):
        beside = siblings[depth - 1]
        is_right = number >> (KEY_BITS - depth) & 1
        found = sha256(BRANCH_TAG + (beside + found if is_right else found + beside)).digest()
    return found


def _put(node: _Node, leaf: _Leaf, bit: int) -> _Node:
    """Return `node` with `leaf` in it. `bit` counts the bits that are left below this place."""
    if node is None:
        return leaf
    if isinstance(node, _Leaf):
        return leaf if node.number == leaf.number else _apart(node, leaf, bit)
    if leaf.number >> (bit - 1) & 1:
        return _Branch(node.left, _put(node.right, leaf, bit - 1))
    return _Branch(_put(node.left, leaf, bit - 1), node.right)


def _apart(one: _Leaf, other: _Leaf, bit: int) -> _Node:
    """Return the branches for two leaves at one place, down to where their ways part."""
    parting = (one.number ^ other.number).bit_length()
    is_right = other.number >> (parting - 1) & 1
    branch: _Branch = _Branch(one, other) if is_right else _Branch(other, one)
    for level in range(parting + 1, bit + 1):
        branch = _Branch(None, branch) if one.number >> (level - 1) & 1 else _Branch(branch, None)
    return branch


def _drop(node: _Node, number: int, bit: int) -> _Node:
    if node is None:
        return None
    if isinstance(node, _Leaf):
        return None if node.number == number else node
    if number >> (bit - 1) & 1:
        right = _drop(node.right, number, bit - 1)
        return node if right is node.right else _branch(node.left, right)
    left = _drop(node.left, number, bit - 1)
    return node if left is node.left else _branch(left, node.right)


def _branch(left: _Node, right: _Node) -> _Node:
    """Return a branch of both nodes; a leaf that is alone moves up."""
    if left is None and not isinstance(right, _Branch):
        return right
    if right is None and not isinstance(left, _Branch):
        return left
    return _Branch(left, right)


def _part(node: _Node, prefix: int, bits: int, bit: int) -> _Node:
    if node is None or not bits:
        return node
    if isinstance(node, _Leaf):
        return node if node.number >> (bit - bits) & ((1 << bits) - 1) == prefix else None
    below = prefix & ((1 << (bits - 1)) - 1)
    if prefix >> (bits - 1) & 1:
        return _branch(None, _part(node.right, below, bits - 1, bit - 1))
    return _branch(_part(node.left, below, bits - 1, bit - 1), None)


def _join(one: _Node, other: _Node, bit: int) -> _Node:
    if one is None or other is None:
        return one or other
    if isinstance(one, _Leaf):
        return _put(other, one, bit)
    if isinstance(other, _Leaf):
        return _put(one, other, bit)
    return _Branch(_join(one.left, other.left, bit - 1), _join(one.right, other.right, bit - 1))

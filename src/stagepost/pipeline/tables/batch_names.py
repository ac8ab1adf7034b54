"""What a batch is called, so that it is taken once: a dump by its content, a batch of a stream by its number."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from stagepost.pipeline.tables.manifest import Manifest


class BatchName(Protocol):
    def is_taken(self, manifest: Manifest) -> bool: ...

    def enter(self, manifest: Manifest) -> Manifest:
        """The same, with this batch taken."""
        ...


class OfDump(NamedTuple):
    digest: str

    def is_taken(self, manifest: Manifest) -> bool:
        return self.digest in manifest.taken

    def enter(self, manifest: Manifest) -> Manifest:
        return msgspec.structs.replace(manifest, taken=[*manifest.taken, self.digest])


class OfStream(NamedTuple):
    """A stream's batches come in order: whatever is not above the last one was taken before."""

    stream: str
    number: int

    def is_taken(self, manifest: Manifest) -> bool:
        return self.number <= manifest.stream_batches.get(self.stream, -1)

    def enter(self, manifest: Manifest) -> Manifest:
        return msgspec.structs.replace(
            manifest, stream_batches={**manifest.stream_batches, self.stream: self.number}
        )

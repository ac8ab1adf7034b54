"""Recovery of a partition after a crash: which blocks are whole, which bytes are only torn, and which are
damaged."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stagepost.topics.log import block, segment
from stagepost.topics.log.end_mark import EndMark
from stagepost.topics.log.segment import SegmentScan, segment_path
from stagepost.topics.topic import DamagedLog


@dataclass
class RecoveredLog:
    """State of a partition. `mark` is where the whole blocks end. `torn_segments` lie after it and may be
    removed."""

    mark: EndMark
    digest: bytes
    newest_ms: int
    torn_segments: list[int] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)


def recover(folder: Path, partition: int, mark: EndMark | None, *, is_told: bool = False) -> RecoveredLog:
    """Check the last segment, and everything after the mark; raise `DamagedLog` if acknowledged bytes are not
    whole.

    Whole blocks after the mark are kept: after a power cut the mark may be too low. With `is_told` the mark
    comes from the writer itself, which knows that everything after it was refused.
    """
    bases = segment.base_offsets(folder)
    if not bases or (mark is not None and mark.segment not in bases):
        wanted = 0 if mark is None else mark.segment
        raise DamagedLog(segment_path(folder, wanted), 0, "the file is gone")
    torn: list[int] = []
    repairs: list[str] = []
    if mark is None:
        # Without a mark, the last segment that has a header is the one that was being written.
        while len(bases) > 1 and segment_path(folder, bases[-1]).stat().st_size < segment.HEADER_BYTES:
            torn.append(bases.pop())
        found = _scanned(folder, partition, bases[-1], None, repairs)
        start = bases[0]
    else:
        at = bases.index(mark.segment)
        found = _scanned(folder, partition, mark.segment, mark, repairs, is_told=is_told)
        behind, bases = bases[at + 1 :], bases[: at + 1]
        start = mark.start_offset
        for base in behind:
            following = None if is_told or torn else _follows(folder, partition, base, found, repairs)
            if following is None:
                torn.append(base)
            else:
                bases.append(base)
                found = following
    if torn:
        repairs.append(
            f"{len(torn)} segments in {folder} that were begun and never acknowledged were removed"
        )
    end = EndMark(start, found.offset, bases[-1], found.position)
    return RecoveredLog(end, found.digest, found.newest_ms, torn, repairs)


@dataclass
class _ScanEnd:
    """End of the whole blocks of one segment."""

    offset: int
    position: int
    digest: bytes
    newest_ms: int


def _scanned(
    folder: Path,
    partition: int,
    base: int,
    mark: EndMark | None,
    repairs: list[str],
    *,
    is_told: bool = False,
) -> _ScanEnd:
    """Scan one segment to its last whole block. Up to the mark everything must be whole."""
    path = segment_path(folder, base)
    limit = mark.position if is_told and mark is not None else None
    scan = SegmentScan(path, partition, base, limit)
    try:
        if mark is not None and scan.limit < mark.position:
            raise DamagedLog(
                path, scan.limit, f"the file ends here, but {mark.position} bytes were acknowledged"
            )
        newest_ms = scan.header.appended_before_ms
        acknowledged = segment.HEADER_BYTES if mark is None else mark.position
        try:
            for whole in scan.blocks():
                newest_ms = whole.header.appended_ms
        except DamagedLog:
            if scan.position < acknowledged or (mark is None and not _is_torn(path, scan.position)):
                raise
            repairs.append(
                f"{path} was cut at byte {scan.position}: {scan.limit - scan.position} bytes behind it were not written whole"
            )
        if mark is not None and base == mark.segment:
            _require_mark(path, scan, mark, is_told)
        return _ScanEnd(scan.offset, scan.position, scan.digest, newest_ms)
    finally:
        scan.close()


def _require_mark(path: Path, scan: SegmentScan, mark: EndMark, is_told: bool) -> None:
    """Raise `DamagedLog` unless the blocks up to the mark hold as many records as it says."""
    if scan.offset < mark.end_offset or (is_told and scan.offset != mark.end_offset):
        raise DamagedLog(
            path,
            scan.position,
            f"the blocks end at offset {scan.offset}, but {mark.end_offset} was acknowledged",
        )


def _is_torn(path: Path, position: int) -> bool:
    """Return whether the rest of a file looks like an interrupted write: cut short, or not there at all.

    Use this only without a mark that tells what was acknowledged.
    """
    with path.open("rb") as file:
        file.seek(position)
        rest = file.read(block.HEADER_BYTES + block.BODY_BYTES_MAX)
    if len(rest) < block.HEADER_BYTES or not any(rest):
        return True
    header = block.read_header(rest)
    return header.magic == block.MAGIC and block.HEADER_BYTES + header.body_bytes > len(rest)


def _follows(
    folder: Path, partition: int, base: int, before: _ScanEnd, repairs: list[str]
) -> _ScanEnd | None:
    """Return the scan of a segment that was begun after the mark, if it is the next one and has a whole
    header; else None."""
    if base != before.offset:
        return None
    path = segment_path(folder, base)
    try:
        scan = SegmentScan(path, partition, base)
    except DamagedLog:
        return None
    scan.close()
    if scan.header.previous != before.digest:
        return None
    beyond = EndMark(0, base, base, segment.HEADER_BYTES)
    return _scanned(folder, partition, base, beyond, repairs)

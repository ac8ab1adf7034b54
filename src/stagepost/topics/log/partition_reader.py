"""A partition as its readers see it, in this process or another: all records before the mark, from any
offset, verified."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from stagepost.errors import StorageError
from stagepost.topics.batch import Batch
from stagepost.topics.log import segment
from stagepost.topics.log.end_mark import EndMark, read_mark
from stagepost.topics.log.recovery import recover
from stagepost.topics.log.segment import SegmentScan, segment_path
from stagepost.topics.topic import DamagedLog, OffsetGone, beyond_the_end

_NOTHING = EndMark(0, 0, 0, 0)


class PartitionReader:
    """Reader of one partition. It holds no file open between two calls."""

    def __init__(self, folder: Path, topic: str, partition: int) -> None:
        self._folder = folder
        self._topic = topic
        self._partition = partition

    @property
    def mark(self) -> EndMark:
        """Present bounds of the partition."""
        try:
            mark = read_mark(self._folder)
            if mark is not None:
                return mark
            # Segments that were copied without the mark: they end where the whole blocks end.
            if not self._folder.exists() or not segment.base_offsets(self._folder):
                return _NOTHING
            return recover(self._folder, self._partition, None).mark
        except OSError as error:
            raise self._unreadable(self._folder, error) from error

    def batches(self, start: int, end: int | None = None) -> Iterator[Batch]:
        """Yield batches up to the mark at the time of the first one."""
        mark = self.mark
        if start < mark.start_offset:
            raise OffsetGone(self._topic, self._partition, start, mark.start_offset)
        end = mark.end_offset if end is None else end
        if max(start, end) > mark.end_offset:
            raise beyond_the_end(self._topic, self._partition, max(start, end), mark.end_offset)
        if start < end:
            yield from self._read(mark, start, end)

    def _read(self, mark: EndMark, start: int, end: int) -> Iterator[Batch]:
        bases = [base for base in segment.base_offsets(self._folder) if base <= mark.segment]
        at = bisect_right(bases, start) - 1
        digest: bytes | None = None
        while start < end:
            if not 0 <= at < len(bases):
                raise self._missing(start, start, f"no segment holds offset {start}")
            base = bases[at]
            if base > start:
                raise self._missing(start, base, f"the segment before it ends at offset {start}, too early")
            scan = self._opened(base, mark.position if base == mark.segment else None, start)
            try:
                if digest is not None and scan.header.previous != digest:
                    raise DamagedLog(scan.path, 0, "the segment does not follow the segment before it")
                scan.seek(self._folder, start)
                for whole in scan.blocks():
                    if scan.offset > start:
                        yield whole.batch(self._partition).within(start, end)
                        start = min(scan.offset, end)
                    if start == end:
                        return
                digest = scan.digest
            except OSError as error:
                raise self._unreadable(scan.path, error) from error
            finally:
                scan.close()
            if base == mark.segment:
                raise DamagedLog(
                    scan.path, scan.position, f"the segment ends at offset {scan.offset}, too early"
                )
            at += 1

    def _missing(self, start: int, base: int, what: str) -> StorageError:
        """Return `OffsetGone` if retention has removed the records meanwhile; otherwise `DamagedLog`."""
        first_kept = self.mark.start_offset
        if start < first_kept:
            return OffsetGone(self._topic, self._partition, start, first_kept)
        return DamagedLog(segment_path(self._folder, base), 0, what)

    def _opened(self, base: int, limit: int | None, start: int) -> SegmentScan:
        path = segment_path(self._folder, base)
        try:
            return SegmentScan(path, self._partition, base, limit)
        except FileNotFoundError:
            raise self._missing(start, base, "the file is gone") from None
        except OSError as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: Path, error: OSError) -> StorageError:
        reason = (error.strerror or str(error)).lower()
        return StorageError(
            f"{path} of topic {self._topic} cannot be read: {reason}",
            advice="check the disk and the file's mode",
        )

"""A partition as its only writer sees it: opened and repaired, appended to, divided into segments, shortened
by retention."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stagepost.errors import StorageError
from stagepost.ground.files.owner_lock import OwnerLock
from stagepost.ground.files.small_files import FILE_MODE, Files, replace_durably, write_all
from stagepost.topics.log import block, segment
from stagepost.topics.log.block import Row
from stagepost.topics.log.end_mark import NAME as MARK_NAME
from stagepost.topics.log.end_mark import EndMark, read_mark, write_mark
from stagepost.topics.log.recovery import RecoveredLog, recover
from stagepost.topics.topic import DamagedLog, Retention

LOCK_NAME = "writer.lock"


class PartitionLog:
    """Log of one partition, for one thread at a time.

    The constructor raises `StorageError` if another process writes here, or if there is damage. After any
    error the file is not trusted: before the next write it is opened anew, checked, and cut to its
    acknowledged length.
    """

    def __init__(
        self,
        folder: Path,
        partition: int,
        *,
        retention: Retention = Retention(),  # noqa: B008  # frozen
        segment_bytes: int = segment.SEGMENT_BYTES_MAX,
        files: Files | None = None,
    ) -> None:
        self.folder = folder
        self.partition = partition
        self.repairs: list[str] = []
        """Repairs, in sentences for the operator."""
        self._retention = retention
        self._segment_bytes = segment_bytes
        self._files = files or Files()
        self._file: int | None = None
        self._mark_file: int | None = None
        self._mark: EndMark | None = None
        self._digest = block.NO_DIGEST
        self._newest_ms = 0
        self._indexed = 0
        self._lock = OwnerLock(folder / LOCK_NAME)
        try:
            self._open_anew()
        except OSError as error:
            self.close()
            raise self._failed("opened", error) from error
        except BaseException:
            self.close()
            raise

    @property
    def mark(self) -> EndMark:
        """Acknowledged bounds of the log."""
        assert self._mark is not None
        return self._mark

    @property
    def is_suspect(self) -> bool:
        """Return True after an error, until the file has been opened anew and checked."""
        return self._file is None

    def append(self, rows: Sequence[Row], now_ms: int) -> int:
        """Return the offset of the first row, once all are on the disk; raise `StorageError` if none of them
        is."""
        try:
            if self._file is None:
                self._open_anew()
            return self._append(rows, now_ms)
        except OSError as error:
            self._distrust()
            raise self._failed("written", error) from error
        except DamagedLog:
            self._distrust()
            raise

    def retain(self, now_ms: int) -> int:
        """Remove the segments that retention does not keep; return their number."""
        try:
            if self._file is None:
                self._open_anew()
            return self._retain(now_ms)
        except OSError as error:
            self._distrust()
            raise self._failed("shortened", error) from error

    def close(self) -> None:
        """Close the files and release the lock; further calls do nothing."""
        self._close_files()
        self._lock.release()

    # Writing

    def _append(self, rows: Sequence[Row], now_ms: int) -> int:
        assert self._file is not None
        assert self._mark_file is not None
        mark = self.mark
        written = block.write_block(rows, mark.end_offset, now_ms, self._digest)
        if mark.position > segment.HEADER_BYTES and mark.position + len(written) > self._segment_bytes:
            self._begin_segment()
            mark = self.mark
        write_all(self._files, self._file, written, mark.position)
        self._files.sync(self._file)
        end = mark._replace(end_offset=mark.end_offset + len(rows), position=mark.position + len(written))
        write_all(self._files, self._mark_file, write_mark(end), 0)
        # Only now is the append done.
        self._mark = end
        self._digest = written[block.FIELDS_BYTES : block.HEADER_BYTES]
        self._newest_ms = max(self._newest_ms, now_ms)
        self._note_in_index(mark)
        return mark.end_offset

    def _begin_segment(self) -> None:
        """Begin a new file, durable before it is used. The mark follows with the first block."""
        base_offset = self.mark.end_offset
        path = segment.segment_path(self.folder, base_offset)
        # An attempt that failed half-way may have left a file.
        self._files.remove(path)
        file = self._files.open(path, is_new=True)
        try:
            header = segment.write_header(self.partition, base_offset, self._newest_ms, self._digest)
            write_all(self._files, file, header, 0)
            self._files.sync(file)
            self._files.sync_folder(self.folder)
        except BaseException:
            self._files.close(file)
            raise
        if self._file is not None:
            self._files.close(self._file)
        self._file = file
        self._mark = self.mark._replace(segment=base_offset, position=segment.HEADER_BYTES)
        self._indexed = segment.HEADER_BYTES

    def _note_in_index(self, block_at: EndMark) -> None:
        """Add an index entry for readers that look for an offset. Losing it costs them only time, so this
        does not wait for the disk."""
        if block_at.position - self._indexed < segment.INDEX_EVERY_BYTES:
            return
        self._indexed = block_at.position
        path = segment.index_path(self.folder, block_at.segment)
        with suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                os.write(file, segment.index_entry(block_at.end_offset, block_at.position))
            finally:
                os.close(file)

    # After an error

    def _distrust(self) -> None:
        """Cut off the bytes of a failed write: they were refused, and the next start must not find them."""
        if self._file is not None:
            with suppress(OSError):
                self._files.cut(self._file, self.mark.position)
                self._files.sync(self._file)
        if self._mark_file is not None:
            # The mark may have been written in part, and readers go by it.
            with suppress(OSError):
                write_all(self._files, self._mark_file, write_mark(self.mark), 0)
        self._close_files()

    def _close_files(self) -> None:
        for file in (self._file, self._mark_file):
            if file is not None:
                with suppress(OSError):
                    self._files.close(file)
        self._file = self._mark_file = None

    def _open_anew(self) -> None:
        files, found = self._files, self._recovered()
        mark = found.mark
        self._file = files.open(segment.segment_path(self.folder, mark.segment))
        if os.fstat(self._file).st_size > mark.position:
            files.cut(self._file, mark.position)
        # Blocks kept after an old mark may never have been synced.
        files.sync(self._file)
        files.sync_folder(self.folder)
        self._mark_file = self._opened_mark(mark)
        self._mark = mark
        self._digest = found.digest
        self._newest_ms = found.newest_ms
        self._indexed = mark.position

    def _recovered(self) -> RecoveredLog:
        known = self._mark or self._found_mark()
        found = recover(self.folder, self.partition, known, is_told=self._mark is not None)
        self.repairs += found.repairs
        for base_offset in found.torn_segments:
            self._files.remove(segment.segment_path(self.folder, base_offset))
        return found

    def _found_mark(self) -> EndMark | None:
        """Return the mark that the last writer left; the first writer finds none, and begins a segment."""
        try:
            mark = read_mark(self.folder)
        except DamagedLog as damage:
            self.repairs.append(f"{damage.text}; it was made anew from the segments")
            return None
        if mark is None and not segment.base_offsets(self.folder):
            path = segment.segment_path(self.folder, 0)
            header = segment.write_header(self.partition, 0, 0, block.NO_DIGEST)
            replace_durably(self._files, path, header)
        return mark

    def _opened_mark(self, mark: EndMark) -> int:
        """Write the mark in place if there is one, because a full disk has no room for another file; return
        the open file."""
        path, content = self.folder / MARK_NAME, write_mark(mark)
        if not path.exists() or path.stat().st_size != len(content):
            replace_durably(self._files, path, content)
            return self._files.open(path)
        file = self._files.open(path)
        try:
            write_all(self._files, file, content, 0)
            self._files.sync(file)
        except BaseException:
            self._files.close(file)
            raise
        return file

    # Retention

    def _retain(self, now_ms: int) -> int:
        bytes_max, age_ms_max = self._retention.bytes_max, self._retention.age_ms_max
        if bytes_max is None and age_ms_max is None:
            return 0
        if (
            age_ms_max is not None
            and now_ms - self._newest_ms > age_ms_max
            and self.mark.position > segment.HEADER_BYTES
        ):
            self._begin_segment()
            self._write_mark()
        bases = segment.base_offsets(self.folder)
        sizes = [segment.segment_path(self.folder, base).stat().st_size for base in bases]
        held, gone = sum(sizes), 0
        while bases[gone] != self.mark.segment:
            age_ms = now_ms - self._newest_before(bases[gone + 1])
            is_old = age_ms_max is not None and age_ms > age_ms_max
            # Left behind by a removal that was interrupted.
            is_gone = bases[gone + 1] <= self.mark.start_offset
            if not is_old and not is_gone and (bytes_max is None or held <= bytes_max):
                break
            held -= sizes[gone]
            gone += 1
        if gone:
            # Durable before the files go: otherwise their absence would look like damage after a power cut.
            self._mark = self.mark._replace(start_offset=bases[gone])
            self._write_mark()
            for base in bases[:gone]:
                self._files.remove(segment.segment_path(self.folder, base))
                self._files.remove(segment.index_path(self.folder, base))
        return gone

    def _newest_before(self, base: int) -> int:
        """Return the time of the last append to the segment before this one, in Unix milliseconds."""
        path = segment.segment_path(self.folder, base)
        with path.open("rb") as file:
            header = segment.read_header(path, file.read(segment.HEADER_BYTES), self.partition, base)
        return header.appended_before_ms

    def _write_mark(self) -> None:
        assert self._mark_file is not None
        write_all(self._files, self._mark_file, write_mark(self.mark), 0)
        self._files.sync(self._mark_file)

    def _failed(self, what: str, error: OSError) -> StorageError:
        reason = (error.strerror or str(error)).lower()
        return StorageError(
            f"the log in {self.folder} cannot be {what}: {reason}",
            advice="check the disk and the space left on it",
            reason=reason,
        )

"""Bugs of the storage floor: what is flushed, and what a start makes of the files.

Each changes what one production line means, for as long as the code of one node runs. `issue` names
the defect that it brings back, `seed` is where it was caught last: there a hunt begins.
"""

from __future__ import annotations

from .bug import (
    DAMAGED,
    KILLS_ONLY,
    LOSSY_TOPIC,
    QUIET,
    SHORT_SEGMENTS,
    TINY_SEGMENTS,
    TRIMMED,
    make_bug,
)

__all__ = ["DURABILITY", "RECOVERY"]

DURABILITY = (
    make_bug(
        "acknowledge before fsync",
        "storage.log.jobs:FlushJob.run",
        "self.fsyncs.rows(segment)\n    if",
        "pass\n    if",
        seed=1,
    ),
    make_bug(
        "name of a new segment is not flushed",
        "storage.log.jobs:FlushJob.run",
        "if self.names_changed:\n        self.fsyncs.names(self.disk, self.key)\n",
        "return FlushResult(self.epochs is None, False)\n",
        seed=2,
        shape={**QUIET},
    ),
    make_bug(
        "a repetition is acknowledged before its flush",
        "node.apis.produce:_admit_all",
        "AppendEntry(replica, entry.level, ",
        "AppendEntry(replica, _MEMORY if result.duplicate else entry.level, ",
        # Stored as `memory`, the answer lost, sent again as `flushed`.
        shape={
            **QUIET,
            "topics": LOSSY_TOPIC,
            "rows_max": 8,
            "loss": 0.05,
            "slow_job": 0.5,
            "stronger_again": 1.0,
            "death_interval_ms": 1_000,
        },
        seed=5,
    ),
    make_bug(
        "failed fsync ignored",
        "node.partitions.flushing:Flushes._failed",
        "if not replica.log.fail_flush(job, error):",
        "replica.log.fail_flush(job, error)\n    replica.log.fault = ''\n    if True:",
        also=(("storage.log.marks:Fsyncs._sync", "if self._failure:", "if False:"),),
        shape={**QUIET, "failed_sync": 0.1, "rows_max": 8},
    ),
    make_bug(
        "cache taken for disk after a failed fsync",
        "storage.segment.segment:Segment.rewrite",
        "self.file.rewrite(",
        "(",
        shape={**QUIET, "failed_sync": 0.1, "rows_max": 8},
    ),
    make_bug(
        "trim that is not durable",
        "storage.log.jobs:TrimJob._save_start",
        "checkpoint.save_log_start(self.disk, self.key, self.offset)",
        "pass",
        seed=1,
    ),
    make_bug(
        "mark written before its rows are flushed",
        "storage.log.jobs:FlushJob.run",
        "for segment in self.segments:",
        "self._write_mark()\n    for segment in self.segments:",
        issue="1.4",
        seed=5,
        shape={**QUIET, "rows_max": 24, "death_in_job": 0.3, "page_order": True},
    ),
    make_bug(
        "a trim that meets an empty last segment removes the next file",
        "storage.log.log:Log._is_given_up",
        "segment.end_offset <= start_offset and not next_name",
        "segment.end_offset <= start_offset",
        seed=17,
        shape={
            **TRIMMED,
            "producers": 1,
            "trimmers": 4,
            "full_segments": 0.5,
            "death_interval_ms": 3_000,
        },
    ),
    make_bug(
        "a flush behind a trim whose fsync failed acknowledges its rows",
        "node.partitions.flushing:Flushes._done",
        "if error is None and replica.log.fault:",
        "if False:",
        also=(
            ("storage.log.marks:Fsyncs._sync", "if self._failure:", "if False:"),
            ("storage.log.log:Log.complete_flush", "if self.fault:", "if False:"),
            ("node.partitions.trimming:Trims._written", "if replica.log.fault and", "if False and"),
        ),
        seed=2,
        shape={
            **TRIMMED,
            "topics": LOSSY_TOPIC,
            "failed_trim": 1.0,
            "rows_max": 8,
            "death_interval_ms": 300,
        },
    ),
    make_bug(
        "a snapshot of producers goes before the rows that it speaks of",
        "storage.log.jobs:TrimJob._flush",
        "self.fsyncs.rows(segment)",
        "pass",
        issue="1.6",
        also=(
            (
                "storage.log.checkpoint:restore_producers",
                "if offset <= log_end_offset and",
                "if True and",
            ),
        ),
        shape={**TRIMMED, "death_after_trim": 0.5},
        seed=4,
    ),
    make_bug(
        "epochs go with the only files that know of them",
        "storage.log.log:Log.begin_trim",
        "self.epochs.dump() if doomed and self._unflushed.has_unsaved(self.epochs) else None",
        "None",
        seed=4,
        shape={
            **QUIET,
            "topics": LOSSY_TOPIC,
            "producers": 1,
            "followers": 4,
            "trimmers": 2,
            "stronger_again": 1.0,
            "slow_job": 0.0,
            "trim_interval_ms": 300,
            "death_after_trim": 0.5,
            "death_interval_ms": 1_000,
            **KILLS_ONLY,
        },
    ),
    make_bug(
        "readers see rows that are not flushed",
        "node.apis.fetch:_read_replica",
        "end = high_watermark",
        "end = log.log_end_offset",
        seed=1,
    ),
)

RECOVERY = (
    make_bug(
        "cut at the first bad CRC below the flushed point",
        "storage.segment.scan:_Judge.judge",
        "return Damage(at, extent.end, offset, extent.next_offset)",
        "return Torn(at, offset)",
        also=(
            (
                "storage.log.recovery:_Recovery._cut",
                "if torn.offset < self._known.offset:",
                "if False:",
            ),
            (
                "storage.log.recovery:_Recovery.run",
                "if flushed:\n        self._scan",
                "if False:\n        self._scan",
            ),
        ),
        shape={
            **QUIET,
            "producers": 3,
            "bit_flip": 1.0,
            "rows_max": 8,
            "death_in_job": 0.1,
            "death_interval_ms": 200,
        },
        seed=3,
    ),
    make_bug(
        "a torn tail is kept",
        "storage.log.recovery:_Recovery._cut",
        "file.truncate(torn.position)",
        "pass",
        seed=2,
        shape={**QUIET, "rows_max": 24, "death_in_job": 0.3, "death_interval_ms": 1_000},
    ),
    make_bug(
        "resynchronising at whatever looks like a batch",
        "storage.segment.scan:_Judge.judge",
        "extent = extent_of(source, at, offset, header, known)",
        "extent, known = None, None",
        issue="1.4",
        also=(
            (
                "storage.segment.damage:Resync._find_anchor",
                "self._chain(candidate.position).reaches_end and",
                "True and",
            ),
            (
                "storage.segment.damage:Resync.look_behind",
                "self._far_behind(anchor.position)",
                "anchor",
            ),
        ),
        opened=("payload-batches",),
        shape={
            **QUIET,
            "payload_batches": 1.0,
            "header_flips": 1.0,
            "rows_max": 8,
            "followers": 2,
        },
        seed=1,
    ),
    make_bug(
        "index ahead of the log",
        "storage.segment.index:SparseIndex.add",
        "self.relative_offsets.append(relative_offset)",
        "self.relative_offsets.append(relative_offset + (position > 64))",
    ),
    make_bug(
        "an index entry inside damage is believed",
        "storage.segment.reading:_floor",
        "if damage.end_offset <= offset and damage.end_position > position:",
        "if False:",
        issue="1.20",
        shape={**DAMAGED, "rows_max": 24, "bit_flip": 1.0},
        seed=2,
    ),
    make_bug(
        "an index entry inside damage gives a batch twice",
        "storage.segment.reading:_last",
        "if batch is not None and batch.end <= limit:",
        "if batch is None and position != last.end:\n"
        "            last = last._replace(end=position)\n"
        "            break\n"
        "        if batch is not None and batch.end <= limit:",
        issue="1.20",
        # Small batches: with one more of them the answer goes on behind the entry.
        shape={
            **DAMAGED,
            "topics": SHORT_SEGMENTS,
            "readers": 6,
            "rows_max": 3,
            "header_flips": 0.0,
            "entry_flips": 1.0,
        },
        seed=19,
    ),
    make_bug(
        "producers of rows that were given up are forgotten",
        "storage.log.checkpoint:_Rows._headers",
        "seen = start\n",
        "yield from self._segments.headers(max(start, self._start), self._damages)\n"
        "    return\n"
        "    seen = start\n",
        issue="1.6",
        seed=1,
        shape={
            **QUIET,
            "readers": 2,
            "trimmers": 2,
            "rows_max": 8,
            "trim_interval_ms": 1_000,
            "death_after_trim": 1.0,
            "death_interval_ms": 4_000,
        },
    ),
    make_bug(
        "sequence state forgotten at restart",
        "core.partition.producers:ProducerStates.replay",
        "self.record(header, header.base_offset, self._opened_us)",
        "pass",
        seed=1,
    ),
    make_bug(
        "a producer snapshot ahead of the log is believed",
        "storage.log.checkpoint:restore_producers",
        "if offset <= log_end_offset and",
        "if True and",
        also=(
            (
                "storage.log.jobs:FlushJob.run",
                "for segment in self.segments:",
                "self._save_what_can_be_rebuilt()\n    for segment in self.segments:",
            ),
        ),
        shape={
            **QUIET,
            "topics": TINY_SEGMENTS,
            "producers": 4,
            "rows_max": 24,
            "slow_job": 1.0,
            "death_in_job": 0.1,
            "death_in_call": 0.0,
            "death_interval_ms": 4_000,
        },
        seed=3,
    ),
    make_bug(
        "a producer snapshot of another partition is believed",
        "storage.log.checkpoint:restore_producers",
        "if rows.confirm(producers, offset) and rows.replay(producers, offset):",
        "if rows.replay(producers, offset) or True:",
        issue="30.A4",
        seed=1,
        shape={
            **QUIET,
            "topics": SHORT_SEGMENTS,
            "snapshots_exchanged": 1.0,
            "death_interval_ms": 1_000,
        },
    ),
    make_bug(
        "files of a lost oldest segment are not missed",
        "storage.log.opening:_Opening._report_missing",
        "self._report(",
        "str(",
        issue="1.20",
        shape={
            **QUIET,
            "producers": 4,
            "rows_max": 24,
            "segment_gone": 1.0,
            "death_interval_ms": 1_000,
        },
    ),
    make_bug(
        "offsets of a lost newest segment are given out again",
        "storage.log.opening:_Opening._recover",
        "flushed = max(point.offset, self._known.end_offset)",
        "flushed = 0",
        issue="1.20",
        seed=3,
        shape={
            **QUIET,
            "producers": 4,
            "rows_max": 24,
            "newest_gone": 1.0,
            "death_interval_ms": 1_000,
        },
    ),
    make_bug(
        "a damaged log-start is taken for none",
        "storage.log.opening:_Opening.run",
        'self._report(f"{name} is damaged',
        'str(f"{name} is damaged',
        issue="1.20",
        seed=5,
        shape={**QUIET, "readers": 2, "trimmers": 2, "log_start_damaged": 1.0},
    ),
)

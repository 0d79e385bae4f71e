"""Bugs of the node: decisions, appends, answers, retention, jobs.

Each changes what one production line means, for as long as the code of one node runs. `issue` names
the defect that it brings back, `seed` is where it was caught last: there a hunt begins.
"""

from __future__ import annotations

from .bug import (
    AGING_TOPIC,
    CHANGING,
    LOSSY_TOPIC,
    OVERTAKING,
    QUIET,
    STRANGE,
    TWO_PARTITIONS,
    make_bug,
)

__all__ = ["DISKS", "DOOR", "METADATA", "WORK"]

METADATA = (
    make_bug(
        "metadata acknowledged before its fsync",
        "storage.metadata_jobs:Tail.append",
        "self.file.sync()",
        "pass",
        issue="1.3",
        seed=5,
    ),
    make_bug(
        "compaction goes on writing to the unlinked file",
        "storage.metadata_jobs:Tail._write_new",
        "self.file = new",
        "pass",
        issue="1.9",
        seed=11,
    ),
    make_bug(
        "a compaction whose directory fsync fails goes on with the unlinked file",
        "storage.metadata_jobs:Tail._write_new",
        "self.file = new",
        "self.disk.sync_dir(self.path.rpartition('/')[0])\n    self.file = new",
        issue="1.9",
        shape={**CHANGING, "sync_errors": 0.05, "death_interval_ms": 1_000},
        seed=9,
    ),
    make_bug(
        "a full disk refuses the start",
        "node.metadata:Metadata.commit_at_start",
        "except DiskFull:",
        "except ZeroDivisionError:",
        issue="1.9",
        shape={**QUIET, "full_disk_interval_ms": 500},
        seed=6,
    ),
    make_bug(
        "producer ids of an earlier life are given out again",
        "node.producer_ids:ProducerIds.start",
        "self.next = self._end = self._metadata.image.next_producer_id",
        "self._end = self._metadata.image.next_producer_id; self.next = max(0, self._end - 1_000)",
        issue="1.11",
        seed=0,
    ),
    make_bug(
        "a deleted topic's directory passes for the new topic's",
        "storage.partition_directories:PartitionDirectories.create_partition",
        "if read_topic_id(self._disk, path) == topic_id:",
        "if read_topic_id(self._disk, path):",
        issue="1.3",
        seed=2,
        shape={
            **QUIET,
            "entries_max": 3,
            "admins": 2,
            "emfile_interval_ms": 200,
            "death_interval_ms": 100_000,
        },
    ),
    make_bug(
        "directories of new topics are not flushed",
        "storage.partition_directories:PartitionDirectories.sync_partitions",
        "self._disk.sync_dir(self.data_path)",
        "pass",
    ),
    make_bug(
        "no new leader epoch after an unclean stop",
        "node.lifecycle:_start_in",
        "records.extend(decide.bump_leader_epochs(image, config.node_id))",
        "pass",
        seed=5,
        shape={**QUIET, "followers": 2, "topics": LOSSY_TOPIC, "rows_max": 8},
    ),
)

DOOR = (
    make_bug(
        "a fetch with a negative bound gets nothing",
        "node.fetch_answer:FetchAnswer.__init__",
        "limit = request.bytes_max if request.bytes_max > 0 else",
        "limit = request.bytes_max if request.bytes_max else",
        issue="1.11",
        shape={**STRANGE},
    ),
    make_bug(
        "producer ids that were never given out are taken",
        "node.produce:_check_producer",
        "if producer_id >= ids.next:",
        "if False:",
        issue="1.11",
        shape={**STRANGE},
    ),
    make_bug(
        "producer epochs that were never given out are taken",
        "node.produce:_check_producer",
        "if epoch > given and epoch >",
        "if False and epoch >",
        issue="1.11",
        shape={**STRANGE},
    ),
    make_bug(
        "a producer's epoch goes backwards",
        "node.produce:handle_init_producer_id",
        "newest = ids.newest_epoch(producer_id)",
        "newest = min(epoch, ids.newest_epoch(producer_id))",
        issue="1.11",
        shape={**STRANGE},
    ),
    make_bug(
        "rows that nobody can read pass the door",
        "batch.rows:check_rows",
        "if metadata.surely_readable:",
        "if True:",
        issue="1.19",
        shape={**STRANGE},
    ),
)

WORK = (
    make_bug(
        "an append that raises leaves its bytes behind",
        "storage.segment:Segment.append",
        "assert offset == end_offset",
        "assert offset == end_offset and offset % 61",
        issue="1.1",
        seed=1,
        shape={**QUIET},
    ),
    make_bug(
        "a failed append is remembered as stored",
        "node.replica:Replica.append",
        "except (DiskFull, ThrottledBroker):\n        self.producers.drop_staged()",
        "except (DiskFull, ThrottledBroker):\n        self.producers.commit_staged()",
        seed=1,
        shape={**QUIET, "full_disk_interval_ms": 500, "rows_max": 8},
    ),
    make_bug(
        "two batches are remembered where five are promised",
        "core.partition.producers:_Producer.add",
        "if len(batches) > PRODUCER_BATCHES_REMEMBERED:",
        "if len(batches) > 2:",
        issue="1.10",
        shape={**QUIET, "loss": 0.05, "half_open": 0.5, "slow_network": 0.05, "rows_max": 8},
    ),
    make_bug(
        "retention takes a row younger than its bound",
        "storage.retention:_by_time",
        "cutoff_us = now.wall_us - retention_ms * 1000",
        "cutoff_us = now.wall_us - retention_ms * 100",
        issue="1.21",
        seed=5,
    ),
    make_bug(
        "off-by-one in a sliced fetch",
        "storage.log:Log.read",
        "asked = (segment, offset,",
        "asked = (segment, min(offset + 1, end_offset - 1),",
    ),
    make_bug(
        "files are cut before they are removed",
        "storage.jobs:RemoveFilesJob.run",
        "_remove(self.disk, path)",
        "self.disk.exists(path) and self.disk.open(path, create=False).truncate(0)",
        issue="1.8",
        seed=0,
        shape={
            **QUIET,
            "readers": 2,
            "trimmers": 1,
            "followers": 2,
            "rows_max": 24,
            "death_interval_ms": 4_000,
        },
    ),
    make_bug(
        "bytes go and come back under a view",
        "storage.jobs:FlushJob.run",
        "for segment in self.segments:",
        "for one in self.segments:\n"
        "        data = one.file.read_copy(64, one.file.size)\n"
        "        one.file.truncate(64)\n"
        "        one.file.append([data])\n"
        "    for segment in self.segments:",
        issue="1.8",
        shape={**QUIET, "readers": 2, "followers": 2, "death_interval_ms": 4_000},
        seed=3,
    ),
    make_bug(
        "long polls sleep on when rows come",
        "core.partition.partition:PartitionState.flushed",
        "return self._advance()",
        "return self._advance() and False",
        seed=14,
    ),
    make_bug(
        "a long poll whose time is up is forgotten",
        "node.purgatory:Purgatory.expired",
        "found.append(waiter)",
        "pass",
        seed=1,
        shape={
            **QUIET,
            "topics": TWO_PARTITIONS,
            "producers": 1,
            "followers": 2,
            "death_interval_ms": 100_000,
        },
    ),
    make_bug(
        "answers of one partition overtake each other",
        "node.acknowledgements:Answers.is_next",
        "return bool(confirmed) and confirmed[0] is waiter",
        "return True",
        issue="1.18",
        shape={**OVERTAKING},
    ),
    make_bug(
        "an acknowledgement in a produce that times out overtakes",
        "node.acknowledgements:ProduceWaiter.expire",
        "if not result.error_code and not answers.is_next(self):",
        "if False:",
        issue="1.18",
        seed=1,
        shape={**OVERTAKING},
    ),
    make_bug(
        "rows of memory topics are never flushed",
        "node.flushes:Flushes.appended",
        "due_us = replica.log.flush_due_us()",
        "due_us = None",
        issue="1.7",
        seed=2,
        shape={**QUIET, "topics": LOSSY_TOPIC},
    ),
    make_bug(
        "no descriptor is taken for a failed fsync",
        "node.flushes:Flushes._failed",
        "if not replica.log.fail_flush(job, error):",
        "if replica.log.fail_flush(job, error) is None:",
        seed=0,
        shape={**QUIET, "emfile_interval_ms": 500, "evictions": 0.1, "death_interval_ms": 100_000},
    ),
    make_bug(
        "a reader of lost rows is not told",
        "node.fetch_answer:_check_divergence",
        "if entry.last_epoch == NO_EPOCH:",
        "if True:",
        seed=6,
        shape={**QUIET, "topics": LOSSY_TOPIC, "followers": 2, "naps": 0.3, "rows_max": 8},
    ),
)

DISKS = (
    make_bug(
        "half a create: the record holds although no directory was made",
        "node.metadata:Metadata._directories_made",
        "if failed:",
        "if False:",
        issue="1.9",
        seed=1,
        shape={**CHANGING, "emfile_interval_ms": 200},
    ),
    make_bug(
        "a create that is sent again replaces directories that a record may own",
        "node.metadata:Metadata._start_job",
        "self.log.check_usable()",
        "pass",
        issue="1.3",
        seed=4,
        shape={**CHANGING, "failed_sync": 0.1, "death_interval_ms": 1_000},
    ),
    make_bug(
        "the directory of a deleted topic gets a name that is too long",
        "storage.partition_directories:PartitionDirectories._doom",
        'self.partition_path(doomed_name(name, owner or b""))',
        'self.partition_path(f"{name}.{(owner or bytes()).hex()[:8]}.deleted")',
        issue="1.2",
        seed=2,
        shape={**CHANGING},
    ),
    make_bug(
        "retention trusts a clock that has jumped",
        "node.retention:BelievedClock.read",
        "if wall_us <= expected_us + _JUMP_US:",
        "if True:",
        issue="1.21",
        seed=1,
        shape={
            **QUIET,
            "topics": AGING_TOPIC,
            "clock_jump_interval_ms": 1_000,
            "death_interval_ms": 100_000,
        },
    ),
    make_bug(
        "files are removed on the loop",
        "node.trims:Trims._remove_files",
        "self._jobs.start(files, partial(self._removed, [replica]), Urgency.BACKGROUND)",
        "self._removed([replica], files.run(), None, None)",
        issue="2.1",
        shape={**QUIET, "readers": 2, "trimmers": 2, "rows_max": 24},
    ),
)

"""The output of `quiverlog topic describe`: JSON and tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from quiverlog.cli.console.output import human_bytes, human_count, join, print_fields, print_table
from quiverlog.cli.console.staged_rows import print_waits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quiverlog.client.base.results import TopicDetail
    from quiverlog.client.transactions.overview import WaitingRows

__all__ = ["detail_json", "print_detail"]


def detail_json(detail: TopicDetail, waits: Sequence[WaitingRows] = ()) -> dict[str, object]:
    from quiverlog.batch.schema_text import format_schema

    is_known = all(partition.is_known for partition in detail.partitions)
    return {
        "name": detail.name,
        "topic_id": detail.topic_id.hex(),
        "created": detail.created,
        "key": list(detail.key_columns),
        "replication_factor": detail.replication_factor,
        # A sum without the partitions that did not answer would look like lost rows.
        "rows": detail.rows if is_known else None,
        "size_bytes": detail.size_bytes if is_known else None,
        "configs": {
            key: {"value": config.value, "source": config.source}
            for key, config in sorted(detail.configs.items())
        },
        "schemas": [
            {"schema_id": s.schema_id, "created": s.created, "schema": format_schema(s.schema)}
            for s in detail.schemas
        ],
        "partitions": [asdict(partition) for partition in detail.partitions],
        "waiting": [asdict(one) for one in waits if one.topic == detail.name],
    }


def print_detail(
    detail: TopicDetail, waits: Sequence[WaitingRows] = (), *, all_configs: bool
) -> None:
    """`waits`: committed rows that have not reached this topic, or another one."""
    from quiverlog.batch.schema_text import format_type

    shown = {
        key: config
        for key, config in sorted(detail.configs.items())
        if all_configs or config.source != "default"
    }
    print_fields(
        {
            "topic": detail.name,
            "id": detail.topic_id.hex(),
            "created": f"{detail.created:%Y-%m-%d %H:%M:%S %Z}",
            "key": join(detail.key_columns) or "(none)",
            "replicas": detail.replication_factor,
            "rows": detail.sum_shown(human_count(detail.rows)),
            "size": detail.sum_shown(human_bytes(detail.size_bytes)),
            "schema id": detail.schemas[-1].schema_id,
        }
    )
    print("\ncolumns")
    print_table(
        ["NAME", "TYPE", "NULL"],
        [(f.name, format_type(f.type), f.nullable) for f in detail.schema],
    )
    if shown:
        print("\nconfiguration")
        print_table(
            ["KEY", "VALUE", "SOURCE"], [(key, c.value, c.source) for key, c in shown.items()]
        )
    print("\npartitions")
    _print_partitions(detail)
    own = [one for one in waits if one.topic == detail.name]
    if own:
        print("\ncommitted rows that wait to be published")
        print_waits(own)


def _print_partitions(detail: TopicDetail) -> None:
    # Two tables, what most users look for first: one does not fit into 80 columns.
    numbers = ["PARTITION", "LEADER", "START", "END", "ROWS", "SIZE"]
    print_table(
        ["PARTITION", "LEADER", "START", "END", "ROWS", "SIZE"],
        [
            (
                p.partition,
                p.leader,
                *(
                    (
                        p.log_start_offset,
                        p.high_watermark,
                        p.high_watermark - p.log_start_offset,
                        human_bytes(p.size_bytes),
                    )
                    if p.is_known
                    else ("?",) * 4
                ),
            )
            for p in detail.partitions
        ],
        right=numbers,
    )
    print("\nreplicas and segments")
    print_table(
        ["PARTITION", "EPOCH", "REPLICAS", "IN SYNC", "FLUSHED", "SEGMENTS"],
        [
            (
                p.partition,
                p.leader_epoch,
                join(p.replicas),
                join(p.in_sync_replicas),
                *((p.flushed_offset, p.segments) if p.is_known else ("?", "?")),
            )
            for p in detail.partitions
        ],
        right=["PARTITION", "EPOCH", "FLUSHED", "SEGMENTS"],
    )

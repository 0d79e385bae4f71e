"""The topic that `produce` writes to: checks of an existing one, creation of a new one.

It is created when its first rows were read and fit: an unreadable file, or Ctrl-C before, leaves no
topic. It is never deleted: other clients may use it already.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from quiverlog.cli.console.failures import CommandFailed, ExitCode
from quiverlog.cli.formats.new_topic import check_as_it_is, schema_from_options, summary_of
from quiverlog.errors import TopicExists, UnknownTopic

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.cli.formats.read_files import Source
    from quiverlog.client.client import Client

__all__ = ["TargetTopic"]


class TargetTopic:
    """The topic, for the time of a `with`; on Ctrl-C its error reports whether it was created.

    `schema`: the columns to read the file with; None infers them. `is_made`: this command created
    it.
    """

    def __init__(
        self, client: Client, name: str, create: dict[str, Any], *, is_quiet: bool = False
    ) -> None:
        self._client = client
        self.name = name
        self._is_quiet = is_quiet
        self._create = create
        self._is_asked_for = False
        self.is_made = False
        asked = schema_from_options(create["schema"], create["schema_file"])
        if asked is not None and not create["create"]:
            raise click.UsageError(
                "--schema needs --create; a topic's columns change by `topic alter`."
            )
        self._is_new = name not in client.metadata([name]).topics
        if not self._is_new:
            current = client.schemas(name).current
            is_other = asked is not None and not asked.equals(current)
            check_as_it_is(client, name, create, is_other=is_other)
            asked = current
        elif not create["create"]:
            raise UnknownTopic(f"There is no topic {name!r}; --create makes it.", topic=name)
        self.schema: pa.Schema | None = asked

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not (self._is_new and isinstance(error, KeyboardInterrupt)):
            return
        if self.is_made:
            what = self.note_when_empty(is_sure=False)
        else:
            may = "may have been" if self._is_asked_for else "was not"
            what = f"no row was sent, and topic {self.name!r} {may} created."
        raise CommandFailed(f"interrupted: {what}", ExitCode.INTERRUPTED) from error

    def make_for(self, source: Source, sending: dict[str, Any]) -> bool:
        """Create a new topic when the source's first rows are ready.

        Args:
            sending: how rows will be sent, by the arguments of `Client.producer`.

        Returns:
            False: the input was empty, and there are no columns to create the topic with.

        Raises:
            CommandFailed, SchemaMismatch: the first rows cannot be read, or do not fit.
            click.UsageError: no row could be sent to the new topic in this way.
        """
        if not self._is_new:
            return True
        self._check_sending(sending)
        schema = self.schema or source.schema
        if not len(schema):
            print(
                f"quiverlog: no rows and no columns: {self.name} was not created.", file=sys.stderr
            )
            return False
        first = next((batch for batch in source.batches if batch.num_rows), None)
        if first is not None:
            self._check_rows(first, schema)
            source.batches = itertools.chain([first], source.batches)
        self._is_asked_for = True
        with contextlib.suppress(TopicExists):  # Another client has created it meanwhile.
            made = self._client.create_topic(
                self.name,
                schema,
                partitions=self._create["partitions"],
                replication_factor=self._create["replication_factor"],
                key=self._create["key"],
                config=self._create["config"],
            )
            self.is_made = True
            if made is not None and not self._is_quiet:
                print(f"quiverlog: created {self.name}: {summary_of(made)}.", file=sys.stderr)
        return True

    def note_when_empty(self, *, is_sure: bool) -> str:
        if not is_sure:
            return f"Topic {self.name!r} was created, and no row in it was acknowledged."
        return f"The new topic is empty: `quiverlog topic delete {self.name}` removes it."

    def _check_sending(self, sending: dict[str, Any]) -> None:
        partitions, partition = self._create["partitions"], sending.get("partition", 0)
        if partition >= partitions:
            raise click.UsageError(
                f"--partition {partition}: the new topic has partitions 0 to {partitions - 1}; "
                "--partitions sets how many."
            )
        level, config = sending.get("durability", ""), self._create["config"]
        needs_copies = level.startswith("replicated") and "durability" not in config
        if not needs_copies:
            return
        factor = self._create["replication_factor"]
        if factor is None and len(self._client.metadata([self.name]).brokers) == 1:
            raise click.UsageError(
                f"--durability {level}: the new topic has one copy of each row, as there is one "
                "live broker."
            )
        if factor == 1:
            raise click.UsageError(
                f"--durability {level}: the new topic has one copy of each row; "
                "--replication-factor sets how many."
            )

    def _check_rows(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        from quiverlog.batch.schema import check_schema, normalize_schema
        from quiverlog.client.rows.convert import Converter

        # The same checks as the producer's, which exists only when the topic does.
        stored = normalize_schema(schema)
        check_schema(stored)
        Converter(stored, self.name).batches(batch)

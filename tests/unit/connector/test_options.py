"""Every option is parsed and refused up front, by name, with what to use instead."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pyspark_quiverlog import pool
from pyspark_quiverlog.option_table import OPTIONS, REFUSED, Use, options_page
from pyspark_quiverlog.option_types import Secret
from pyspark_quiverlog.options import (
    ReadOptions,
    WriteOptions,
    parse_read_options,
    parse_write_options,
)
from pyspark_quiverlog.pool import Access, access_of, endpoint, options_for_tasks
from quiverlog.client.base.security import Security
from quiverlog.errors import ConnectionFailed, InvalidOption, PolicyViolation, QuiverlogError
from quiverlog.wire.authentication_messages import token_text

TOKEN = token_text("ab" * 12, bytes(32))

BASE = {"bootstrap.servers": "127.0.0.1:9292", "subscribe": "flights"}


def read(use: Use = Use.STREAM_READ, **options: str) -> ReadOptions:
    return parse_read_options(BASE | options, use)


def write(**options: str) -> WriteOptions:
    return parse_write_options({"bootstrap.servers": "a:1"} | options, Use.STREAM_WRITE)


def test_a_topic_is_made_only_where_that_is_asked_for() -> None:
    assert write().create_topic is False
    made = write(createTopic="true", **{"createTopic.partitions": "3", "createTopic.key": "a, b"})
    assert (made.create_topic, made.create_partitions, made.create_key) == (True, 3, ("a", "b"))
    assert made.create_replication is None, "the cluster's default"
    for option in ("partitions", "key", "replicationFactor"):
        with pytest.raises(InvalidOption, match=f"`createTopic.{option}`.*set `createTopic`"):
            write(**{f"createTopic.{option}": "2"})


@pytest.mark.parametrize(
    "level", ["topic_default", "memory", "flushed", "replicated", "replicated_flushed"]
)
def test_a_write_may_ask_for_each_durability(level: str) -> None:
    assert write(durability=level).durability == level


def test_the_smallest_read_takes_the_documented_defaults() -> None:
    options = read()
    assert options.subscribe == ("flights",)
    assert options.starting_offsets is None  # latest for streams, earliest for batches
    assert options.fail_on_data_loss is True
    assert options.max_trigger_delay == 900
    assert options.min_rows_per_task == 1000
    assert options.fail_on_corrupt_data is True


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("maxOffsetsPerTrigger", "1000", "max_rows_per_trigger", 1000),
        ("MAXROWSPERTRIGGER", "7", "max_rows_per_trigger", 7),
        ("maxOffsetsPerTrigger", str(2**63 - 1), "max_rows_per_trigger", 2**63 - 1),
        ("startingTimestamp", str(2**63 - 1), "starting_timestamp", 2**63 - 1),
        ("startingOffsets", '{"flights":"earliest"}', "starting_offsets", {"flights": -2}),
        ("startingOffsets", '{"flights":"LATEST"}', "starting_offsets", {"flights": -1}),
        ("maxBytesPerTrigger", "64m", "max_bytes_per_trigger", 64 * 1024**2),
        ("maxBytesPerTrigger", "2 GiB", "max_bytes_per_trigger", 2 * 1024**3),
        ("maxBytesPerTrigger", "1234", "max_bytes_per_trigger", 1234),
        ("maxBytesPerTrigger", str(2**63 - 1), "max_bytes_per_trigger", 2**63 - 1),
        ("maxTriggerDelay", "500ms", "max_trigger_delay", 0.5),
        ("maxTriggerDelay", "2h", "max_trigger_delay", 7200),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
        ("columns", "a, b", "columns", ("a", "b")),
        ("startingOffsets", "Earliest", "starting_offsets", "earliest"),
        (
            "startingOffsets",
            '{"flights":{"0":23,"1":-2}}',
            "starting_offsets",
            {"flights": {0: 23, 1: -2}},
        ),
        ("startingTimestamp", "1767225600000", "starting_timestamp", 1767225600000),
        ("minRecordsPerPartition", "0", "min_rows_per_task", 0),
        ("bootstrap.servers", "a:1, [::1]:2", "bootstrap_servers", ("a:1", "[::1]:2")),
    ],
)
def test_values(name: str, text: str, field: str, value: object) -> None:
    assert getattr(read(**{name: text}), field) == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bootstrap.servers": "nowhere"}, r"`bootstrap\.servers` is .*, expected host:port"),
        ({"bootstrap.servers": "a:0"}, r"`bootstrap\.servers`"),
        ({"maxOffsetsPerTrigger": "0"}, "`maxOffsetsPerTrigger` is 0, allowed is 1 or more"),
        ({"maxOffsetsPerTrigger": "ten"}, "`maxOffsetsPerTrigger`"),
        ({"maxOffsetsPerTrigger": str(2**63)}, "`maxOffsetsPerTrigger`"),
        ({"startingOffsets": '{"flights":"newest"}'}, "`startingOffsets`"),
        ({"startingOffsets": f'{{"flights":{{"0":{2**63}}}}}'}, "`startingOffsets`"),
        (
            {"maxBytesPerTrigger": "64 parsecs"},
            "`maxBytesPerTrigger` is .*, expected a number of bytes",
        ),
        ({"maxBytesPerTrigger": "0"}, "`maxBytesPerTrigger` is '0', expected .* from 1 to"),
        ({"maxBytesPerTrigger": str(2**63)}, "`maxBytesPerTrigger` is .*, expected .* to 922337"),
        ({"maxBytesPerTrigger": "9000000t"}, "`maxBytesPerTrigger` is .*, expected .* to 922337"),
        ({"maxTriggerDelay": "15"}, "`maxTriggerDelay` is .*, expected a time with its unit"),
        ({"failOnDataLoss": "perhaps"}, "`failOnDataLoss` is .*, expected true or false"),
        (
            {"startingOffsets": "newest"},
            "`startingOffsets` is .*, expected earliest, latest or JSON",
        ),
        ({"startingOffsets": '{"flights":{"0":-3}}'}, "`startingOffsets`"),
        ({"startingOffsets": '{"flights":{"0":1.5}}'}, "`startingOffsets`"),
        ({"startingOffsets": '{"flights":{"x":1}}'}, "`startingOffsets`"),
        ({"startingOffsets": '{"other":{"0":1}}'}, "names 'other', which is not subscribed"),
        ({"startingOffsets": "{"}, "`startingOffsets` is .*, expected JSON"),
        ({"subscribe": "a,a"}, "`subscribe` is .*, expected each name once"),
        ({"subscribe": "a,,b"}, "`subscribe` is .*, expected names"),
        ({"subscribePattern": "x.*"}, "exactly one of"),
        ({"maxRowsPerTrigger": "1", "maxOffsetsPerTrigger": "1"}, "mean the same"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is above"),
        ({"columns": "a,_offset"}, "come with `includeMetadata`"),
        (
            {"isolation.level": "serializable"},
            "`isolation.level` is .*allowed are read_com",
        ),
        ({"kafka.isolation.level": "read_committed"}, "use `isolation.level`"),
        ({"fetchFrom": "closest"}, "`fetchFrom` is .*, allowed are leader, follower, nearest"),
        ({"client.rack": "b"}, "needs `fetchFrom`: set that to nearest or follower"),
        ({"kafka.client.rack": "b"}, "use `client.rack`"),
        ({"failOnCorruptData": "perhaps"}, "`failOnCorruptData` is .*, expected true or false"),
        ({"endingOffsets": "latest"}, "streaming query has no end"),
        ({"topic": "x"}, "Use `subscribe`"),
        ({"maxOffsetPerTrigger": "8"}, "did you mean `maxOffsetsPerTrigger`"),
        ({"colour": "blue"}, "`colour` is unknown"),
        ({"path": "other"}, "given twice"),
        ({"kafka.ssl.protocol": "x"}, "`kafka.ssl.protocol` does not apply"),
        ({"kafka.fetch.max.bytes": "1"}, "use `fetch.max.bytes`"),
        ({"filter": "a > 1"}, r"`filter` does not apply: .*\.where"),
    ],
)
def test_refusals_of_a_streaming_read(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        read(**options)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_option_of_kafka_is_refused_with_what_to_use(name: str) -> None:
    for parse in (lambda: read(**{name: "1"}), lambda: write(topic="t", **{name: "1"})):
        with pytest.raises(InvalidOption, match=f"`{name}` does not apply: .{{8,}}"):
            parse()


def test_what_is_required_is_asked_for() -> None:
    with pytest.raises(InvalidOption, match=r"`bootstrap\.servers` is required"):
        parse_read_options({"subscribe": "a"}, Use.READ)
    with pytest.raises(InvalidOption, match="got none"):
        parse_read_options({"bootstrap.servers": "a:1"}, Use.READ)


def test_a_batch_does_not_start_at_latest_nor_take_triggers_limits() -> None:
    with pytest.raises(InvalidOption, match=r"`startingOffsets`.*no rows"):
        read(Use.BATCH_READ, startingOffsets="latest")
    for text in ('{"flights":{"0":5,"1":-1}}', '{"flights":"latest"}'):
        with pytest.raises(InvalidOption, match=r"`startingOffsets`.*no rows"):
            read(Use.BATCH_READ, startingOffsets=text)
    with pytest.raises(InvalidOption, match="applies to streaming read, not to batch read"):
        read(Use.BATCH_READ, maxOffsetsPerTrigger="1")


def test_a_write_refuses_what_reads_take() -> None:
    with pytest.raises(InvalidOption, match="Use `topic`"):
        write(subscribe="a")
    with pytest.raises(InvalidOption, match="applies to read"):
        write(failOnDataLoss="true")


def test_spark_own_additions_are_let_pass_at_a_sink() -> None:
    assert write(topic="t", checkpointLocation="/x", queryName="q").topic == "t"


def test_what_spark_adds_to_a_table_is_let_pass() -> None:
    added = {"provider": "quiverlog", "owner": "me", "option.subscribe": "flights"}
    assert read(**added).subscribe == ("flights",)


def test_a_table_whose_options_do_not_arrive_gets_a_way_out() -> None:
    with pytest.raises(InvalidOption, match="CREATE TEMPORARY VIEW"):
        parse_read_options({}, Use.BATCH_READ)


def test_load_and_save_name_the_topic() -> None:
    options = parse_read_options({"bootstrap.servers": "a:1", "path": "flights"}, Use.READ)
    assert options.subscribe == ("flights",)
    assert write(path="delays").topic == "delays"


def test_the_warehouse_path_of_a_catalogue_table_is_no_topic() -> None:
    assert read(path="file:/tmp/warehouse/t").subscribe == ("flights",)
    with pytest.raises(InvalidOption, match=r"`path`.*use `subscribe`"):
        parse_read_options({"bootstrap.servers": "a:1", "path": "file:/tmp/t"}, Use.READ)


def test_the_table_covers_the_option_classes_exactly() -> None:
    for use, cls in ((Use.READ, ReadOptions), (Use.WRITE, WriteOptions)):
        of_the_driver = {"token"}  # What it sends to tasks.
        assert {s.field for s in OPTIONS.values() if s.where & use} | of_the_driver == {
            f.name for f in dataclasses.fields(cls)
        }


def test_every_default_in_the_table_parses() -> None:
    for spec in OPTIONS.values():
        assert spec.default is None or spec.parse(spec.default) is not None
        assert spec.doc.endswith((".", "`")), spec.key


@pytest.mark.parametrize("use", [Use.READ, Use.WRITE])
def test_the_options_page_has_a_row_per_option(use: Use) -> None:
    lines = options_page(use).splitlines()
    assert len(lines) == 2 + sum(1 for s in OPTIONS.values() if s.where & use)
    assert all(line.replace("\\|", "").count("|") == 6 for line in lines)


def test_the_security_file_distinguishes_clients() -> None:
    assert endpoint(read()).access == Access()
    assert endpoint(read(**{"security.file": "/etc/q.toml"})).access.file == "/etc/q.toml"
    assert endpoint(write(**{"security.file": "a.toml"})).access.file == "a.toml"


def test_logins_distinguish_clients_and_show_no_password() -> None:
    own = [
        endpoint(read(user="alice", password="secret-1")),
        endpoint(read(user="alice", password="secret-2")),
        endpoint(read(user="alice", passwordFile="secret-1")),
        endpoint(read(user="bob", passwordEnv="P")),
        endpoint(write(tokenFile="t")),
    ]
    assert len(set(own)) == len(own)
    assert endpoint(read(user="alice", password="secret-1")) == own[0]
    assert [one.access.is_drivers for one in own] == [True, True, True, True, False]
    for shown in (repr(own[0]), str(own[0].access), repr(read(user="alice", password="secret-1"))):
        assert "secret" not in shown


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"user": "alice"}, "passwordFile"),
        ({"password": "secret"}, "user"),
        ({"passwordEnv": "P"}, "user"),
        ({"user": "alice", "password": "secret", "passwordFile": "f"}, "passwordFile"),
        ({"user": "alice", "password": "secret", "tokenFile": "f"}, "tokenFile"),
        ({"user": "alice", "tokenFile": "f"}, "leave `user` out"),
        ({"user": "alice", "password": ""}, "password"),
        ({"tokenFile": "t", "tokenLifetime": "59s"}, "1m to 24h"),
        ({"tokenFile": "t", "tokenLifetime": "25h"}, "1m to 24h"),
    ],
    ids=str,
)
def test_contradicting_logins_are_refused_without_the_password(
    given: dict[str, str], named: str
) -> None:
    for parse in (read, write):
        with pytest.raises(InvalidOption, match=named) as found:
            parse(**given)
        assert "secret" not in str(found.value)


def test_a_description_is_made_of_options_and_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('tls = false\nuser = "carol"\npassword = "hers"\n')
    named = {"security.file": str(file)}
    assert access_of(read(**named)).security() == Security(tls=False, user="carol", password="hers")
    own = access_of(read(**named, user="alice", password="secret"))
    assert own.security() == Security(tls=False, user="alice", password="secret")
    sent = options_for_tasks(read(**named, user="alice", password="secret"), Secret(TOKEN))
    assert (sent.user, sent.password) == (None, None)
    assert access_of(sent).security() == Security(tls=False, token=TOKEN)
    assert not access_of(sent).is_drivers
    assert access_of(read()).security() is None


class Tokens:
    """A client that makes tokens."""

    mechanism = "SCRAM-SHA-256"
    failure: QuiverlogError | None = None
    text = ""

    def __init__(self) -> None:
        self.made: list[float] = []

    def who_am_i(self) -> Tokens:
        return self

    def create_token(self, lifetime_s: float) -> Tokens:
        if self.failure is not None:
            raise self.failure
        self.made.append(lifetime_s)
        self.text = f"token-{len(self.made)}"
        return self


def test_a_token_of_tasks_is_made_anew_at_half_of_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    client, now_s = Tokens(), 0.0
    monkeypatch.setattr(pool, "_pool", pool._Pool())
    monkeypatch.setattr(pool, "client", lambda where: client)
    monkeypatch.setattr(pool.time, "monotonic", lambda: now_s)
    options = read(user="alice", password="secret", tokenLifetime="1h")
    first = pool.task_token(options)
    now_s = 1_799.0
    assert pool.task_token(options) == first == Secret("token-1")
    now_s = 1_800.0
    assert pool.task_token(options) == Secret("token-2")
    assert client.made == [3_600.0, 3_600.0]
    longer = read(user="alice", password="secret", tokenLifetime="2h")
    assert pool.task_token(longer) == Secret("token-3"), "it must last longer"
    assert pool.task_token(read(tokenFile="t")) is None, "each task reads it"
    client.mechanism = ""
    now_s = 4_000.0
    assert pool.task_token(options) is None, "the brokers ask for no login"


def test_clients_of_earlier_tokens_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []

    class Closing:
        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(pool, "_pool", pool._Pool())
    monkeypatch.setattr("quiverlog.connect", lambda *_, **__: Closing())
    own = pool.endpoint(read(user="alice", password="secret"))
    lasting = pool.client(own)

    def with_token(number: int) -> pool.Endpoint:
        token = Secret(f"qlt1.{number:08x}.{'a' * 43}")
        return own._replace(access=pool.Access(token=token))

    made = [pool.client(with_token(number)) for number in range(pool.CLIENTS_MAX)]
    assert not closed
    producer = Closing()
    pool._pool.producers[with_token(1), "t"] = (None, producer)  # type: ignore[assignment]
    assert pool.client(with_token(0)) is made[0], "the last used now"
    pool.client(with_token(pool.CLIENTS_MAX))
    assert closed == [producer, made[1]]
    assert pool.client(own) is lasting, "of the driver's own credentials"
    assert pool.client(with_token(0)) is made[0]


def test_tasks_keep_their_token_while_no_other_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    client, now_s = Tokens(), 0.0
    monkeypatch.setattr(pool, "_pool", pool._Pool())
    monkeypatch.setattr(pool, "client", lambda where: client)
    monkeypatch.setattr(pool.time, "monotonic", lambda: now_s)
    options = read(user="alice", password="secret", tokenLifetime="1h")
    client.failure = PolicyViolation("user 'alice' has 1000 tokens.")
    with pytest.raises(PolicyViolation):
        pool.task_token(options)
    client.failure = None
    first = pool.task_token(options)
    now_s, client.failure = 1_800.0, PolicyViolation("user 'alice' has 1000 tokens.")
    assert pool.task_token(options) == first
    client.failure = None
    now_s = 1_979.0
    assert pool.task_token(options) == first, "not at once for each micro-batch"
    now_s = 1_980.0
    assert pool.task_token(options) == Secret("token-2")
    client.failure, now_s = ConnectionFailed("down"), 1_980.0 + 3_599.0
    assert pool.task_token(options) == Secret("token-2")
    now_s = 1_980.0 + 3_600.0
    with pytest.raises(ConnectionFailed):
        pool.task_token(options)


def test_the_life_of_a_token_is_that_of_a_stream_or_a_job() -> None:
    lives = {
        use: parse_read_options(BASE, use).token_lifetime
        for use in (Use.BATCH_READ, Use.STREAM_READ)
    }
    assert lives == {Use.BATCH_READ: 43_200.0, Use.STREAM_READ: 7_200.0}
    lives = {
        use: parse_write_options({"bootstrap.servers": "a:1", "topic": "t"}, use).token_lifetime
        for use in (Use.BATCH_WRITE, Use.STREAM_WRITE)
    }
    assert lives == {Use.BATCH_WRITE: 43_200.0, Use.STREAM_WRITE: 7_200.0}

"""Routing and retries of requests, over the cached metadata.

A `retriable` error is retried until the operation's deadline, after a pause drawn from [0, min(max,
min * 2^attempt)] (full jitter); `refresh_metadata` drops cached topics first. The answer of a
broker that is behind counts only if no other has a newer one. When a leader is silent, other
brokers are asked whether it still leads, because a machine without power breaks no connection.

Invariant: threads share one instance; cached values are frozen and replaced, never changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from quiverlog.client.base.commands import (
    Abandon,
    Call,
    CallMany,
    Finish,
    FinishAny,
    Operation,
    PendingReply,
    Reply,
    Sleep,
    Start,
)
from quiverlog.client.base.deadline import backoff_s, empty_pause_s, pause_s, within
from quiverlog.client.base.results import Address, ClusterMetadata, TopicInfo
from quiverlog.client.base.schema_history import check_history_size, history_from_wire
from quiverlog.client.base.security import Security
from quiverlog.client.base.waits import Wait, Waits
from quiverlog.errors import (
    AuthenticationFailed,
    BrokerShuttingDown,
    ConnectionClosed,
    ConnectionFailed,
    InvalidArgument,
    NotController,
    NotLeader,
    OutcomeUnknown,
    QuiverlogError,
    QuotaExceeded,
    RequestTimedOut,
    ThrottledBroker,
    TlsFailed,
    TooManyConnections,
    TooManyConnectionsFromAddress,
    UnknownPartition,
    UnknownTopic,
    UnknownTopicId,
    error_from_code,
)
from quiverlog.limits import (
    CLIENT_ID_CHARS_MAX,
    CONNECT_TIMEOUT_MS_DEFAULT,
    LEADER_SILENCE_MS,
    REQUEST_TIMEOUT_MS_DEFAULT,
    THROTTLE_MS_MAX,
)
from quiverlog.types import TopicPartition
from quiverlog.wire import messages as m
from quiverlog.wire.cluster_messages import DescribeClusterResponse
from quiverlog.wire.messages import MetadataResponse, Response

from .answers import named
from .metadata import MetadataAnswer, ask_one, check, fetch_metadata, partition_info

if TYPE_CHECKING:
    from quiverlog.batch.schema import SchemaHistory

__all__ = [
    "NOT_READY",
    "Cluster",
    "KnownBrokers",
    "Settings",
    "Staleness",
    "answer_of_controller",
    "answers_of_leaders",
    "backoff_s",
    "check_ready",
    "empty_pause_s",
    "is_deposed",
    "pause_s",
    "staleness_of",
    "throttled_s",
]


# The broker does not answer now: a question that any broker answers goes to another one.
NOT_READY: Final = (
    BrokerShuttingDown,
    TooManyConnections,
    TooManyConnectionsFromAddress,
    ThrottledBroker,
    QuotaExceeded,
)
_NOT_READY_CODES: Final = frozenset(kind.code for kind in NOT_READY)


def check_ready(response: Response) -> None:
    if response.error_code in _NOT_READY_CODES:
        raise error_from_code(response.error_code, response.error_message)


def throttled_s(throttle_ms: int) -> float:
    """Return the seconds until a broker that has answered so gets the next such request."""
    return min(throttle_ms, THROTTLE_MS_MAX) / 1000


class Staleness(NamedTuple):
    """How old an answer is; the smallest wins."""

    is_behind: bool
    minus_version: int


class KnownBrokers:
    __slots__ = ("_failed", "_good", "_silent")

    def __init__(self) -> None:
        self._good: Address | None = None
        self._failed: tuple[Address, ...] = ()  # The latest failure is last.
        self._silent: frozenset[Address] = frozenset()

    def order(self, addresses: Iterable[Address]) -> list[Address]:
        """Return each once: the last that answered, then untried, failed and silent ones."""
        good = self._good
        known = dict.fromkeys([*([] if good is None else [good]), *addresses])
        failed = [address for address in self._failed if address in known]
        # A failure without a silence cost no time, and may be only an old answer.
        failed.sort(key=self.is_silent)
        return [*(address for address in known if address not in failed), *failed]

    def is_silent(self, address: Address) -> bool:
        return address in self._silent

    def answered(self, address: Address) -> None:
        self._good = address
        self._silent -= {address}
        if address in self._failed:
            self._failed = tuple(one for one in self._failed if one != address)

    def failed(
        self, address: Address, among: Iterable[Address], *, is_silent: bool = False
    ) -> None:
        # Of `among`, the brokers that may be asked: others were removed.
        kept = {address, *among}
        self._silent = (self._silent | ({address} if is_silent else set())) & kept
        self._failed = (*(one for one in self._failed if one != address and one in kept), address)
        if self._good == address:
            self._good = None


def staleness_of(found: Response, known: ClusterMetadata) -> Staleness | None:
    """Return how old an answer is; None: as new as the cached metadata."""
    if not isinstance(found, MetadataResponse | DescribeClusterResponse) or found.error_code:
        return None
    is_older = found.metadata_version < known.metadata_version
    # Versions of different clusters do not compare.
    if found.is_behind or (is_older and found.cluster_id == known.cluster_id):
        return Staleness(found.is_behind, -found.metadata_version)
    return None


# When a leader is silent for this long, the others are asked whether it still leads.
_SILENCE_S: Final = LEADER_SILENCE_MS / 1000

Question: TypeAlias = tuple[Call, Sequence[TopicPartition]]


def is_deposed(
    cluster: Cluster, address: Address, places: Iterable[TopicPartition]
) -> Operation[bool]:
    """Ask other brokers whether a silent leader has lost one of these partitions."""
    cluster.suspect(address)
    looked_at: set[str] = set()
    for where in places:
        try:
            topic = yield from cluster.topic(where.topic, fresh=where.topic not in looked_at)
        except QuiverlogError as error:
            if not error.retriable:
                raise
            return False
        looked_at.add(where.topic)
        info = partition_info(topic, where.partition)
        if cluster.metadata.is_led_elsewhere(info, address):
            return True
    return False


def answer_of_controller(cluster: Cluster, call: Call) -> Operation[Reply]:
    """Send a call to the controller and wait while it is the controller.

    Raises:
        ConnectionFailed: the call was not sent.
        RequestTimedOut: it was sent, and the controller was replaced, or is silent and the time up.
    """
    pending = yield from _started(call)
    try:
        while (yield FinishAny((pending,), _SILENCE_S)) is None:
            if (yield from _is_replaced(cluster, call.address)):
                raise RequestTimedOut(f"{call.address} is silent, and is no longer the controller.")
    except QuiverlogError:
        yield Abandon(pending)
        raise
    reply: Reply = yield Finish(pending)
    return reply


def _is_replaced(cluster: Cluster, address: Address) -> Operation[bool]:
    cluster.suspect(address)
    try:
        yield from cluster.refresh([])
    except QuiverlogError as error:
        if not error.retriable:
            raise
        return False
    metadata = cluster.metadata
    # While no controller is known, this one may still be it.
    return metadata.brokers.get(metadata.controller_id, address) != address


def answers_of_leaders(
    cluster: Cluster, questions: Sequence[Question], wait_s: float
) -> Operation[list[Reply | QuiverlogError]]:
    """Return answers or errors in order; leaders may hold their answers back for `wait_s`."""
    if not cluster.has_others:  # No other broker could report a new leader.
        found: list[Reply | QuiverlogError] = yield CallMany([call for call, _ in questions])
        return found
    answers: dict[int, Reply | QuiverlogError] = {}
    pending: dict[int, PendingReply] = {}
    try:
        for number, (call, _) in enumerate(questions):
            try:
                pending[number] = yield from _started(call)
            except QuiverlogError as error:
                answers[number] = error
        while pending:
            ready = yield FinishAny(tuple(pending.values()), _SILENCE_S + wait_s)
            for number, one in list(pending.items()):
                if ready is one:
                    del pending[number]
                    answers[number] = yield from _finished(one)
                elif ready is None:
                    call, places = questions[number]
                    if (yield from is_deposed(cluster, call.address, places)):
                        del pending[number]
                        yield Abandon(one)
                        why = f"{call.address} is silent, and no longer leads."
                        answers[number] = NotLeader(why)
    except QuiverlogError:
        for one in pending.values():
            yield Abandon(one)
        raise
    return [answers[number] for number in range(len(questions))]


def _started(call: Call) -> Operation[PendingReply]:
    try:
        started: PendingReply = yield Start(call, within_s=_SILENCE_S)
    except RequestTimedOut as error:
        # The request was not sent: it changes nothing, and may be sent again.
        raise ConnectionFailed(error.message, **error.details) from error
    return started


def _finished(one: PendingReply) -> Operation[Reply | QuiverlogError]:
    try:
        reply: Reply = yield Finish(one)
    except QuiverlogError as error:
        return error
    return reply


T = TypeVar("T")

_TRIES_PER_TIMEOUT = 3
# They have no cause: an earlier failure explains more.
_SILENCES = (ConnectionFailed, RequestTimedOut)
# Where another broker may answer, a silent one is waited for no longer than a silent leader.
_SILENCE_S_MAX = LEADER_SILENCE_MS / 1000
# For one that was silent before, where another has answered.
_SILENT_AGAIN_S_MAX = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `connect`. Times in seconds."""

    client_id: str = "quiverlog-python"
    connect_timeout_s: float = CONNECT_TIMEOUT_MS_DEFAULT / 1000
    request_timeout_s: float = REQUEST_TIMEOUT_MS_DEFAULT / 1000
    security: Security | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.client_id) <= CLIENT_ID_CHARS_MAX:
            raise InvalidArgument(f"client_id must have 1 to {CLIENT_ID_CHARS_MAX} characters.")
        for name in ("connect_timeout_s", "request_timeout_s"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"{name.removesuffix('_s')} must be above 0 seconds.")


class Cluster:
    """The client's cached metadata, and the rules of routing and retrying.

    Args:
        clock: monotonic seconds.
        jitter: an even draw from [0, 1).
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        settings: Settings,
        *,
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        assert bootstrap
        self.bootstrap = tuple(bootstrap)
        self.settings = settings
        self.clock = clock
        self.jitter = jitter
        self.metadata = ClusterMetadata("", -1, -1, {}, {}, {})
        self._histories: dict[bytes, SchemaHistory] = {}
        self._known = KnownBrokers()
        self._is_controller_gone = False
        # The cached controller is the one that the last NotController named.
        self._is_redirected = False
        self.waits = Waits(clock)
        # `deadline_s` bounds every operation, and is `patience_s` after the last progress.
        self.deadline_s = self.patience_s = math.inf
        # Silent brokers: left out of questions that any broker answers.
        self.skipped: frozenset[Address] = frozenset()
        # The broker of the cached metadata, if it reaches no controller.
        self._isolated: Address | None = None
        self._failed = ""
        self._fetched_s: dict[str, float] = {}

    def progressed(self) -> None:
        self.deadline_s = self.clock() + self.patience_s
        self._failed = ""

    # --- addresses ------------------------------------------------------------------------------
    def addresses(self) -> list[Address]:
        found = self._known.order([*self.metadata.brokers.values(), *self.bootstrap])
        return [one for one in found if one not in self.skipped] or found

    def address_of(self, node_id: int) -> Address:
        address = self.metadata.brokers.get(node_id)
        if address is None:
            raise ConnectionFailed(f"No address is known for broker {node_id}.")
        return address

    def leader_address(self, topic: TopicInfo, partition: int) -> Address:
        info = partition_info(topic, partition)
        if info.leader < 0:
            raise NotLeader(f"Partition {topic.name}-{partition} has no leader now.")
        return self.address_of(info.leader)

    @property
    def has_others(self) -> bool:
        return len(self.metadata.brokers) > 1

    def suspect(self, address: Address) -> None:
        self._known.failed(address, self.addresses(), is_silent=True)

    def patience_of(self, address: Address, *, has_others: bool, has_answer: bool = False) -> float:
        """Return the seconds to wait for this broker, where others may answer, or one has."""
        patience_s = self.settings.request_timeout_s
        if not has_others and not has_answer:
            return patience_s
        patience_s = min(patience_s / _TRIES_PER_TIMEOUT, _SILENCE_S_MAX)
        if has_answer and self._known.is_silent(address):
            return min(patience_s, _SILENT_AGAIN_S_MAX)
        return patience_s

    def call(self, address: Address, request: m.Request, *, timeout_s: float | None = None) -> Call:
        return Call(address, request, timeout_s or self.settings.request_timeout_s)

    def call_any(self, request: m.Request, *, is_read: bool = True) -> Operation[Reply]:
        """Ask one broker after the other until one answers whose metadata are not behind.

        Args:
            is_read: the request changes nothing, so several brokers may get it.

        Raises:
            ConnectionFailed, RequestTimedOut: none answered; names every address and its failure.
            BrokerShuttingDown, TooManyConnections, ThrottledBroker: the same, and one refused.
            AuthenticationFailed: none answered, and one refused the login.
        """
        return (yield from self._ask_any(request, is_read=is_read))[1]

    def _ask_any(
        self, request: m.Request, *, is_read: bool = True
    ) -> Operation[tuple[Address, Reply]]:
        addresses = self.addresses()
        assert addresses, "a client has an address to begin with"
        failures: list[QuiverlogError] = []
        best: tuple[Staleness, Address, Reply] | None = None
        for number, address in enumerate(addresses, start=1):
            has_others = is_read and number < len(addresses)
            has_answer = is_read and best is not None
            patience_s = self.patience_of(address, has_others=has_others, has_answer=has_answer)
            asked_s = self.clock()
            try:
                reply: Reply = yield self.call(address, request, timeout_s=patience_s)
                check_ready(reply.response)
            except (ConnectionFailed, RequestTimedOut, *NOT_READY) as error:
                # A broker that had almost no time to answer is not silent.
                is_silent = isinstance(error, RequestTimedOut)
                is_silent = is_silent and self.clock() - asked_s >= _SILENT_AGAIN_S_MAX
                self._known.failed(address, addresses, is_silent=is_silent)
                if not is_read and not isinstance(error, ConnectionFailed):
                    raise _of_change(error) from error
                failures.append(error)
                continue
            except AuthenticationFailed as error:
                # One that is cut off from the controller lacks new passwords and tokens.
                self._known.failed(address, addresses)
                failures.append(error)
                continue
            except QuiverlogError as error:
                self._known.failed(address, addresses)
                # A broker that stops, or ends with its certificate's authority: others do not.
                if has_others and isinstance(error, ConnectionClosed):
                    failures.append(error)
                    continue
                raise
            if staleness := staleness_of(reply.response, self.metadata):
                self._known.failed(address, addresses)
                if best is None or staleness < best[0]:
                    best = staleness, address, reply
                continue
            self._known.answered(address)
            check(reply.response)
            return address, reply
        if best is not None:
            self._known.answered(best[1])
            return best[1], best[2]
        assert len(failures) == len(addresses), "each has answered, or has failed"
        kinds = [type(error) for error in failures]
        texts = " ".join(dict.fromkeys(error.message for error in failures))  # each once
        if set(kinds) == {TlsFailed}:
            raise TlsFailed(texts)
        # A refusal is final: the login is no better in a second.
        named = (AuthenticationFailed, *NOT_READY, RequestTimedOut)
        raise next((kind for kind in named if kind in kinds), ConnectionFailed)(texts)

    def call_controller(self, request: m.Request) -> Operation[Reply]:
        # The try after a NotController goes to the controller that it named. If that fails too, or
        # none was named, the metadata are refreshed first.
        was_redirected, self._is_redirected = self._is_redirected, False
        if self._is_controller_gone and not was_redirected:
            yield from self.refresh([])
        self._is_controller_gone = False
        address = self.metadata.brokers.get(self.metadata.controller_id)
        # A single broker is the controller, at whichever address it was reached.
        if address is None or len(self.metadata.brokers) <= 1:
            reply = yield from self.call_any(request, is_read=False)
        else:
            try:
                reply = yield from answer_of_controller(self, self.call(address, request))
            except (ConnectionFailed, ConnectionClosed, RequestTimedOut) as error:
                self._is_controller_gone = True
                self._known.failed(address, self.addresses())
                if isinstance(request, m.InitProducerIdRequest):
                    raise  # A lost answer is harmless: the next try gets another id.
                raise _of_change(error) from error
        redirect = getattr(reply.response, "controller", None)
        if redirect is not None:
            self._is_controller_gone = True
            self._is_redirected = not was_redirected and self._follow_redirect(redirect)
        check(reply.response)
        return reply

    def _follow_redirect(self, redirect: m.BrokerEndpoint) -> bool:
        # Nothing has checked the address.
        if redirect.node_id < 0 or not redirect.host or not 0 < redirect.port < 65_536:
            return False
        brokers = {**self.metadata.brokers, redirect.node_id: Address(redirect.host, redirect.port)}
        self.metadata = replace(self.metadata, controller_id=redirect.node_id, brokers=brokers)
        return True

    def retrying(
        self, attempt: Callable[[], Operation[T]], *, timeout_s: float | None = None
    ) -> Operation[T]:
        """Run `attempt` until it succeeds, fails for good, or the time is up."""
        wanted_s = self.settings.request_timeout_s if timeout_s is None else timeout_s
        with self.waits.of(self._cut(wanted_s)) as wait:
            seconds = wait.until_s - wait.since_s
            operation = self._retrying(attempt, wait)
            return (yield from within(self.clock, seconds, operation, wait))

    def _cut(self, seconds: float) -> float:
        left_s = self.deadline_s - self.clock()
        if left_s <= 0:
            raise RequestTimedOut(
                f"The time is up; the last step was not begun. {self._failed}".rstrip()
            )
        return min(seconds, left_s)

    def _retrying(self, attempt: Callable[[], Operation[T]], wait: Wait) -> Operation[T]:
        deadline = wait.until_s
        tries = 0
        refreshed = False
        cause: QuiverlogError | None = None
        while True:
            try:
                return (yield from attempt())
            except QuiverlogError as error:
                wait_s = pause_s(error, tries, self.jitter())
                if error.refresh_metadata:
                    # Also at the last try: else each operation whose time is short would ask the
                    # same leader of before, for ever.
                    self.invalidate_topics()
                # A partition that fresh metadata does not show will not turn up by waiting.
                retriable = error.retriable and not isinstance(error, UnknownPartition)
                # Stale metadata may be the only fault: drop them and try once more.
                stale = error.refresh_metadata and not retriable and not refreshed
                if not (retriable or stale) or self.clock() + wait_s >= deadline:
                    if isinstance(error, _SILENCES):
                        message = self._with_causes(error, cause)
                        if message != error.message:
                            raise type(error)(message, **error.details) from (cause or error)
                    raise
                if cause is None or not isinstance(error, _SILENCES):
                    cause = error
                self._failed = error.message
                wait.failed(error, deadline)
                self.waits.log_long(wait)
                refreshed = refreshed or stale
                if isinstance(error, NotController | OutcomeUnknown):
                    self._is_controller_gone = True
            tries += 1
            yield Sleep(wait_s)

    def _with_causes(self, error: QuiverlogError, cause: QuiverlogError | None) -> str:
        message = error.message
        if self._isolated is not None:
            message += f" {self._isolated} answers, but reaches no controller."
        if cause is not None and cause.message not in error.message:
            message += f" Before: {cause.message}"
        return message

    def first_contact(self) -> Operation[None]:
        with self.waits.of(self._cut(self.settings.request_timeout_s)) as wait:
            yield from within(self.clock, wait.until_s - wait.since_s, self.refresh([]), wait)

    # --- metadata -------------------------------------------------------------------------------
    def refresh(
        self, names: Sequence[str] | None = None, *, from_controller: bool = False
    ) -> Operation[ClusterMetadata]:
        """Ask for all topics (None) or for some, and cache the answer. No retry.

        Args:
            from_controller: only the controller's answer counts.

        Raises:
            NotController, ConnectionFailed, RequestTimedOut: no broker answered; or a topic is
                missing at one, and the controller did not answer.
        """
        wanted = None if names is None else list(dict.fromkeys(names))
        found = yield from fetch_metadata(self._ask_any, wanted)
        kept = {} if names is None else dict(self.metadata.topics)
        for name in names or ():  # One that the answer lacks may be deleted.
            kept.pop(name, None)
        self._learn(found, {**kept, **found.topics})
        topics = found.topics
        missing = [name for name in wanted or () if from_controller or name not in topics]
        if missing and not found.is_from_controller:
            answer = yield from self._ask_controller(missing, found)
            topics = answer.topics if from_controller else {**topics, **answer.topics}
            self._learn(answer, {**self.metadata.topics, **topics})
        return replace(self.metadata, topics=topics)

    def _learn(self, found: MetadataAnswer, topics: dict[str, TopicInfo]) -> None:
        self._fetched_s.update(dict.fromkeys(found.topics, self.clock()))
        self.metadata = found.to_metadata(topics)
        is_isolated = found.response.is_behind or found.controller is None
        self._isolated = found.address if is_isolated else None

    def _ask_controller(self, names: list[str], found: MetadataAnswer) -> Operation[MetadataAnswer]:
        assert names
        controller = found.controller
        patience_s = math.inf
        if controller is not None:
            patience_s = self.patience_of(controller, has_others=True, has_answer=True)
        try:
            answer = yield from fetch_metadata(ask_one(controller, patience_s), names)
            if not answer.is_from_controller or staleness_of(answer.response, self.metadata):
                raise NotController(f"{answer.address} is no longer the controller.")
        except QuiverlogError as error:
            if controller is not None and isinstance(error, RequestTimedOut):
                self.suspect(controller)
            # Another broker is asked next time: it may have the topic, or a newer controller.
            self._known.failed(found.address, self.addresses())
            raise
        return answer

    def topic(
        self, name: str, *, fresh: bool = False, age_max_s: float = math.inf
    ) -> Operation[TopicInfo]:
        """Return a topic, from the cache (unless older than `age_max_s`) or a broker. No retry.

        Raises UnknownTopic, and as `refresh`.
        """
        known = None if fresh else self.metadata.topics.get(name)
        if known is not None and self.clock() - self._fetched_s.get(name, -math.inf) > age_max_s:
            known = None
        if known is None:
            metadata = yield from self.refresh([name])
            known = metadata.topics.get(name)
        if known is None:
            raise UnknownTopic(f"There is no topic {name!r}.", topic=name)
        assert known.name == name
        return known

    def resolve_unknown_id(
        self, name: str, topic_id: bytes, error: UnknownTopicId
    ) -> Operation[QuiverlogError]:
        """Return the error for a broker's UnknownTopicId: retriable unless the topic is gone by the
        controller's answer, as brokers apply a new topic late. No retry. Raises as `refresh`."""
        current = (yield from self.refresh([name], from_controller=True)).topics.get(name)
        if current is None or current.topic_id != topic_id:
            return error
        return NotLeader(f"{name}: the broker has not applied this topic yet.")

    def invalidate_topics(self) -> None:
        self.metadata = replace(self.metadata, topics={})
        self._fetched_s.clear()

    # --- schemas --------------------------------------------------------------------------------
    def history(
        self, topic_id: bytes, topic: str, *, needed_id: int = -1, fresh: bool = False
    ) -> Operation[SchemaHistory]:
        """Return a topic's schema history with `needed_id`; errors name `topic`. No retry."""
        known = None if fresh else self._histories.get(topic_id)
        if known is not None and (needed_id < 0 or needed_id in known):
            return known
        versions: list[m.SchemaVersion] = []
        first_id = 1
        try:
            while first_id:
                request = m.TopicSchemasRequest(topic_id=topic_id, first_schema_id=first_id)
                reply = yield from self.call_any(request)
                response = reply.response
                assert isinstance(response, m.TopicSchemasResponse)
                versions += response.schemas
                check_history_size(versions)
                assert response.next_schema_id == 0 or response.next_schema_id > first_id
                first_id = response.next_schema_id
            history = history_from_wire(versions, topic)
        except UnknownTopicId as error:
            raise named(
                (yield from self.resolve_unknown_id(topic, topic_id, error)), topic
            ) from None
        except QuiverlogError as error:
            named(error, topic)
            raise
        self._histories[topic_id] = history
        return history


def _of_change(error: QuiverlogError) -> QuiverlogError:
    """Add to the error of an unanswered change that it may have been made."""
    if not isinstance(error, RequestTimedOut):
        return error
    return RequestTimedOut(f"{error.message} The outcome is unknown.", **error.details)

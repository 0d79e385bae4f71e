"""A cluster that copies one partition, driven by chance: what happens next, and what must hold.

Owns the network, the faults and the checks. At most
`min_in_sync - 1` brokers have lost rows at any time that they have not copied back.
"""

from __future__ import annotations

import random
from collections import Counter

from quiverlog.core.partition.in_sync import Proposal
from quiverlog.errors import NotEnoughReplicas
from quiverlog.types import Durability

from .replication import LAG_US, ModelBroker, Row
from .replication_checks import Checks, Violation
from .replication_controller import Alter, Altered, Controller, Fetch, Fetched, Message

__all__ = ["ReplicationWorld", "Violation"]


class ReplicationWorld(Checks):
    """Raises Violation."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        count = rng.choice((2, 3, 3, 4, 5))
        self.min_in_sync = rng.randint(1, min(count, 3))
        self.controller = Controller(rng, count, self.min_in_sync)
        self.brokers = [ModelBroker(n) for n in range(count)]
        self.now_us = 1_000_000
        self.network: list[Message] = []
        self.late: list[Fetch | Alter] = []
        """Requests whose sender waits no more, and that will arrive all the same."""
        self.paused: ModelBroker | None = None
        self.pause_ends = self.steps_made = 0
        self.committed: list[Row] = []
        """What readers may have seen, from the first row on."""
        self.acknowledged: dict[int, int] = {}
        """Values by offset, at the level `replicated` or above."""
        self.lossy: dict[int, bool] = {}
        """Brokers that lack rows: True once the controller has a report."""
        self.watermarks: dict[tuple[int, int, int], int] = {}
        self.next_value = 0
        self.calm = False
        self.happened: Counter[str] = Counter()
        faults = (
            self.lose,
            self.give_up,
            self.fence_or_not,
            self.fence_proposed,
            self.pause,
            self.prefer,
            self.die,
            self.rise,
        )
        self.faults = [fault for fault in faults for _ in range(rng.choice((1, 1, 3)))]
        self.trouble = rng.choice((0.01, 0.03, 0.1))
        """How often something goes wrong."""
        self.steps = [
            *[self.deliver] * 14,
            *[self.fetch] * 8,
            *[self.produce] * 4,
            *[self.apply] * 5,
            *[self.work] * 4,
            *[self.propose] * 3,
            *[self.flush] * 2,
            *[self.wait] * 2,
        ]
        for broker in self.brokers:
            self._start(broker)
        for broker in self.brokers:
            self.controller.unfence(broker.broker_id)

    # --- time ----------------------------------------------------------------------------------
    def run(self, steps: int) -> None:
        for _ in range(steps):
            faulty = self.rng.random() < self.trouble
            self.rng.choice(self.faults if faulty else self.steps)()
            self.release()
            self.steps_made += 1
            if self.paused is not None and self.steps_made >= self.pause_ends:
                self._go_on()
            self.check()
        self.heal()

    def wait(self) -> None:
        self.now_us += self.rng.choice((1_000, 20_000, LAG_US // 2))

    # --- the network ---------------------------------------------------------------------------
    def fetch(self) -> None:
        for one in self.rng.sample(self.up(), k=min(2, len(self.up()))):
            for target, fetcher in one.fetchers.items():
                plan = fetcher.next_fetch(self.now_us)
                if plan is not None:
                    message = Fetch(one.broker_id, one.lives, one.broker_epoch, target, plan)
                    self.network.append(message)
                    one.waiting[target] = message

    def deliver(self, message: Message | None = None) -> None:
        if message is None:
            if not self.network:
                return
            position = 0 if self.calm else self.rng.randrange(len(self.network))
            message = self.network.pop(position)
            doubled = isinstance(message, Alter) and not self.calm and self.rng.random() < 0.1
            if doubled:
                self.network.append(message)
        if isinstance(message, Fetch):
            target = self.brokers[message.target]
            if target.up and target is not self.paused:
                answer = target.serve(
                    message.source, message.source_epoch, message.plan, self.now_us
                )
                self.network.append(Fetched(message, answer))
            else:
                self._unanswered(message)
        elif isinstance(message, Fetched):
            one = self.brokers[message.asked.source]
            if one.up and one.waiting.get(message.asked.target) is message.asked:
                del one.waiting[message.asked.target]
                one.answered(message.asked.target, message.answer, self.now_us)
        elif isinstance(message, Alter):
            code = self.controller.alter(message)
            self.happened["in-sync replicas refused" if code else "in-sync replicas changed"] += 1
            self.network.append(Altered(message, code, len(self.controller.history) - 1))
        else:
            self._altered(message)

    def _altered(self, message: Altered) -> None:
        one = self.brokers[message.asked.source]
        if not one.up or one.asked is not message.asked:
            return
        one.asked = None
        leadership = one.state.leadership
        if leadership is None or leadership.leader_epoch != message.asked.proposal.leader_epoch:
            return
        if not leadership.in_sync.in_flight:
            return  # The metadata were faster.
        if message.error_code:
            leadership.refused(message.error_code)
        else:
            meta = self.controller.history[message.version]
            leadership.applied(meta.partition_epoch, meta.in_sync, self.now_us)
        one.state.followers_moved()
        one.moved()

    def lose(self) -> None:
        if self.network:
            self._unanswered(self.network.pop(self.rng.randrange(len(self.network))))

    def give_up(self) -> None:
        """The asker has waited long enough; what it has asked may still arrive."""
        if self.network:
            self._unanswered(self.rng.choice(self.network))

    def _hold_back(self, message: Fetch | Alter) -> None:
        """The request gets stuck in the network: its sender waits no more, and it will arrive."""
        self.network = [one for one in self.network if one is not message]
        self._unanswered(message)
        self.late.append(message)

    def release(self) -> None:
        """What was stuck arrives, by now perhaps at a leader of a later epoch."""
        if self.late and self.rng.random() < 0.03:
            message = self.late.pop(self.rng.randrange(len(self.late)))
            if isinstance(message, Alter):
                for broker in message.proposal.members:
                    self._unfence(self.brokers[broker])
            self.deliver(message)

    def _unanswered(self, message: Message) -> None:
        asked = message.asked if isinstance(message, Fetched | Altered) else message
        one = self.brokers[asked.source]
        if not one.up:
            return
        if isinstance(asked, Fetch):
            if one.waiting.get(asked.target) is asked:
                del one.waiting[asked.target]
                one.fetchers[asked.target].failed(self.now_us)
        elif one.asked is asked:
            one.asked = None
            leadership = one.state.leadership
            if leadership is not None and leadership.in_sync.in_flight:
                leadership.in_sync.unanswered()

    # --- brokers -------------------------------------------------------------------------------
    def produce(self) -> None:
        one = self.rng.choice(self.brokers)
        if one.up and one.state.leads:
            values = [self.next_value + n for n in range(self.rng.randint(1, 3))]
            self.next_value += len(values)
            level = self.rng.choice((Durability.REPLICATED, Durability.REPLICATED_FLUSHED))
            try:
                one.produce(values, level)
            except NotEnoughReplicas:
                # As rows of a weaker level, for which nothing is promised.
                one.log.append((one.state.leader_epoch, value) for value in values)
                one.state.appended(one.log.log_end_offset)
                one.moved()

    def apply(self) -> None:
        one = self.rng.choice(self.brokers)
        history = self.controller.history
        if one is not self.paused and one.up and not one.jobs and one.version + 1 < len(history):
            self._apply(one, self.rng.randint(one.version + 1, len(history) - 1))

    def _apply(self, one: ModelBroker, version: int) -> None:
        meta = self.controller.history[version]
        if meta.leader_epoch != one.meta.leader_epoch:
            one.asked = None
        one.apply(meta, version, self.now_us)
        self._check_leader(one)

    def work(self) -> None:
        one = self.rng.choice(self.brokers)
        if one.up and one.jobs:
            one.jobs.pop(0)(self.now_us)
            self.happened["cut"] += 1

    def flush(self) -> None:
        one = self.rng.choice(self.brokers)
        if one.up:
            one.flush(self.now_us)

    def propose(self) -> None:
        one = self.rng.choice(self.brokers)
        leadership = one.state.leadership if one.up else None
        if leadership is None or one.asked is not None:
            return
        end = one.log.log_end_offset
        leadership.look_at_joining(end, one.meta, self.now_us)
        in_sync = leadership.in_sync
        if in_sync.asking and not in_sync.in_flight:
            proposal: Proposal | None = leadership.propose_again()
        else:
            before = in_sync.committed
            proposal = leadership.propose(end, one.state.high_watermark, one.meta, self.now_us)
            if proposal is not None:
                self._check_proposal(one, before, proposal)
        one.state.followers_moved()
        one.moved()
        if proposal is not None:
            one.asked = Alter(one.broker_id, one.lives, one.broker_epoch, proposal)
            self.network.append(one.asked)
            joins = set(proposal.members) - self.controller.in_sync - self.controller.fenced
            if joins and not self.calm and self.rng.random() < 0.1:
                # Its repetition is refused, and then the first one may come true.
                self._hold_back(one.asked)
                self.controller.fence(self.rng.choice(sorted(joins)))

    # --- faults --------------------------------------------------------------------------------
    def fence_or_not(self) -> None:
        one = self.rng.choice(self.brokers)
        if one.broker_id in self.controller.fenced:
            self._unfence(one)
        else:
            self.controller.fence(one.broker_id)

    def fence_proposed(self) -> None:
        """A member is fenced while its proposal is on its way; the leader waits no more."""
        asked = [message for message in self.network if isinstance(message, Alter)]
        if asked:
            message = self.rng.choice(asked)
            self._unanswered(message)
            self.controller.fence(self.rng.choice(message.proposal.members))

    def _unfence(self, one: ModelBroker) -> None:
        if one.up and one.broker_epoch == self.controller.epochs[one.broker_id]:
            self.controller.unfence(one.broker_id)

    def prefer(self) -> None:
        """Another leader, by request."""
        if self.rng.random() < 0.3:
            self.controller.elect()
            self.controller.publish()

    def pause(self) -> None:
        """A leader is paused while another one leads, and leads again: it has not received either.

        A fetch that was on its way to it arrives then.
        """
        controller = self.controller
        others = [b for b in controller.in_sync - {controller.leader} if b not in controller.fenced]
        if self.paused is None and controller.leader is not None and others:
            self.paused = self.brokers[controller.leader]
            self.pause_ends = self.steps_made + self.rng.randint(20, 120)
            asked = [m for m in self.network if isinstance(m, Fetch)]
            for message in [m for m in asked if m.target == controller.leader]:
                self._hold_back(message)
            controller.lead(min(others, key=lambda b: len(self.brokers[b].log.rows)))

    def _go_on(self) -> None:
        one, self.paused = self.paused, None
        assert one is not None
        number = one.broker_id
        if one.up and number in self.controller.in_sync and number not in self.controller.fenced:
            self.controller.lead(number)
            self._apply(one, len(self.controller.history) - 1)
            for message in list(self.late):
                if isinstance(message, Fetch) and message.target == number:
                    self.late.remove(message)
                    self.deliver(message)

    def die(self) -> None:
        if self.rng.random() < 0.5:
            return
        one = self.rng.choice(self.brokers)
        if not one.up:
            return
        one.up = False
        self._drop_connections(one)
        others = len([b for b in self.lossy if b != one.broker_id])
        if others < self.min_in_sync - 1 and self.rng.random() < 0.6:
            self.lossy[one.broker_id] = False
            self.happened["died with rows lost"] += 1
            kept = one.log.flushed_offset if self.rng.random() < 0.6 else 0
            one.log.recover(self.rng.randint(kept, len(one.log.rows)) if kept else 0)
        else:
            one.log.recover(len(one.log.rows))

    def _drop_connections(self, one: ModelBroker) -> None:
        for message in list(self.network):
            if isinstance(message, Fetch | Fetched):
                asked = message.asked if isinstance(message, Fetched) else message
                if asked.target == one.broker_id:
                    self._unanswered(message)

    def rise(self) -> None:
        dead = [one for one in self.brokers if not one.up]
        if dead:
            self._start(self.rng.choice(dead))

    def _start(self, one: ModelBroker) -> None:
        number = one.broker_id
        epoch = self.controller.register(number, unclean=number in self.lossy)
        if number in self.lossy:
            self.lossy[number] = True
        history = self.controller.history
        one.waiting = {}
        one.asked = None
        one.start(epoch, history[-1], len(history) - 1, self.now_us)

    # --- the end -------------------------------------------------------------------------------
    def heal(self) -> None:
        """No more faults: all copies become equal, and everything readable."""
        self.calm = True
        self.paused = None
        for _ in range(400):
            for one in self.brokers:
                if not one.up:
                    self._start(one)
                if one.broker_id in self.controller.fenced:
                    self._unfence(one)
                while one.jobs:
                    one.jobs.pop(0)(self.now_us)
                if one.version + 1 < len(self.controller.history):
                    self._apply(one, len(self.controller.history) - 1)
                one.flush(self.now_us)
            self.fetch()
            for _ in range(len(self.network)):
                self.deliver()
            self.propose()
            self.now_us += 20_000
            self.check()
            if self._is_whole():
                return
        raise Violation("the copies do not become equal")

    def _is_whole(self) -> bool:
        leader = self.controller.leader
        if leader is None or len(self.controller.in_sync) < len(self.brokers):
            return False
        rows = self.brokers[leader].log.rows
        return all(
            one.log.rows == rows and one.state.high_watermark == len(rows) for one in self.brokers
        )

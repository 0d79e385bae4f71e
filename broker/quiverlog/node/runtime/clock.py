"""The wall clock that retention believes, within a life of the broker and across restarts.

Deleted rows do not come back when a clock is set right, so one that jumps ahead by over a minute is
believed only after an hour of the monotonic clock, in which it stays there. Across restarts a note
in the data directory holds the believed time and how much of the hour is over. Timestamps of rows
prove nothing: the same clocks made them.
"""

from __future__ import annotations

from typing import Final

from quiverlog.node.runtime.jobs import Jobs, Urgency
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.storage.directory.data_directory import ClockNote, DataDirectory
from quiverlog.types import Now

__all__ = ["CLOCK_JUMP_US", "BelievedClock", "Clock", "NoteClockJob"]

CLOCK_JUMP_US: Final = 60_000_000
"""The most that the wall clock may gain on the monotonic clock between two reads."""
_JUMP_US: Final = CLOCK_JUMP_US
_START_AHEAD_US: Final = 3_600_000_000
"""The most that the wall clock may be ahead of the note at a start: a restart takes its time."""
_BELIEVE_AFTER_US: Final = 3_600_000_000
_NOTE_US: Final = 600_000_000
"""How often the note is written: well below what a start may be ahead of it."""
_NOTE_DOUBT_US: Final = 60_000_000
"""The same while a clock is doubted: a killed broker loses no more of its hour."""
_CONFIRMED_US_MIN: Final = 30 * 365 * 86_400_000_000
"""A note from before 2000 confirms nothing: the broker began without one."""


class BelievedClock:
    """The wall clock, as far as the monotonic clock confirms it."""

    __slots__ = ("_ahead_us", "_believed", "_suspect_since_us", "jumps")

    def __init__(self) -> None:
        self._believed: Now | None = None
        self._suspect_since_us: int | None = None
        self._ahead_us = 0
        """Ahead of the expected time at the last read."""
        self.jumps = 0

    def begin(self, now: Now, note: ClockNote) -> int:
        """Go on from the note of an earlier life; returns how much of the hour is left."""
        assert self._believed is None
        self._believed = Now(now.mono_us, note.believed_us)
        self._ahead_us = now.wall_us - note.believed_us
        since_us = now.wall_us - note.doubted_us
        # As far ahead as it was then, plus the restart: the clock has stayed there.
        stayed = note.doubted_us > 0 and -_JUMP_US <= since_us <= _START_AHEAD_US
        stayed_us = note.stayed_us if stayed else 0
        self._suspect_since_us = now.mono_us - min(stayed_us, _BELIEVE_AFTER_US)
        return max(0, _BELIEVE_AFTER_US - stayed_us)

    def note(self, now: Now) -> ClockNote:
        believed_us = self.read(now).wall_us
        assert believed_us <= now.wall_us, "a note is never ahead of the wall clock"
        if self._suspect_since_us is None:
            return ClockNote(believed_us)
        return ClockNote(believed_us, now.wall_us, now.mono_us - self._suspect_since_us)

    @property
    def suspects(self) -> bool:
        return self._suspect_since_us is not None

    def read(self, now: Now) -> Now:
        believed = self._believed
        wall_us = now.wall_us
        if believed is not None:
            assert now.mono_us >= believed.mono_us, "the monotonic clock only grows"
            expected_us = believed.wall_us + now.mono_us - believed.mono_us
            before_us, self._ahead_us = self._ahead_us, wall_us - expected_us
            # A clock that goes back is believed: it only keeps rows longer.
            if wall_us <= expected_us + _JUMP_US:
                self._suspect_since_us = None
            # A further jump begins the hour anew; time goes on from what was believed.
            elif self._suspect_since_us is None or self._ahead_us > before_us + _JUMP_US:
                self._suspect_since_us = now.mono_us
                self.jumps += 1
                assert wall_us > expected_us
                wall_us = expected_us
            elif now.mono_us - self._suspect_since_us >= _BELIEVE_AFTER_US:
                self._suspect_since_us = None
            else:
                wall_us = expected_us
        assert wall_us <= now.wall_us, "what is believed is never ahead of the wall clock"
        self._believed = Now(now.mono_us, wall_us)
        return self._believed


class NoteClockJob:
    __slots__ = ("_directory", "_note", "key", "kind")

    def __init__(self, directory: DataDirectory, note: ClockNote) -> None:
        self.key = directory.clock_path
        self.kind = "note clock"
        self._directory = directory
        self._note = note

    def run(self) -> None:
        """Raises DiskFull or StorageFault: the last note stays, and the next start may wait."""
        self._directory.note_clock(self._note)


class Clock:
    """`due_us`: when (monotonic) `note` is wanted."""

    __slots__ = ("_believed", "_directory", "_found", "_jobs", "_noting", "_outbox", "due_us")

    _directory: DataDirectory

    def __init__(self, jobs: Jobs, outbox: Outbox) -> None:
        self._jobs = jobs
        self._outbox = outbox
        self._believed = BelievedClock()
        self._found: ClockNote | None = None
        self._noting = False
        self.due_us = 0

    def load(self, directory: DataDirectory) -> None:
        """Read the note of an earlier life, off the loop."""
        self._directory = directory
        self._found = directory.noted_clock()

    def start(self, now: Now, newest_row_us: int | None) -> None:
        """`newest_row_us`: the time of the newest row; None: there is no row."""
        note = self._found
        if note is None and newest_row_us is not None:
            note = ClockNote(0)  # The note was lost. Before 1970 no row is too old.
        if note is not None and now.wall_us > note.believed_us + _START_AHEAD_US:
            # A long stop looks the same; then retention deletes an hour later, which does no harm.
            wait_us = self._believed.begin(now, note)
            assert 0 <= wait_us <= _BELIEVE_AFTER_US
            if note.believed_us >= _CONFIRMED_US_MIN:
                what = "the wall clock is far ahead of its last note"
                fields = {"ahead_ms": (now.wall_us - note.believed_us) // 1000}
            else:
                what = "no note confirms the wall clock"
                newest_us = now.wall_us if newest_row_us is None else newest_row_us
                fields = {"newest_row_ms_ago": (now.wall_us - newest_us) // 1000}
            event = f"{what}: retention by time waits an hour"
            self._outbox.log("warning", event, **fields, left_ms=wait_us // 1000)
        self.note(now)

    def read(self, now: Now) -> Now:
        """Return the believed time; log each jump once."""
        suspected = self._believed.suspects
        believed = self._believed.read(now)
        assert believed.mono_us == now.mono_us, "of this very moment"
        if self._believed.suspects and not suspected:
            self._outbox.log(
                "warning",
                "the wall clock jumped ahead: retention goes by the monotonic clock",
                ahead_ms=(now.wall_us - believed.wall_us) // 1000,
            )
            assert believed.wall_us < now.wall_us
        elif suspected and not self._believed.suspects:
            self.due_us = now.mono_us  # Note at once: a start from now on has nothing to wait for.
        return believed

    @property
    def jumps(self) -> int:
        return self._believed.jumps

    def note(self, now: Now) -> None:
        """Write what is believed now; again in ten minutes, or sooner."""
        note = self._believed.note(now)
        self.due_us = now.mono_us + (_NOTE_DOUBT_US if self._believed.suspects else _NOTE_US)
        assert self.due_us > now.mono_us
        if not self._noting:
            self._noting = True
            job = NoteClockJob(self._directory, note)
            self._jobs.start(job, self._noted, Urgency.BACKGROUND)

    def last_note(self, now: Now) -> ClockNote:
        self.read(now)
        return self._believed.note(now)

    def _noted(self, _result: object, error: BaseException | None, _now: Now) -> None:
        assert self._noting, "one note at a time"
        self._noting = False
        if error is not None:
            self._outbox.log("warning", "clock not noted", why=str(error))

"""Any interleaving of clients, faults, stalls and truncations, against the history itself."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from typing_extensions import override

from shardline.datasource.clock import SystemIds
from shardline.datasource.errors import Indeterminate
from shardline.datasource.stores.entry import decode_entry, entry_seqno
from shardline.datasource.stores.faulty import Fault, Faulty
from shardline.datasource.stores.location import Committed, VersionedData
from shardline.datasource.stores.log import NumberedLog
from shardline.datasource.stores.memory import MemoryObjects, drop_store
from shardline.datasource.stores.retry import Retrying
from support.fakes.clock import ManualClock, SeededIds
from support.profiles import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.stores.objects import CreateOutcome

_GRACE_MS = 10_000.0
_CLIENTS = 3

_client = st.integers(0, _CLIENTS - 1)
_pause = st.sampled_from(
    [0.0, 100.0, _GRACE_MS / 2 - 1, _GRACE_MS / 2 + 1, _GRACE_MS, 3 * _GRACE_MS]
)
_fault = st.sampled_from(
    [
        Fault.BEFORE,
        Fault.AFTER,
        Fault.LATE,
        Fault.SELF_RETRY,
        Fault.PHANTOM,
        Fault.REFUSED,
        Fault.DAMAGED,
        Fault.UNREADABLE,
    ]
)
# What happens while a client is stuck inside one create: who appends how often, who truncates,
# and how long it takes.
_meanwhile = st.lists(
    st.one_of(
        st.tuples(st.just("append"), _client, st.integers(1, 4)),
        st.tuples(st.just("truncate"), _client, st.integers(0, 3)),
        st.tuples(st.just("advance"), _pause),
        st.tuples(st.just("deliver"), _client),
    ),
    max_size=8,
)


class _Store(Faulty):
    """A faulty store that can also let things happen in the middle of a create."""

    meanwhile: Callable[[], None] | None = None

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        if "/log/" in key and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().create(key, value)


class LogModel(RuleBasedStateMachine):
    """The truth is what was ever stored at or above the floor of its time; it must never change."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.ids = ManualClock(), SeededIds()
        self.name = f"model-{SystemIds().token().hex()}"
        self.raw = MemoryObjects(self.name, self.clock)
        self.history: dict[int, bytes] = {}
        self.refused: set[bytes] = set()
        self.written = 0
        self.busy: set[int] = set()
        self.stores = [_Store(self.raw, clock=self.clock, ids=self.ids) for _ in range(_CLIENTS)]
        self.logs = [
            NumberedLog(
                Retrying(store, clock=self.clock, ids=self.ids),
                clock=self.clock,
                ids=self.ids,
                grace_ms=_GRACE_MS,
                deadline_ms=500,
            )
            for store in self.stores
        ]

    @override
    def teardown(self) -> None:
        drop_store(self.name)

    def observe(self) -> None:
        """Extend the history by what is in the store; a record that changed is the end."""
        floors = [
            int.from_bytes(self.payload(entry.key))
            for entry in self.raw.entries("s/floor/", limit=1)
        ]
        for entry in self.raw.entries("s/log/"):
            seqno = entry_seqno(entry.key)
            if seqno >= max(floors, default=1):
                record = self.payload(entry.key)
                assert self.history.setdefault(seqno, record) == record, f"{seqno} changed"

    def payload(self, key: str) -> bytes:
        return decode_entry("memory", key, self.raw.get(key) or b"")[1]

    @property
    def head(self) -> VersionedData | None:
        newest = max(self.history, default=None)
        return None if newest is None else VersionedData(newest, self.history[newest])

    @initialize(count=st.integers(0, 3))
    def begin(self, count: int) -> None:
        for _ in range(count):
            self.append(0, look=True)

    @rule(client=_client, look=st.booleans())
    def append(self, client: int, *, look: bool) -> None:
        log = self.logs[client]
        head = log.head("s") if look else log._observations("s").head
        self.written += 1
        data = b"%d" % self.written
        expected = None if head is None else head.seqno
        try:
            outcome = log.compare_and_set("s", expected, data)
        except Indeterminate:
            self.observe()
            return
        self.observe()
        if isinstance(outcome, Committed):
            assert outcome.seqno == (expected or 0) + 1
            assert self.history.get(outcome.seqno) == data, f"{outcome} is not in the log"
            return
        self.refused.add(data)
        if outcome.current is not None:
            assert self.history[outcome.current.seqno] == outcome.current.data

    @rule(client=_client, look=st.booleans(), steps=_meanwhile)
    def append_while_stalled(
        self, client: int, look: bool, steps: list[tuple[str, int, int]]
    ) -> None:
        self.busy.add(client)
        self.stores[client].meanwhile = partial(self.happen, steps)
        self.append(client, look=look)
        self.stores[client].meanwhile = None
        self.busy.discard(client)

    def happen(self, steps: list[tuple[str, int, int]]) -> None:
        self.observe()
        for step in steps:
            if step[0] == "advance":
                self.clock.advance(step[1])
            elif step[1] not in self.busy:
                if step[0] == "append":
                    for _ in range(step[2]):
                        self.append(step[1], look=True)
                elif step[0] == "truncate":
                    self.truncate(step[1], step[2])
                else:
                    self.deliver(step[1])

    @rule(client=_client, behind=st.integers(0, 3))
    def truncate(self, client: int, behind: int) -> None:
        newest = max(self.history, default=0)
        with suppress(Indeterminate):  # whether its floor is published; the next one finds out
            self.logs[client].truncate("s", newest - behind)
        self.observe()

    @rule(client=_client, fault=_fault)
    def break_next_create(self, client: int, fault: Fault) -> None:
        self.stores[client].fail("create", fault)

    @rule(client=_client)
    def deliver(self, client: int) -> None:
        self.stores[client].deliver()
        self.observe()

    @rule(pause=_pause)
    def advance(self, pause: float) -> None:
        self.clock.advance(pause)

    @rule(client=_client)
    def read_head(self, client: int) -> None:
        assert self.logs[client].head("s") == self.head

    @rule(client=_client, first=st.integers(1, 12), limit=st.integers(1, 20))
    def scan(self, client: int, first: int, limit: int) -> None:
        records = self.logs[client].scan("s", first, limit)
        newest = max(self.history, default=0)
        assert [self.history.get(record.seqno) for record in records] == [r.data for r in records]
        if records:
            start = records[0].seqno
            assert start >= first
            assert [r.seqno for r in records] == list(range(start, min(start + limit, newest + 1)))
        else:
            assert first > newest

    @invariant()
    def history_is_sound(self) -> None:
        self.observe()
        assert sorted(self.history) == list(range(1, len(self.history) + 1)), "a gap"
        assert len(set(self.history.values())) == len(self.history), "a record twice"
        assert not self.refused & set(self.history.values()), "a refused record took effect"


LogModel.TestCase.settings = examples(1.5, stateful_step_count=30)
TestLogModel = LogModel.TestCase
TestLogModel.__doc__ = "No schedule loses, doubles, changes or invents a record."

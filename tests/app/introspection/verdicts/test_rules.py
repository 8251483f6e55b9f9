"""Rules: each situation has the verdict that a person would give it, and the right one to blame."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardline.app.introspection.verdicts.rules import headline, judge, summarize
from shardline.app.introspection.verdicts.situation import (
    Backlog,
    Judgement,
    Situation,
)
from shardline.app.protocol.object_state import VERDICTS, Verdict

SOURCE = Situation("flights", "source", lag_ms=400)
VIEW = Situation("delays", "view", inputs=("flights",), lag_ms=800, behind_ms=400)
SINK = Situation("out", "sink", inputs=("delays",), lag_ms=9_000, behind_ms=8_200, fresh_ms=15_000)
WORSE = Situation("late", "view", inputs=("delays",), lag_ms=60_000, behind_ms=59_000)


def judged(one: Situation, *others: Situation) -> Judgement:
    """The judgement of one object among others."""
    return judge({each.name: each for each in (*others, one)})[one.name]


@pytest.mark.parametrize(
    ("one", "verdict", "because", "to_do"),
    [
        (SOURCE, "healthy", "", ""),
        (replace(SOURCE, lag_ms=5_000), "healthy", "", ""),
        (SINK, "healthy", "", ""),
        (
            replace(SINK, written_elsewhere=True, hydrated=False, written=False),
            "idle",
            "not this one",
            "",
        ),
        (replace(SOURCE, quiet_ms=299_999), "healthy", "", ""),
        (replace(SOURCE, quiet_ms=300_000), "idle", "nothing has come in for 5 min", ""),
        (replace(SOURCE, finished=True, lag_ms=0), "finished", "complete for ever", ""),
        (
            replace(SOURCE, phase="suspended", status="stalled", error="disk full", hint="mend"),
            "stalled",
            "disk full",
            "mend",
        ),
        (
            replace(
                SOURCE,
                phase="suspended",
                status="stalled",
                error="disk full.",
                failures=3,
                retry_in_ms=12_000,
            ),
            "stalled",
            "disk full. It has failed 3 times in a row, and it starts again in 12 s",
            "",
        ),
        (
            replace(VIEW, phase="suspended", status="frozen", error="part p is not there"),
            "frozen",
            "part p is not there",
            "",
        ),
        (
            replace(SOURCE, status="stalled", error="the folder is not there", hint="put it back"),
            "stalled",
            "the folder is not there",
            "put it back",
        ),
        (
            replace(SOURCE, errors=1, status="stalled", error="1 row cannot be decoded"),
            "unreadable",
            "its contents have 1 error: 1 row cannot be decoded",
            "",
        ),
        (
            replace(SOURCE, lost="part 'p' has gone", finished=True, quiet_ms=300_000),
            "unreadable",
            "part 'p' has gone",
            "put them back from a backup: `fsck` names all of them; nothing was skipped",
        ),
        (
            replace(SOURCE, errors=2, finished=True),
            "unreadable",
            "its contents have 2 errors",
            "`errors flights` shows them",
        ),
        (
            replace(VIEW, errors=1, phase="created", created=True),
            "unreadable",
            "its contents have 1 error",
            f"query `{VIEW.name}_errors`, which has them",
        ),
        (
            replace(SOURCE, status="paused", phase="paused"),
            "paused",
            "stopped on request",
            "`resume flights` goes on with it",
        ),
        # Reads of it fail, and that somebody has stopped it does not make that better.
        (
            replace(SOURCE, status="paused", phase="paused", errors=3),
            "unreadable",
            "its contents have 3 errors; it was stopped on request",
            "`errors flights` shows them; `resume flights` goes on with it",
        ),
        (
            replace(
                SOURCE, status="paused", phase="paused", errors=1, error="a bad row.", hint="mend"
            ),
            "unreadable",
            "its contents have 1 error: a bad row; it was stopped on request",
            "mend; `resume flights` goes on with it",
        ),
        # An incarnation ends, after a failure or for another one: nobody has asked for that.
        (replace(VIEW, status="paused", phase="stopping"), "starting", "last run is being", ""),
        (replace(VIEW, status="paused", phase="stopped"), "starting", "last run was stopped", ""),
        (replace(SOURCE, created=False, phase="created"), "starting", "it is being created", ""),
        (replace(SOURCE, phase="starting"), "starting", "query is being started", ""),
        (
            replace(VIEW, phase="waiting", ahead=("a", "b"), written=False),
            "starting",
            "its turn to compute its contents has not come: `a` and `b` first",
            "",
        ),
        (replace(SOURCE, written=False, lag_ms=None), "starting", "first rows are being read", ""),
        (replace(VIEW, hydrated=False), "starting", "its contents are being computed", ""),
        (
            replace(SOURCE, backlog=Backlog(files=230, size_bytes=4 << 30)),
            "catching up",
            "230 files (4.0 GiB) wait outside",
            "",
        ),
        (
            replace(SOURCE, backlog=Backlog(offsets=1, direction="shrinking", remaining_ms=90_000)),
            "catching up",
            "1 message waits outside",
            "",
        ),
        (
            replace(SOURCE, backlog=Backlog(files=3, direction="steady")),
            "falling behind",
            "3 files wait outside, and they do not get fewer",
            "let a micro-batch take more",
        ),
        (replace(SOURCE, backlog=Backlog(files=0, offsets=0)), "healthy", "", ""),
        (
            replace(VIEW, lag_ms=40_000, behind_ms=39_000, lag_direction="shrinking"),
            "catching up",
            "40 s behind the clock",
            "",
        ),
        (
            replace(VIEW, lag_ms=40_000, behind_ms=39_000, step_ms=3_100, slowest_phase="addBatch"),
            "falling behind",
            "40 s behind the clock: its last micro-batch took 3 s, most of it for computing",
            "EXPLAIN VIEW",
        ),
        (
            replace(VIEW, created=False, error="[X] no such column", hint="correct it"),
            "stalled",
            "it cannot be created: [X] no such column",
            "correct it",
        ),
    ],
)
def test_a_situation_has_a_verdict(
    one: Situation, verdict: Verdict, because: str, to_do: str
) -> None:
    """Each by itself: nothing that it reads is known to be ill."""
    found = judged(one)
    assert found.verdict == verdict
    assert (because in found.because) if because else (found.because == "")
    assert (to_do in found.to_do) if to_do else (found.to_do == "" or verdict == "falling behind")
    assert found.blame == ""
    assert found.tone == VERDICTS[verdict]


STALLED = replace(SOURCE, phase="suspended", status="stalled", error="disk full", failures=4)
ERRING = replace(SOURCE, errors=1, status="stalled", error="1 row cannot be decoded")
CATCHING = replace(SOURCE, backlog=Backlog(files=230, direction="shrinking", remaining_ms=90_000))


@pytest.mark.parametrize(
    ("one", "others", "verdict", "because", "blame"),
    [
        # Fresh, as far as its clock goes, and yet without what the source has not brought.
        (VIEW, [CATCHING], "waiting", "`flights` is catching up, about 1 min 30 s more", "flights"),
        (replace(VIEW, lag_ms=90_000), [STALLED], "waiting", "is stalled: disk full", "flights"),
        # Late by itself: the input is not to blame for 39 of the 40 seconds.
        (
            replace(VIEW, lag_ms=40_000, behind_ms=39_000),
            [replace(SOURCE, lag_ms=6_000)],
            "falling behind",
            "40 s behind",
            "",
        ),
        # At the root of it, not in the middle.
        (SINK, [STALLED, VIEW], "waiting", "`flights` is stalled: disk full", "flights"),
        (VIEW, [ERRING], "unreadable", "`flights` has errors: its contents have 1", "flights"),
        (SINK, [ERRING, VIEW], "unreadable", "`flights` has errors", "flights"),
        (
            replace(VIEW, status="paused", phase="paused"),
            [ERRING],
            "unreadable",
            "1 error: 1 row cannot be decoded; it was stopped on request",
            "flights",
        ),
        (
            replace(VIEW, created=False),
            [replace(STALLED, written=False)],
            "waiting",
            "`flights` is stalled",
            "flights",
        ),
        (replace(VIEW, created=False), [SOURCE], "waiting", "`flights` has not begun yet", ""),
        (replace(VIEW, created=False), [], "waiting", "`flights` has not begun yet", ""),
        (
            VIEW,
            [replace(SOURCE, status="paused", phase="paused")],
            "waiting",
            "`flights` is paused",
            "flights",
        ),
        (VIEW, [replace(SOURCE, finished=True)], "healthy", "", ""),
        (VIEW, [replace(SOURCE, quiet_ms=10**9)], "healthy", "", ""),
    ],
)
def test_who_is_to_blame(
    one: Situation, others: list[Situation], verdict: Verdict, because: str, blame: str
) -> None:
    """An object that is ill because of what it reads says so, and names the root."""
    found = judged(one, *others)
    assert (found.verdict, found.blame) == (verdict, blame)
    assert (because in found.because) if because else (found.because == "")


def test_errors_of_all_below_count_once() -> None:
    """A diamond over one source with errors has its errors once, and names it once."""
    left, right = replace(VIEW, name="left"), replace(VIEW, name="right", errors=2)
    top = Situation("top", "view", inputs=("left", "right"))
    found = judged(top, ERRING, left, right)
    assert (found.errors, found.unreadable) == (3, ("flights", "right"))
    assert judged(left, ERRING).errors == 1
    assert judged(SOURCE, ERRING.__class__("other", "source", errors=1)).errors == 0


def test_what_stays_so_until_somebody_acts_is_known() -> None:
    """The first failure may pass with the restart; the third does not, and neither does a hole."""
    first = replace(STALLED, failures=1)
    assert not judged(first).lasts
    assert not judged(replace(first, phase="starting")).lasts
    assert judged(STALLED).lasts
    assert judged(replace(STALLED, phase="starting")).lasts
    assert judged(replace(SOURCE, status="stalled")).lasts
    assert judged(VIEW, STALLED).lasts
    assert judged(replace(VIEW, status="frozen")).lasts
    assert not judged(replace(VIEW, lag_ms=40_000, behind_ms=40_000)).lasts
    assert not judged(VIEW, CATCHING).lasts
    # Unreadable, and paused: a time that it has not reached is not worth waiting for.
    assert not judged(VIEW, ERRING).lasts
    assert judged(replace(VIEW, status="paused", phase="paused"), ERRING).lasts
    assert judged(replace(ERRING, phase="paused")).lasts
    assert judged(VIEW, replace(ERRING, phase="paused")).lasts


@pytest.mark.parametrize("reverse", [False, True], ids=["inputs first", "inputs last"])
def test_the_order_of_objects_does_not_matter(reverse: bool) -> None:
    """Each is judged after what it reads, however they come; even a circle has verdicts."""
    every = [STALLED, VIEW, SINK, WORSE]
    found = judge({each.name: each for each in (reversed(every) if reverse else every)})
    assert {name: one.verdict for name, one in found.items()} == {
        "flights": "stalled",
        "delays": "waiting",
        "out": "waiting",
        "late": "falling behind",
    }
    circle = judge({n: replace(VIEW, name=n, inputs=(m,)) for n, m in (("a", "b"), ("b", "a"))})
    assert len(circle) == 2


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ([], "There are no objects."),
        ([SOURCE], "The one object is fresh."),
        ([SOURCE, VIEW, SINK], "All 3 objects are fresh."),
        (
            [SOURCE, VIEW, replace(WORSE, step_ms=3_100)],
            (
                "2 of 3 objects are fresh. `late` is falling behind: 1 min behind the clock: its "
                "last micro-batch took 3 s."
            ),
        ),
        (
            [STALLED, VIEW, SINK],
            (
                "0 of 3 objects are fresh. `flights` is stalled: disk full. It has failed 4 times "
                "in a row. Because of it `delays` and `out` are not fresh."
            ),
        ),
    ],
)
def test_the_whole_is_one_sentence(objects: list[Situation], words: str) -> None:
    """How many are fresh; then the worst, and who waits for it."""
    found = summarize(judge({each.name: each for each in objects}))
    assert found.words == words
    assert found.objects == len(objects)


def test_a_summary_names_the_worst_two() -> None:
    """However many there are."""
    ill = [replace(STALLED, name=f"s{number}") for number in range(4)]
    found = summarize(judge({each.name: each for each in ill}))
    assert found.words.count("is stalled") == 2
    assert found.words.endswith("2 more need a look.")
    assert (found.fresh, found.bad) == (0, 4)


def test_an_estimate_is_part_of_the_headline() -> None:
    """Only where there is one."""
    assert headline(judged(CATCHING)) == "catching up, about 1 min 30 s more"
    assert headline(judged(SOURCE)) == "healthy"

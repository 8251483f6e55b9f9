"""A person has shards merged, collected and swept, and holds expired, by a running application."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from shardline.app.compute.holds import hold_place, start_hold_name
from shardline.app.coordinator.application import Application
from shardline.app.coordinator.shard_actions import ActionResult
from shardline.app.project.permission import Permissions
from shardline.app.protocol.objects import ViewDescription
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage, ShardError
from shardline.datasource.settings import ShardSettings
from shardline.datasource.types.schema import ShardSchema
from support.fakes.sites import SCHEMA, Site, index, project, source

VIEW = ViewDescription(name="v", query="SELECT * FROM t", inputs=("t",), schema="k BIGINT")


def act(application: Application, name: str, target: str, *, commit: bool) -> ActionResult:
    """One action, by the name that it has over HTTP."""
    found: Callable[..., ActionResult] = getattr(application.shard_actions, name)
    return found(target, commit=commit)


def fill(site: Site) -> None:
    """Give `t` batches that are to be merged, by a writer that leaves merging to others."""
    settings = ShardSettings(compact_inline_bytes=0, inline_part_bytes=0)
    writer = ShardClient.open(site.place.url, settings=settings).writer("t")
    for number in range(20):
        writer.append_now(pa.table({"k": [number], "s": ["x"]}, schema=SCHEMA))


def test_an_action_says_what_it_would_do_and_then_does_it(site: Site) -> None:
    """Without `commit` the shard stays as it is; with it the plan is carried out."""
    fill(site)
    client = site.client()
    with site.application() as application:
        before = client.state("t")
        planned = act(application, "compact", "t", commit=False)
        assert not planned.done
        batches = len(before.trace.batches)
        assert f"1 merge is due, of {batches} batches; it reads" in planned.says[0]
        assert client.state("t").seqno == before.seqno
        done = act(application, "compact", "t", commit=True)
        left = len(client.state("t").trace.batches)
        assert left < batches
        assert done.done
        assert done.says[0].startswith("Done: ")
        assert done.says[0].endswith(f"; {left} {'batch' if left == 1 else 'batches'} now.")
        again = act(application, "compact", "t", commit=False)
        assert again.says[0].startswith("No merge is due: the shard has ")
        blobs = client.usage("t").garbage.count
        assert blobs > 0
        said = act(application, "collect", "t", commit=False).says[0]
        assert said.startswith(f"{blobs} objects of ")
        assert client.usage("t").garbage.count == blobs
        act(application, "collect", "t", commit=True)
        assert client.usage("t").garbage.count < blobs
        assert act(application, "sweep", "t", commit=False).says == (
            "There is nothing that nothing refers to.",
        )


def test_merges_that_are_for_spark_are_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request must not make the application read a table for an hour."""
    fill(site)
    monkeypatch.setattr("shardline.app.coordinator.shard_actions._MERGES_MAX", 10)
    with site.application() as application:
        before = site.client().state("t")
        planned = act(application, "compact", "t", commit=False)
        assert "the command `compact`" in planned.says[-1]
        act(application, "compact", "t", commit=True)
        assert site.client().state("t").trace == before.trace


def test_merges_are_left_by_their_work_and_not_by_their_bytes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many parts or well compressed rows take longer than their size says; the deed says so too."""
    fill(site)
    parts = [part for batch in site.client().state("t").trace.batches for part in batch.parts]
    most = 2 * sum(part.size_bytes for part in parts)
    assert most < 16 * 4096, "what opening so many parts counts"
    monkeypatch.setattr("shardline.app.coordinator.shard_actions._MERGES_MAX", most)
    with site.application() as application:
        planned = act(application, "compact", "t", commit=False)
        assert "the command `compact`" in planned.says[-1]
        done = act(application, "compact", "t", commit=True)
        assert done.says == ("Done: 0 merges; 21 batches now; 1 merge is still due.",)


def test_a_hold_of_somebody_else_is_given_up(site: Site) -> None:
    """It says whose it is, what that breaks and what becomes free; slashes are part of names."""
    client = site.client()
    client.hold("t", "reports/monthly", purpose="the monthly report")
    with site.application() as application:
        planned = act(application, "expire_hold", "t/reports/monthly", commit=False)
        assert planned.says[0].startswith(
            "The hold 'reports/monthly' of the monthly report is given up; it was heard of "
        )
        assert "[HOLD_EXPIRED]" in planned.says[1]
        assert site.holds() == ["reports/monthly"]
        done = act(application, "expire_hold", "t/reports/monthly", commit=True)
        assert done == ActionResult(("Done: expired 1: reports/monthly.",), done=True)
        assert site.holds() == []
        with pytest.raises(InvalidUsage, match=r"HOLD_NOT_FOUND.*holds there: none"):
            act(application, "expire_hold", "t/reports/monthly", commit=True)


def test_holds_that_objects_need_are_refused(site: Site, tmp_path: Path) -> None:
    """Before and after the beginning of a view, and those of a sink; until it is paused."""
    client = site.client()
    place = hold_place(tmp_path / "checkpoints" / client.location.id)
    own, other = f"view:v:9:{place}", "view:v:9:deadbeef"
    with site.application() as application:
        application.apply(project(source(), index(), VIEW))
        site.wait("the view is in the order", lambda: "v" in application.running())
        for hold in (own, other, "view:gone:9:deadbeef"):
            client.hold("t", hold)
        if start_hold_name("v") not in site.holds():
            client.hold("t", start_hold_name("v"))
        for hold in (own, f"{own}:begin", start_hold_name("v")):
            if hold not in site.holds():
                client.hold("t", hold)
            for commit in (False, True):
                with pytest.raises(InvalidUsage, match=r"HOLD_IN_USE.*'v'.*pause 'v' first"):
                    act(application, "expire_hold", f"t/{hold}", commit=commit)
            assert hold in site.holds()
        said = act(application, "expire_hold", f"t/{other}", commit=False).says[-1]
        assert said.startswith("Another runtime has taken it for its `v`")
        gone = act(application, "expire_hold", "t/view:gone:9:deadbeef", commit=True)
        assert gone.done
        application.control.pause("v")
        site.wait("it is paused", lambda: "v" in application.runtime.lane.state.paused)
        said = act(application, "expire_hold", f"t/{own}", commit=False).says[-1]
        assert said.startswith("It belongs to `v`, which is paused")
        assert act(application, "expire_hold", f"t/{own}", commit=True).done
        assert own not in site.holds()


def test_a_hold_of_a_source_is_told_from_that_of_another_location(site: Site) -> None:
    """Both may have a source of that name that reads this shard."""
    client = site.client()
    here, elsewhere = f"source:t:{client.location.id}", f"source:t:l{32 * '0'}"
    with site.application() as application:
        application.apply(project(source()))
        site.wait("it is in the order", lambda: "t" in application.running())
        for hold in (here, elsewhere):
            client.hold("t", hold)
        with pytest.raises(InvalidUsage, match="HOLD_IN_USE"):
            act(application, "expire_hold", f"t/{here}", commit=True)
        said = act(application, "expire_hold", f"t/{elsewhere}", commit=False).says
        assert said[-1] == "Source `t` of another location has taken it."
        assert act(application, "expire_hold", f"t/{elsewhere}", commit=True).done
        assert site.holds() == [here]


def test_a_lease_is_left_to_end_by_itself(site: Site) -> None:
    """It cannot be told whose query it is, and it ends once nobody renews it."""
    client = site.client()
    with site.application() as application, client.reader("t", purpose="a report"):
        [lease] = client.state("t").leased
        with pytest.raises(InvalidUsage, match=r"LEASE_ENDS_ITSELF.*a report"):
            act(application, "expire_hold", f"t/{lease}", commit=True)
        assert lease in client.state("t").leased


@pytest.mark.parametrize("target", ["", "t", "/", "t/", "nothing/x", "../x", "t/view:v:1:0a"])
def test_a_target_that_is_not_there_is_refused(site: Site, target: str) -> None:
    """By a dry run as well."""
    with site.application() as application:
        with pytest.raises(InvalidUsage, match="HOLD_NOT_FOUND"):
            act(application, "expire_hold", target, commit=False)
        for name in ("compact", "collect", "sweep"):
            if target != "t":
                with pytest.raises(InvalidUsage):
                    act(application, name, target, commit=False)


def test_a_hold_of_two_names_is_not_guessed(site: Site) -> None:
    """`t/a/b` is a hold of `t`, and one of `t/a`."""
    client = site.client()
    client.create("t/a", ShardSchema.from_arrow(SCHEMA))
    client.hold("t", "a/b")
    client.hold("t/a", "b")
    with (
        site.application() as application,
        pytest.raises(InvalidUsage, match=r"HOLD_NOT_FOUND.*several shards: t, t/a.*both names"),
    ):
        act(application, "expire_hold", "t/a/b", commit=True)
    assert site.holds() == ["a/b"]


@pytest.mark.parametrize("kind", [Indeterminate, Determinate])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_unknown_outcome_is_told_as_unknown(
    site: Site, monkeypatch: pytest.MonkeyPatch, kind: type[ShardError], when: str
) -> None:
    """Not as a failure: the store has lost the answer, or had answered other requests before."""
    collect = ShardClient.collect_garbage

    def lose(client: ShardClient, name: str) -> int:
        if when == "after":
            collect(client, name)
        raise kind("the store did not answer", code="STORE_SILENT")

    with site.application() as application:
        monkeypatch.setattr(ShardClient, "collect_garbage", lose)
        with pytest.raises(Indeterminate, match=r"STORE_SILENT.*not known whether gc of 't'"):
            act(application, "collect", "t", commit=True)
        act(application, "collect", "t", commit=False)


@pytest.mark.slow
def test_a_follower_says_what_it_would_do_and_leaves_it(site: Site) -> None:
    """The shards are looked after by the runtime that holds the location."""
    fill(site)
    with site.application() as first, site.application(read_only=True) as second:
        # The shard had no retention, as nobody reads it, and gets the project's.
        first.apply(project(source()), Permissions(shorten=True))
        assert act(second, "compact", "t", commit=False).says
        with pytest.raises(InvalidUsage, match="READ_ONLY_RUNTIME"):
            act(second, "compact", "t", commit=True)

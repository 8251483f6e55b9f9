"""The served world is what tests of the page take it for: each verdict occurs, and it changes."""

from __future__ import annotations

import json
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from shardline.app.protocol.object_state import VERDICTS
from support.page.world import SITUATIONS, ServedWorld
from support.waiting import wait_until

pytestmark = pytest.mark.server

WAIT_S = 30.0


@pytest.mark.night
def test_every_verdict_occurs_in_some_situation() -> None:
    """And no event of a world is one that the sink refuses."""
    found: set[str] = set()
    for name in SITUATIONS.keys() - {"large", "large well", "demo", "healthy"}:
        with ServedWorld(name) as world:
            found |= {str(row["verdict"]) for row in world.rows("verdicts")}
            (listener,) = world.rows("listener")
            assert (listener["failed"], listener["stale"], listener["dropped"]) == (0, 0, 0), name
    assert found == set(VERDICTS)


def test_a_world_freezes_thaws_fails_and_recovers_while_it_is_served() -> None:
    """Those that wait for the object follow by themselves."""
    with ServedWorld("demo") as world:
        for mode, verdict in (("frozen", "frozen"), ("stalled", "stalled")):
            world.become("flights", mode)  # type: ignore[arg-type]  # one of its words
            wait_until(mode, lambda v=verdict: world.verdict("flights") == v, WAIT_S)  # type: ignore[misc]
            wait_until("others wait", lambda: world.verdict("very_late") == "waiting", WAIT_S)
            world.become("flights", "well")
            wait_until("it is well", lambda: world.verdict("very_late") == "healthy", WAIT_S)


def test_a_server_is_gone_and_is_back_on_its_port() -> None:
    """As an application that was killed and started again."""
    with ServedWorld("one") as world:
        answered = json.load(urlopen(f"{world.url}/api/v1/objects"))  # noqa: S310 - loopback
        assert [row["id"] for row in answered["objects"]] == ["flights"]
        world.stop_server()
        with pytest.raises(URLError):
            urlopen(world.url)  # noqa: S310 - loopback
        world.start_server()
        assert urlopen(world.url).status == 200  # noqa: S310 - loopback

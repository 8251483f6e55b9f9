"""The hold of a source of shards keeps what it has not read yet readable; it ends with the source.

    with_hold(description, location)                  its stream takes a hold of this name
    end_dropped(client, name, definitions, fence)     after the last incarnation has stopped
    end_former(client, description, former, …)        once a changed definition has begun

A stream makes up a name for its hold when it begins, and keeps it in its offsets. As long as no
offset is bound each start begins anew: one more hold each time, which nobody would find again. So a
source gives its stream the name: after itself, and after its location, since a project with a
source of that name may read the same shard into another one. A hold that its user has named with
the option `hold` is the user's, and stays.

The shards may be in other locations. Each is opened with the options of the definition that has
read it.

Invariants:
    Holds end only as they were seen before a look at the fence, as those of views and sinks.
    A hold that a bound offset names ends only when the source is dropped: whoever takes a changed
    definition back goes on from there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

import msgspec

from shardline.app.execution.ending_holds import TRIED_AGAIN, end_holds
from shardline.app.protocol.objects import SourceDescription, progress_shard, reads_shards
from shardline.app.storage.reclock import BoundOffsets, Remap, origin_in
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Fenced, ShardError
from shardline.datasource.offsets import ShardOffset, parse_offset
from shardline.datasource.sink import open_client, parse_sink
from shardline.datasource.state import is_tombstone

__all__ = ["end_dropped", "end_former", "hold_name", "with_hold"]

_log = logging.getLogger(__name__)


def hold_name(source: str, location: str) -> str:
    """Name of the hold that source `source` of the location with id `location` has on its input."""
    return f"source:{source}:{location}"


def with_hold(description: SourceDescription, location: str) -> SourceDescription:
    """A source whose stream takes its hold under `hold_name`, if it reads shards, and names none.

    Args:
        description: Of the source.
        location: Id of its own location.
    """
    if not reads_shards(description) or _given_hold(description) is not None:
        return description
    hold = hold_name(description.name, location)
    return msgspec.structs.replace(description, options={**description.options, "hold": hold})


def end_dropped(
    client: ShardClient,
    source: str,
    definitions: Iterable[SourceDescription],
    check_fence: Callable[[], None],
) -> None:
    """End the holds of a stopped source on all that it has read; harmless to repeat.

    Also those that former versions have made up names for, if an offset that is bound has them.

    Args:
        client: Of the source's own location.
        source: Its name.
        definitions: Each that may have left a hold.
        check_fence: As of `end_holds`.

    Raises:
        Fenced: At once; nothing more was ended.
        Determinate: A location or shard did not answer: it is to be tried again. On the others the
            holds have ended.
        Indeterminate: The same.
        ShardError: One is damaged, or is not there; on the others the holds have ended.
        OSError: The same.
    """
    read = list(definitions)
    given = {_given_hold(one) for one in read}
    names = {hold_name(source, client.location.id)}

    def note_bound() -> None:
        names.update(_bound_holds(client, source))

    def is_left(hold: str) -> bool:
        return hold in names - given

    acts: list[Callable[[], None]] = [note_bound]
    acts += [partial(_end, one, is_left, check_fence) for one in read]
    errors: list[ShardError | OSError] = []
    for act in acts:
        try:
            act()
        except Fenced:
            raise
        except (ShardError, OSError) as error:
            # Of any kind: another location may answer where one does not.
            errors.append(error)
    if errors:
        raise next((error for error in errors if isinstance(error, TRIED_AGAIN)), errors[0])


def end_former(
    client: ShardClient,
    description: SourceDescription,
    former: Iterable[SourceDescription],
    bound: BoundOffsets,
    check_fence: Callable[[], None],
) -> None:
    """End the holds on what a source has read before, but for those that bound offsets name.

    What does not answer, or is damaged, keeps its hold until the source is dropped: it is none of
    the source's any more, and must not keep it from going on.

    Args:
        client: Of the source's own location.
        description: Of the source, as it is now.
        former: Its former definitions.
        bound: Its bindings.
        check_fence: As of `end_holds`.

    Raises:
        Fenced: Another runtime has taken over.
    """
    own = hold_name(description.name, client.location.id)
    kept = _shards_in(bound) if reads_shards(description) else set()
    for one in former:
        try:
            _end(one, lambda hold: hold == own, check_fence, kept)
        except Fenced:
            raise
        except (ShardError, OSError):
            _log.warning(
                "the hold of a source stays on what it does not read any more, until the source is "
                "dropped",
                extra={"context": {"source": description.name, "hold": own}},
                exc_info=True,
            )


def _end(
    read: SourceDescription,
    ended: Callable[[str], bool],
    check_fence: Callable[[], None],
    kept: Collection[str] = (),
) -> None:
    """End holds on the shards that a definition reads, but for shards with the ids `kept`."""
    for client, shard in _places(read):
        state = client.machine(shard).refresh()
        if state is not None and not is_tombstone(state) and state.shard not in kept:
            end_holds(client, [shard], ended, check_fence)


def _places(read: SourceDescription) -> Iterator[tuple[ShardClient, str]]:
    """The shards that a definition reads, with clients of their location."""
    given = {name.lower(): text for name, text in read.options.items()}
    # Nothing else: an option that is wrong must not keep those of an earlier start.
    place = {n: t for n, t in given.items() if n in {"location", "path", "shard"} or "." in n}
    if "shards" not in given:
        yield _opened(place)
        return
    place["location"] = place.pop("path", place.get("location", ""))
    for shard in given["shards"].split(","):
        yield _opened({**place, "shard": shard.strip()})


def _opened(place: Mapping[str, str]) -> tuple[ShardClient, str]:
    parsed = parse_sink(place)
    return open_client(parsed), parsed.shard


def _bound_holds(client: ShardClient, source: str) -> list[str]:
    """The holds that bound offsets of a source name."""
    progress = progress_shard(source)
    origin = origin_in(client.state(progress)) if client.exists(progress) else None
    if origin is None or origin.format != "shard":
        return []
    return [offset.hold for offset in _offsets(Remap.attach(client, source).read())]


def _shards_in(bound: BoundOffsets) -> set[str]:
    """Ids of the shards that bound offsets are of."""
    return {shard for offset in _offsets(bound) for shard in offset.shards}


def _offsets(bound: BoundOffsets) -> Iterator[ShardOffset]:
    for binding in (bound.before, bound.last):
        if binding is not None and binding.offset is not None:
            offset = parse_offset(json.loads(binding.offset))
            if isinstance(offset, ShardOffset):
                yield offset


def _given_hold(description: SourceDescription) -> str | None:
    """The name that its user has given a source's hold; None for none."""
    given = {name.lower(): text for name, text in description.options.items()}
    return given.get("hold")

"""Bad rows as lines of text, for `errors NAME`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from shardline.app.cli.tables import utc
from shardline.app.printable import printable

__all__ = ["bad_row_lines"]

_RAW_MAX: Final = 200

_ACTS: Final = {"retract": "retracts", "skip": "skips"}
_DONE: Final = {"retract": "retracted", "skip": "skipped"}


def bad_row_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Show the answer of `POST /api/v1/errors`, line by line.

    Args:
        answer: See `shardline.app.server.errors_route`.
    """
    # Also of a newline in a bad row: what follows would look like a line of ours.
    return map(printable, _lines(answer))


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    name, act = answer["id"], answer["act"]
    if act == "show":
        for source in answer["sources"]:
            yield from _source_lines(source)
        if not answer["sources"]:
            yield f"{name} is made of no source"
        elif not answer["live"]:
            sources = " and ".join(source["source"] for source in answer["sources"])
            yield f"no errors: no bad row of {sources} makes reads of {name} fail"
            if [name] != [source["source"] for source in answer["sources"]]:
                yield "    those of a view's own query are apart, as rows of <view>_errors"
        return
    if answer["commit"]:
        done = answer.get("retracted", 0)
        count = "the errors" if done is None else _counted(done, "error")
        yield f"{_DONE[act]} {count} of {name}; {_counted(answer['live'], 'error')} left"
        return
    chosen = answer["chosen"]
    if not chosen:
        yield f"nothing to do: {name} has no errors"
        return
    yield f"{_ACTS[act]} {_counted(chosen, 'error')} of {name}"
    yield from _rows_lines(answer["sources"][0]["live"], chosen)
    more = " and notes them as skipped" if act == "skip" else ""
    yield f"    reads of {name} go on without these rows{more}"
    yield ""
    yield "dry run: nothing was changed; --commit does it"


def _source_lines(source: Mapping[str, Any]) -> Iterator[str]:
    live, skipped = source["live_count"], source["skipped_count"]
    if live:
        yield f"{source['source']}: {_counted(live, 'error')}; reads fail while there are any"
        yield from _rows_lines(source["live"], live)
        yield (
            f"    `errors {source['source']} --retract --commit` or `--skip --commit` takes them"
            " away; with ids behind `--retract` or `--skip`, these of them"
        )
    if skipped:
        yield f"{source['source']}: {_counted(skipped, 'row')} skipped"
        yield from _rows_lines(source["skipped"], skipped)


def _rows_lines(rows: Sequence[Mapping[str, Any]], count: int) -> Iterator[str]:
    """Rows of which there are `count`; only the newest are given."""
    older = count - sum(row["count"] for row in rows)
    if older > 0:
        yield f"  … {_counted(older, 'row')} that came before"
    for row in rows:
        yield from _row_lines(row)


def _row_lines(row: Mapping[str, Any]) -> Iterator[str]:
    times = f" ({row['count']} times)" if row["count"] > 1 else ""
    place = _path(row["file"]) if row["file"] else "file unknown"
    line = f", line {row['line']}" if row["line"] is not None else ""
    raw = row["raw"] or ""
    yield f"  {row['id']}  {utc(row['since_ms'])[:19]} UTC  {place}{line}{times}"
    yield f"    {raw if len(raw) <= _RAW_MAX else raw[:_RAW_MAX] + '…'}"
    yield f"    {row['error']}"


def _path(file: str) -> str:
    """A file as a person types it: one of this machine without the escapes of a URL."""
    parts = urlsplit(file)
    return unquote(parts.path) if parts.scheme == "file" and not parts.netloc else file


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

"""A project is refused for what it would undo of the order since it was given."""

from __future__ import annotations

import pytest

from shardline.app.coordinator.desired_state import refuse_if_overtaken
from shardline.app.protocol.objects import IndexDescription
from shardline.datasource.errors import InvalidUsage

OLD, NEW, OTHER = (IndexDescription(name="i", on="t", key=(key,)) for key in "abc")


@pytest.mark.parametrize(
    ("before", "now", "wanted"),
    [
        pytest.param(OLD, NEW, OLD, id="changed"),
        pytest.param(OLD, NEW, OTHER, id="changed otherwise"),
        pytest.param(OLD, NEW, None, id="changed where it is to go"),
        pytest.param(None, NEW, None, id="made"),
        pytest.param(OLD, None, OLD, id="dropped"),
    ],
)
def test_a_change_that_a_project_would_undo_is_named(
    before: IndexDescription | None, now: IndexDescription | None, wanted: IndexDescription | None
) -> None:
    """Whether it was made, changed or dropped."""

    def objects(one: IndexDescription | None) -> dict[str, IndexDescription]:
        return {"same": OLD} if one is None else {"same": OLD, "i": one}

    with pytest.raises(InvalidUsage, match=r"PROJECT_OVERTAKEN.*'i' was made"):
        refuse_if_overtaken(objects(before), objects(now), objects(wanted))
    refuse_if_overtaken(objects(before), objects(now), objects(now))
    refuse_if_overtaken(objects(now), objects(now), objects(wanted))

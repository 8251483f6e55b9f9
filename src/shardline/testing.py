"""Tests of a project's views, without files, streams or waiting; see `shardline.app.testing`."""

from __future__ import annotations

from shardline.extras import needed_for

with needed_for("shardline.testing"):
    from shardline.app.testing import Lab, assert_follows_changes

__all__ = ["Lab", "assert_follows_changes"]

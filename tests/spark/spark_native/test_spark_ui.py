"""Spark's UI shows our statistics of a query: a real UI in a process of its own, asked by HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from shardline.datasource.spark_native import query_statistics
from shardline.datasource.spark_native.query_statistics import show_statistics
from support.processes.job import JOB_TIMEOUT_S
from support.tree import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

OURS = '<details class="shardline'


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a UI has answered."""
    done = subprocess.run(
        [sys.executable, "-m", "support.processes.spark_ui_worker", tmp_path_factory.mktemp("ui")],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
            "SPARK_CONF_DIR": str(ROOT / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=JOB_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def cells(text: str) -> dict[str, str]:
    """The metrics of all sections, by name."""
    sections = text.partition(OURS)[2].rpartition("</details>")[0]
    return dict(re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>.*?</td></tr>", sections))


def test_the_page_is_sparks_with_our_section(seen: dict[str, Any]) -> None:
    """Its charts and its policy are as they were, and so are its scripts."""
    before, shown = seen["before"], seen["shown"]
    assert OURS not in before["text"]
    assert OURS in shown["text"]
    assert "first ours" in shown["text"]
    for page in (before, shown):
        assert page["status"] == 200
        assert page["text"].count("input-rate-timeline") >= 2
        assert "Streaming Query Statistics" in page["text"]
    nonce = re.compile("nonce-[^']*")
    assert nonce.sub("", shown["policy"] or "") == nonce.sub("", before["policy"] or "")
    assert shown["text"].count("<script") == before["text"].count("<script")


def test_it_says_what_a_frozen_stream_stands_before(seen: dict[str, Any]) -> None:
    """Which only the query knows: Spark tells its UI of micro-batches, and there is none."""
    found = cells(seen["frozen"]["text"])
    assert found["frozen"] == seen["lost"]
    assert (found["frontier"], found["upper"], found["behind"]) == ("1", "3", "2 ms")


def test_a_query_of_others_has_what_is_said_of_it_and_no_shard(seen: dict[str, Any]) -> None:
    assert cells(seen["other"]["text"]) == {"number": "7"}


def test_hostile_text_stays_text(seen: dict[str, Any]) -> None:
    assert "&lt;b&gt;hostile&lt;/b&gt;" in seen["shown"]["text"]
    assert "<b>hostile" not in seen["shown"]["text"]


def test_the_last_to_ask_is_shown_and_the_page_is_replaced_once(seen: dict[str, Any]) -> None:
    """To end the first one does not end the second."""
    assert "second ours" in seen["second"]["text"]
    assert "first ours" not in seen["second"]["text"]
    assert seen["pages"] == ["StreamingQueryPage", "Page"]


def test_sparks_page_is_shown_whatever_goes_wrong(seen: dict[str, Any]) -> None:
    """A description that fails, says nothing, or is not shown any more; Python that is gone."""
    for name in ("failing", "silent", "hidden", "unanswered"):
        assert seen[name]["status"] == 200
        assert OURS not in seen[name]["text"]
        assert "input-rate-timeline" in seen[name]["text"]


def test_the_page_of_an_ended_run_has_what_its_last_progress_says(seen: dict[str, Any]) -> None:
    """Spark's UI keeps that of the last micro-batch, which the query no longer says."""
    assert seen["ended"]["status"] == 200
    assert cells(seen["ended"]["text"])["frontier"] == "1"


def test_other_addresses_of_the_tab_answer_as_before(seen: dict[str, Any]) -> None:
    """The list of queries leads to the page; one that is not known is refused."""
    assert seen["json"]["status"] == seen["json_before"]["status"]
    assert seen["list"]["status"] == 200
    assert "/StreamingQuery/statistics/?id=" in seen["list"]["text"]
    assert seen["unknown"]["status"] >= 400


def test_without_a_ui_nothing_is_loaded(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in all sessions of this project by default."""
    monkeypatch.setattr(query_statistics, "java_object", None)  # it would raise
    show_statistics(spark, lambda _: [])()


def test_another_spark_is_left_alone(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its classes may be others."""
    monkeypatch.setattr(type(spark.sparkContext), "uiWebUrl", "http://127.0.0.1:4040")
    monkeypatch.setattr(query_statistics, "is_checked", lambda _: False)
    monkeypatch.setattr(query_statistics, "java_object", None)
    show_statistics(spark, lambda _: [])()

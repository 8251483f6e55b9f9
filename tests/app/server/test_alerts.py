"""Alerts fire when they should and say what they should; the dashboard knows what there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from shardline.app.protocol.object_state import VERDICTS
from support.processes.prometheus import ALERTS, DASHBOARD, NEED
from support.tree import ROOT

pytestmark = pytest.mark.process

CASES = ROOT / "tests" / "golden" / "alerts" / "when_they_fire.yml"


def promtool(*arguments: object) -> str:
    """Run it; returns what it says, and fails if it fails."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip(NEED)
    ran = subprocess.run(
        [program, *map(str, arguments)], check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_alerts_fire_when_they_should() -> None:
    """Each at its threshold and after its time, with labels, summary and hint."""
    assert "SUCCESS" in promtool("test", "rules", CASES)


def test_rules_are_valid() -> None:
    """As a server would load them, and all of them."""
    said = promtool("check", "rules", ALERTS)
    assert f"{len(names(ALERTS.read_text(encoding='utf-8')))} rules found" in said


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    """What has none is known to be valid only."""
    fired = re.findall(
        r"alertname: (\w+)\n\s+exp_alerts:\n\s+- exp_labels", CASES.read_text(encoding="utf-8")
    )
    assert set(fired) == names(ALERTS.read_text(encoding="utf-8"))


def test_the_dashboard_knows_each_verdict() -> None:
    """Those that need a person are counted, and each has a colour: red is for these."""
    shown = {panel["title"]: panel for panel in json.loads(DASHBOARD.read_text())["panels"]}
    bad = {verdict for verdict, tone in VERDICTS.items() if tone == "bad"}
    (counted,) = shown["Need a person"]["targets"]
    assert set(counted["expr"].split('"')[1].split("|")) == bad
    (override,) = shown["Verdicts"]["fieldConfig"]["overrides"]
    (mapping,) = (p["value"] for p in override["properties"] if p["id"] == "mappings")
    colours = {verdict: one["color"] for verdict, one in mapping[0]["options"].items()}
    assert colours.keys() == VERDICTS.keys()
    assert {verdict for verdict, colour in colours.items() if colour == "red"} == bad


def test_each_verdict_that_needs_a_person_has_an_alert() -> None:
    """And one only, or somebody is called twice."""
    rules = ALERTS.read_text(encoding="utf-8")
    told = re.findall(r'shardline_object_verdict\{verdict=~?"([^"]+)"\}', rules)
    verdicts = [verdict for one in told for verdict in one.split("|")]
    assert sorted(verdicts) == sorted(v for v, tone in VERDICTS.items() if tone == "bad")


def names(rules: str) -> set[str]:
    """The alerts of a file of rules."""
    return set(re.findall(r"- alert: (\w+)", rules))

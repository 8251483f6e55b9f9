"""A real Prometheus on loopback scrapes an application, judges its rules, and answers queries.

    with scraping(where.url, folder) as prometheus:
        prometheus.wait_for_rates()
        prometheus.ask('sum by (phase) (rate(shardline_micro_batch_seconds_total[1m]))')

The programs are Debian's `prometheus` and `promtool`; without them there is nothing to look at, and
`scraping` gives None.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support.processes.s3_server import free_port
from support.tree import ROOT
from support.waiting import wait_until

__all__ = [
    "ALERTS",
    "DASHBOARD",
    "NEED",
    "Judged",
    "Panel",
    "Prometheus",
    "judge",
    "panels",
    "scraping",
]

ALERTS: Final = ROOT / "conf" / "alerts.yml"
DASHBOARD: Final = ROOT / "conf" / "grafana" / "shardline.json"
NEED: Final = "there is no Prometheus: install Debian's `prometheus`"

_READY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Panel:
    """One query of a panel of the dashboard.

    Attributes:
        title: Of the panel.
        query: As Grafana sends it when all objects are chosen.
        labels: Labels that its legend names.
    """

    title: str
    query: str
    labels: frozenset[str]


def panels() -> list[Panel]:
    """Read the queries of the dashboard."""
    found: list[Panel] = []
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            named = target.get("legendFormat", "").split("{{")[1:]
            labels = frozenset(text.split("}}")[0].strip() for text in named)
            found.append(Panel(panel["title"], target["expr"].replace("$object", ".*"), labels))
    return found


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server.

    Attributes:
        url: Its address.
    """

    url: str

    def ask(self, query: str) -> list[tuple[Mapping[str, str], float]]:
        """Labels and values that a query has now.

        Raises:
            AssertionError: It is refused.
        """
        answer = self._get("/api/v1/query", query=query)
        return [(one["metric"], float(one["value"][1])) for one in answer["result"]]

    def rules(self) -> dict[str, dict[str, Any]]:
        """The rules by name, as the server has judged them last."""
        groups: Sequence[dict[str, Any]] = self._get("/api/v1/rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def wait_for_rates(self) -> None:
        """Wait until it has scraped an answer more than twice, and has judged each rule since."""
        scraped = "sum_over_time(up[5m])"
        wait_until(
            "it has scraped three times",
            lambda: any(value > 2 for _, value in self.ask(scraped)),
            _READY_S,
        )

        def judged() -> bool:
            return all(one["health"] != "unknown" for one in self.rules().values())

        wait_until("it has judged its rules", judged, _READY_S)

    def _get(self, path: str, **query: str) -> Any:
        address = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - loopback
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None
        assert told["status"] == "success", (query, told)
        return told["data"]


@dataclass(frozen=True, slots=True)
class Judged:
    """What a server has made of an application's metrics.

    Attributes:
        panels: What each query of the dashboard has, by itself.
        rules: Alerts by name.
        chosen: How many series each selector of a rule chooses, by its text.
    """

    panels: Mapping[Panel, Sequence[tuple[Mapping[str, str], float]]] = field(default_factory=dict)
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    chosen: Mapping[str, int] = field(default_factory=dict)


def judge(server: Prometheus) -> Judged:
    """Ask for everything that the dashboard shows and the alerts look at."""
    server.wait_for_rates()
    rules = server.rules()
    selectors = {text for rule in rules.values() for text in _SELECTOR.findall(rule["query"])}
    return Judged(
        {panel: server.ask(panel.query) for panel in panels()},
        rules,
        {text: len(server.ask(text)) for text in selectors},
    )


_SELECTOR: Final = re.compile(r"shardline_\w+(?:\{[^}]*\})?")


@contextmanager
def scraping(url: str, folder: Path) -> Iterator[Prometheus | None]:
    """Scrape `url` every other second, with the rules of conf/, for the length of the `with` block.

    Args:
        url: Of an application, without a slash at its end.
        folder: For what it keeps.
    """
    program = shutil.which("prometheus")
    if program is None:
        yield None
        return
    folder.mkdir(parents=True)
    config = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {
                "job_name": "shardline",
                "static_configs": [{"targets": [url.removeprefix("http://")]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    port = free_port()
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            cwd=folder,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")
        wait_until("it answers", lambda: _is_ready(process, server, folder), _READY_S)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(process: subprocess.Popen[bytes], server: Prometheus, folder: Path) -> bool:
    assert process.poll() is None, (folder / "said.txt").read_text()
    with suppress(OSError), urllib.request.urlopen(f"{server.url}/-/ready", timeout=1):  # noqa: S310
        return True
    return False

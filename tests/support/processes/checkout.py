"""A copy of the repository and its `spark-submit.sh`, started as a newcomer would.

Every start is bounded in time and runs in a process group of its own, so that nothing of it is
left behind, whatever the script has become by then (pip, Python, a JVM with workers).
"""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


SETUP_TIMEOUT_S: Final = 600
"""A cold download of PySpark and building its wheel, on a slow line."""

JOB_TIMEOUT_S: Final = 300
"""Starting a JVM and a few tasks, on two cores that are busy with other tests."""

FOREIGN: Final = (
    "JAVA_HOME", "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "PYTHONHOME", "PYTHONPATH",
    "SHARDLINE_VENV", "SPARK_CONF_DIR", "SPARK_ENV_LOADED", "SPARK_HOME", "SPARK_LOCAL_IP",
    "VIRTUAL_ENV",
)  # fmt: skip
"""What the process that runs these tests may carry and a newcomer's shell does not."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A copy of the repository, and how to start its script there."""

    root: Path
    env: dict[str, str] = field(repr=False)

    @property
    def script(self) -> Path:
        return self.root / "spark-submit.sh"

    def start(
        self, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start the script in a process group of its own, so that all of it can be killed."""
        return subprocess.Popen(
            [str(self.script), *arguments],
            cwd=cwd or self.root,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        *arguments: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = JOB_TIMEOUT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run the script to its end; a run beyond `timeout_s` is killed and fails the test."""
        return finish(self.start(*arguments, cwd=cwd, env=env), timeout_s)


def finish(process: subprocess.Popen[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Wait for a process of `Checkout.start`; nothing of it is left behind."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        kill_all_of(process)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def kill_all_of(process: subprocess.Popen[str]) -> None:
    """SIGKILL the whole group, as a machine that goes down would."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # every process of the group has ended
    process.wait(30)


def plant_environments(venvs: Path, root: Path) -> dict[Path, bool]:
    """Make environments of several checkouts; the one at `root` is to remove some of them."""
    elsewhere = root.parent / "elsewhere"
    planted = {}
    for number, (record, whose, complete, goes) in enumerate(
        [
            ("checkout", root, True, True),
            ("checkout", root, False, True),
            ("checkout", elsewhere, True, False),
            ("checkout", elsewhere, False, False),
            ("lib/python3.11/site-packages/_shardline.pth", root, True, True),
            ("lib/python3.11/site-packages/_shardline.pth", elsewhere, True, False),
            (None, root, True, False),
            (None, root, False, False),
        ]
    ):
        env = venvs / f"{number:016x}"
        env.mkdir(parents=True)
        if record is not None:
            (env / record).parent.mkdir(parents=True, exist_ok=True)
            (env / record).write_text(f"{whose}\n")
        if complete:
            (env / "complete").touch()
        planted[env] = goes
    return planted


@dataclass(frozen=True, slots=True)
class SetupStory:
    """What was seen while the environment was made."""

    ruin: Path
    """The environment that the killed set-up had begun."""
    ruin_was_complete: bool
    twins: tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]
    others: Mapping[Path, bool]
    """Environments that were there before, and whether the set-up is to remove them."""

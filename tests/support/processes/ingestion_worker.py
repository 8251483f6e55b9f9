"""A process that takes a source in and is killed by the system right after one of its steps.

python -m support.processes.ingestion_worker <location> <checkpoints> <inbox> <method of Timeline>
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from shardline.app.protocol.objects import SourceDescription
from shardline.app.spark_session import open_session
from shardline.app.storage.commit import Timeline
from support.spark.ingestions import Runtime, running

__all__ = ["main"]


def main(location: str, checkpoints: str, inbox: str, step: str) -> None:
    """Run until it is killed, or 120 s: then the step was never reached."""
    real = getattr(Timeline, step)

    def killed(self: Timeline, *args: Any) -> Any:
        real(self, *args)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Timeline, step, killed)
    spark = open_session("killed", {"spark.ui.enabled": "false"})
    description = SourceDescription(
        name="flights", format="csv", options={"path": inbox}, schema="id INT, s STRING"
    )
    with running(Runtime(spark, location, Path(checkpoints)), description):
        threading.Event().wait(120)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Run a silo: keep its node running until the federation has ended, and start it again after a crash.

This process imports neither torch nor Flower, which would take seconds: its node checks and says everything.

A node that was killed is refused for up to a minute, because the SuperLink takes the old one for alive. The SuperLink
gives the same answer to a key that it does not know, so only time tells the two cases apart.
"""

import logging
import sys
import time
from threading import Event

from feddig.errors import FedDigError
from feddig.federation.folders import SiloFolder
from feddig.federation.processes.processes import party_environment, party_lock, start, stop

NODE_LOG = "node.log"
CONNECTED, HUNG, ERROR = "connected to", "Timeout (", "feddig: error: "
"""What the node writes to its log; the second is Python's own faulthandler's, which ends a process that hangs."""
FINISHED, WRONG, REFUSED = 0, 2, 3
"""Exit codes of the node: the federation has ended, something here is wrong, or the moderator does not take it."""

REFUSED_SECONDS = 120.0
"""How long a refusal may mean that the SuperLink has not yet noticed the end of the previous node."""
RETRY_SECONDS, LONGEST_PAUSE, STEADY_SECONDS = 5.0, 20.0, 120.0
STOP_SECONDS, LOOK_SECONDS = 10.0, 0.2

log = logging.getLogger("feddig")


def supervise(folder: SiloFolder, stopping: Event) -> bool:
    """Keep the node running until the federation has ended (True), or until the event is set (False)."""
    if not folder.silo_file.is_file():
        raise FedDigError(
            f"{folder.path}: is no silo's folder; give one that `feddig federation init` wrote in silos/"
        )
    with party_lock(folder.path):
        refused_since, pause = None, RETRY_SECONDS
        while True:
            began = time.monotonic()
            code, said = _run_node(folder, stopping)
            if code == FINISHED:
                return True
            if stopping.is_set():
                return False
            if code == REFUSED and time.monotonic() - (refused_since or began) <= REFUSED_SECONDS:
                refused_since = refused_since or began
                log.info("refused: the moderator is starting, or a node was just killed; trying again")
                stopping.wait(RETRY_SECONDS)
                continue
            if code in (WRONG, REFUSED):
                raise FedDigError(said.strip().rpartition("\n")[2].rpartition(ERROR)[2])
            if CONNECTED in said:
                refused_since = None
            if HUNG in said:
                log.warning(
                    "no answer in twice the longest deadline; if it was just slow, agree on longer deadlines"
                )
            pause = RETRY_SECONDS if time.monotonic() - began > STEADY_SECONDS else pause
            log.warning("the node ended (%s); starting it again in %g s", _describe(code), pause)
            stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _run_node(folder: SiloFolder, stopping: Event) -> tuple[int, str]:
    """Run the node until it ends or the event is set; return its exit code and what it wrote to its log."""
    file = folder.logs / NODE_LOG
    mark = file.stat().st_size if file.exists() else 0
    command = [sys.executable, "-P", "-m", "feddig.federation.flower_1_41.node", str(folder.path.resolve())]
    process = start(command, file, party_environment(folder.path, folder.flower_home))
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            stream.seek(mark)
            said = ""
            while process.poll() is None and not stopping.wait(LOOK_SECONDS):
                said += _show(stream.read())
            said += _show(stream.read())
    finally:
        stop(process, folder.path, STOP_SECONDS)
    return process.returncode, said


def _show(text: str) -> str:
    """Show what the node says on this console too, apart from the error with which this process will end."""
    sys.stderr.write("".join(line for line in text.splitlines(keepends=True) if ERROR not in line))
    return text


def _describe(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"

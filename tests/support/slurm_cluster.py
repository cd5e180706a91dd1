"""A real SLURM on this computer in a folder of a test: munged, slurmctld and a slurmd a node, as root."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare")
IDLE = ("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N")
INSTALL = "apt-get install -y --no-install-recommends slurm-wlm munge"
CORES = 8
"""What a node says it has; SLURM is told to believe it."""
_CONF = Path(__file__).with_name("slurm.conf")
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cores} RealMemory=1000 State=UNKNOWN\n"
)


@contextlib.contextmanager
def running(root: Path, blind: Path | None = None, nodes: int = 1) -> Iterator[dict[str, str]]:
    """A SLURM that lasts as long as the block; gives the environment of its commands.  Skips the test where it is
    missing.

    Args:
        blind: a folder that no node sees: an empty one lies over it there.
        nodes: how many nodes it has, all of them this computer.
    """
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    for command in COMMANDS:
        if shutil.which(command, path=path) is None:
            pytest.skip(f"{command} is not installed: {INSTALL}")
    if os.geteuid() != 0:
        pytest.skip("SLURM's daemons are started as root here")
    host = socket.gethostname().partition(".")[0]
    environment = {**os.environ, "PATH": path, "SLURM_CONF": str(root / "slurm.conf")}
    names = [f"node{number}" for number in range(nodes)]
    for folder in ("state", *(f"spool-{name}" for name in names)):
        (root / folder).mkdir(parents=True)
    root.chmod(0o755)
    (root / "munge.key").write_bytes(os.urandom(1024))
    (root / "munge.key").chmod(0o600)
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(1 + nodes)]
        port, *ports = (int(one.getsockname()[1]) for one in sockets)
    lines = [_NODE.format(name=name, host=host, port=own, cores=CORES) for name, own in zip(names, ports, strict=True)]
    (root / "slurm.conf").write_text(_CONF.read_text().format(host=host, root=root, port=port) + "".join(lines))
    munged = ["munged", "--foreground", "--force", f"--key-file={root}/munge.key", f"--socket={root}/munge.socket"]
    munged += [f"--{name}-file={root}/munged.{name}" for name in ("pid", "log", "seed")]
    daemons = [["slurmd", "-D", "-N", name] for name in names]
    if blind is not None:
        blind.mkdir(exist_ok=True)
        hide = f"mount -t tmpfs none {blind} && exec "
        daemons = [["unshare", "--mount", "sh", "-c", hide + " ".join(daemon)] for daemon in daemons]
    started: list[subprocess.Popen[bytes]] = []
    try:
        with (root / "daemons.log").open("ab") as log:
            for command in (munged, ["slurmctld", "-D"], *daemons):
                started.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
                if command is munged:
                    _wait_for((root / "munge.socket").exists, root, started)
        _wait_for(lambda: len(_ask(environment, *IDLE)) == nodes, root, started)
        yield environment
    finally:
        _ask(environment, "scancel", "--user=root")
        until = time.monotonic() + 20
        while _ask(environment, "squeue", "--noheader") and time.monotonic() < until:
            time.sleep(0.2)
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(there: Callable[[], bool], root: Path, started: list[subprocess.Popen[bytes]]) -> None:
    until = time.monotonic() + 120
    while not there():
        dead = [process.args for process in started if process.poll() is not None]
        if dead or time.monotonic() > until:
            logs = "\n".join(path.read_text(errors="replace")[-1000:] for path in sorted(root.glob("*.log")))
            raise RuntimeError(f"SLURM did not start ({dead or 'no answer'}):\n{logs}")
        time.sleep(0.2)


def _ask(environment: dict[str, str], *words: str) -> list[str]:
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.split()

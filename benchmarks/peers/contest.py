"""One peer's turn: a job without a fault, then one in which a client and then the server are killed. Knows no peer."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.bed import POLL_S, Machine, Stuck, wait_until
from benchmarks.peers.counts import lines_user_writes
from benchmarks.peers.deployment import HERE, START_S, Deployment
from benchmarks.peers.shares import TEST
from testbed.results import say

#: More rounds than any turn lasts: this job does not end by itself.
MANY_ROUNDS = 2000
#: How long a peer may take to go on, or to take a client back, before it counts as stopped.
PATIENCE_S = 120.0
#: How long a dead server stays dead.
DEAD_S = 5.0
#: More than heartbeats, less than an update: 61,706 values are 247 kB.
_UPDATE_BYTES = 150_000
_LONGEST_ROUND_S = 240.0
_SAMPLE_S = 1.0


@dataclass(kw_only=True, slots=True)
class Watched:
    """What was seen of a job: when each model was there, and the most that a client's processes held together."""

    at_s: list[float] = field(default_factory=list)
    rss_mb: float = 0.0

    @property
    def round_s(self) -> float:
        return statistics.median(later - earlier for earlier, later in zip(self.at_s, self.at_s[1:], strict=False))


def bytes_per_round(before: list[tuple[int, int]], after: list[tuple[int, int]], rounds: int) -> dict[str, int]:
    """Mean of the clients, of all that crossed their links: sent and received."""
    shares = len(before) * rounds
    pairs = list(zip(before, after, strict=True))
    up, down = (sum(last[way] - first[way] for first, last in pairs) // shares for way in (0, 1))
    return {"up": up, "down": down}


def plain_job(peer: Deployment, rounds: int) -> dict[str, object]:
    """From the first command to the last model."""
    began_s = time.monotonic()
    peer.start_server()
    for client in peer.machines.clients:
        peer.start_client(client)
    peer.wait_for_clients()
    say(f"  four clients are there after {time.monotonic() - began_s:.1f} s")
    before = [client.crossed_bytes() for client in peer.machines.clients]
    peer.submit(rounds)
    seen = watch(peer, rounds)
    after = [client.crossed_bytes() for client in peer.machines.clients]
    model = peer.fetch_model()
    accuracy = judged(peer, model)
    say(f"  {rounds} rounds, {accuracy:.2%} right, {seen.round_s:.2f} s a round")
    return {
        "setup": peer.setup,
        "steps": peer.typed.steps,
        "lines_user_writes": lines_user_writes(peer.app),
        "first_model_s": seen.at_s[0] - began_s,
        "round_s": seen.round_s,
        "client_rss_mb": seen.rss_mb,
        "client_bytes": bytes_per_round(before, after, rounds),
        "rounds": rounds,
        "load": os.getloadavg()[1],
        "accuracy": accuracy,
        "commands": list(peer.typed.commands),
    }


def watch(peer: Deployment, rounds: int) -> Watched:
    seen = Watched()
    sampled_s = moved_s = time.monotonic()
    while len(seen.at_s) < rounds:
        now_s = time.monotonic()
        made = len(peer.models())
        if made > len(seen.at_s):
            # Two that were seen at once came between two looks.
            seen.at_s += [now_s] * (made - len(seen.at_s))
            moved_s = now_s
        if now_s - sampled_s > _SAMPLE_S:
            sampled_s = now_s
            seen.rss_mb = max(seen.rss_mb, *(client.memory_mb() for client in peer.machines.clients))
        if now_s - moved_s > _LONGEST_ROUND_S:
            raise Stuck(f"no model for {_LONGEST_ROUND_S:g} s: {peer.state()[-800:]} {peer.server.said()[-1500:]}")
        time.sleep(POLL_S)
    return seen


def judged(peer: Deployment, model: Path) -> float:
    command = [str(peer.setting.python), str(HERE / "evaluate.py"), str(model), str(peer.setting.shares / TEST)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    if done.returncode:
        raise Stuck(f"the model {model} could not be judged: {done.stderr[-1500:]}")
    return float(done.stdout.split()[-1])


def faults(peer: Deployment, round_s: float) -> dict[str, object]:
    """A second job on the same machines, in which processes are killed; a third if that ended the second."""
    _begin(peer)
    killed = client_killed(peer, peer.machines.clients[-1], round_s)
    say(f"  client killed: {killed['client_killed']}")
    if killed["client_killed_s"] is None:
        _begin(peer)
    fell = server_killed(peer, round_s)
    say(f"  server killed: {fell['server_killed']}")
    return {**killed, **fell}


def lost_client(peer: Deployment, round_s: float) -> dict[str, object]:
    """Only the fault of a client, for a peer with a setting that matters to nothing else."""
    peer.expect(round_s)
    _begin(peer)
    killed = client_killed(peer, peer.machines.clients[-1], round_s)
    say(f"  client killed: {killed['client_killed']}")
    return killed


def _begin(peer: Deployment) -> None:
    peer.submit(MANY_ROUNDS)
    wait_until(lambda: len(peer.models()) >= 2, limit_s=_LONGEST_ROUND_S, what="two models of a next job")


def _amid_a_round(peer: Deployment, round_s: float) -> int:
    """Wait until a round has begun and is not done; how many models there are."""
    made = len(peer.models())
    wait_until(lambda: len(peer.models()) > made, limit_s=_LONGEST_ROUND_S, what="a next model before the kill")
    time.sleep(round_s * 0.3)
    return len(peer.models())


def _next_model(peer: Deployment, made: int) -> float | None:
    """Seconds until there is another model; None: there is none in time."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < PATIENCE_S:
        if len(peer.models()) > made:
            return time.monotonic() - began_s
        time.sleep(POLL_S)
    return None


def client_killed(peer: Deployment, client: Machine, round_s: float) -> dict[str, object]:
    made = _amid_a_round(peer, round_s)
    client.kill()
    goes_on_s = _next_model(peer, made)
    if goes_on_s is None:
        said = f"no model within {PATIENCE_S:g} s of the kill"
    else:
        said = f"the next model came {goes_on_s:.1f} s after the kill (a round takes {round_s:.1f} s)"
        after_s = _next_model(peer, len(peer.models()))
        said += f", the one after it {after_s:.1f} s later" if after_s is not None else ", then none"
    sent, _ = client.crossed_bytes()
    began_s = time.monotonic()
    peer.start_client(client)
    back_s = None
    while time.monotonic() - began_s < PATIENCE_S and back_s is None:
        peer.models()
        if client.crossed_bytes()[0] - sent > _UPDATE_BYTES:
            back_s = time.monotonic() - began_s
        time.sleep(POLL_S)
    said += (
        f"; started again, the client sent an update after {back_s:.1f} s"
        if back_s is not None
        else f"; started again, the client sent no update within {PATIENCE_S:g} s"
    )
    return {"client_killed": said, "client_killed_s": goes_on_s, "client_back_s": back_s}


def server_killed(peer: Deployment, round_s: float) -> dict[str, object]:
    made = _amid_a_round(peer, round_s)
    reached = peer.models()[-1]
    peer.server.kill()
    meanwhile_s = time.monotonic()
    time.sleep(DEAD_S)
    began_s = time.monotonic()
    peer.start_server()
    goes_on_s = _next_model(peer, made)
    if goes_on_s is not None:
        first = peer.models()[made]
        lost = max(0, reached + 1 - first)
        said = (
            f"training stood still while the server was dead ({began_s - meanwhile_s:.0f} s); started again, it made"
            f" its next model, number {first}, after {time.monotonic() - began_s:.1f} s; of {reached} models"
            f" {lost} were lost"
        )
        return {"server_killed": said, "server_killed_s": goes_on_s, "server_killed_lost_rounds": lost}
    return _started_over(peer, reached)


def _started_over(peer: Deployment, reached: int) -> dict[str, object]:
    """The job is gone: what a user does is to give it again."""
    state = " ".join(peer.state().split())[-300:]
    said = f"training does not go on: no model within {PATIENCE_S:g} s of the server's new start"
    again_s = None
    try:
        began_s = time.monotonic()
        peer.submit(MANY_ROUNDS)
        wait_until(peer.models, limit_s=PATIENCE_S, what="a model of a new job")
        again_s = time.monotonic() - began_s
        said += f"; the job, given again, had its first model after {again_s:.1f} s"
    except (Stuck, subprocess.TimeoutExpired) as error:
        said += f"; the job, given again, made no model either ({str(error)[:200]})"
    lost = 0 if peer.keeps_model else reached
    said += f"; of {reached} models {lost} were lost" + (": the app itself saves and loads them" if not lost else "")
    return {
        "server_killed": said,
        "server_killed_s": None,
        "server_killed_again_s": again_s,
        "server_killed_lost_rounds": lost,
        "server_killed_state": state,
    }


def rounded(figures: dict[str, object]) -> dict[str, object]:
    """Seconds and megabytes as they can be told apart; a share of digits to the last of ten thousand."""
    return {
        name: round(value, 4 if name == "accuracy" else 2) if isinstance(value, float) else value
        for name, value in figures.items()
    }

"""Lines of a log: dated, with their level, one a record, as text or JSON, without secrets."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import Misuse
from shoal.identity.join_code import JoinCode
from shoal.runtime import log_lines
from shoal.runtime.event_kinds import DETAILS, KINDS, OTHER, device_of, event_of, level_of
from shoal.runtime.journal import Journal, JournalEvent
from shoal.store.registry import Registry

SRC = Path(__file__).parents[3] / "src" / "shoal"

RFC_3339 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"

#: A kind of event.
FORM = r"[a-z]+\.[a-z]+(-[a-z]+)*"


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Where the log goes, for one test; then logging is as it was."""
    # Set first, so that what set_up leaves in the environment is taken out again.
    monkeypatch.setenv(log_lines.FORMAT_VARIABLE, "")
    root, own = logging.getLogger(), logging.getLogger("shoal")
    before = [(logger, list(logger.handlers), logger.level, logger.propagate) for logger in (root, own)]
    yield io.StringIO()
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_a_line_has_date_time_and_level_and_stays_one_line(stream: io.StringIO) -> None:
    log_lines.set_up(quiet=False, stream=stream)
    logging.getLogger("shoal").info("a device said %s", "hello\n2026-11-15T00:00:00.000Z ERROR forged\x1b[2J")
    (line,) = stream.getvalue().splitlines()
    assert re.fullmatch(RFC_3339 + r" INFO a device said hello 2026-11-15T00:00:00.000Z ERROR forged \[2J", line)


def test_quiet_leaves_what_a_person_should_look_at(stream: io.StringIO) -> None:
    log_lines.set_up(quiet=True, stream=stream)
    log = logging.getLogger("shoal.events")
    log_lines.log_event(log, "device.joined", "attic ready", job="mnist-1")
    log_lines.log_event(log, "device.lost", "attic: silent for 12.0 s", job="mnist-1")
    log_lines.log_event(log, "job.failed", "no device is left", job="mnist-1")
    levels = [line.split()[1] for line in stream.getvalue().splitlines()]
    assert levels == ["WARNING", "ERROR"]


def test_json_lines_hold_what_is_known(stream: io.StringIO) -> None:
    log_lines.set_up(quiet=False, given="json", stream=stream)
    log_lines.name_lines(cluster="home")
    log = logging.getLogger("shoal.events")
    reason = "lease 85 of cellar-pi4 after 3.4 s"
    log_lines.log_event(
        log, "lease.expired", reason, job="digits-f3f8", node="cellar-pi4", term=1, version=17, seq=34, lease=85
    )
    logging.getLogger("shoal").warning("[digits-f3f8] working for %s", "attic")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert re.fullmatch(RFC_3339, first.pop("ts"))
    assert first == {
        "level": "warning",
        "event": "lease.expired",
        "cluster": "home",
        "job": "digits-f3f8",
        "node": "cellar-pi4",
        "term": 1,
        "version": 17,
        "lease": 85,
        "reason": reason,
        "seq": 34,
    }
    assert (second["event"], second["job"], second["reason"]) == ("log", "digits-f3f8", "working for attic")


@pytest.mark.parametrize("given", ["text", "json"])
def test_a_join_line_is_clipped(stream: io.StringIO, given: str) -> None:
    code = str(JoinCode(host="10.0.0.1", port=7071, ca_sha256=b"ab" * 16, secret="cd" * 16))
    secret = code.rpartition("/")[2]
    log_lines.set_up(quiet=False, given=given, stream=stream)
    logging.getLogger("shoal").info("made %s for attic", code)
    told = stream.getvalue()
    assert f"shoal://10.0.0.1:7071/{secret[:4]}…" in told
    assert secret[4:12] not in told


def test_a_bug_keeps_its_traceback(stream: io.StringIO) -> None:
    log_lines.set_up(quiet=False, given="json", stream=stream)
    try:
        raise ValueError("oh")
    except ValueError:
        logging.getLogger("shoal").exception("a role failed")
    told = json.loads(stream.getvalue())
    assert told["level"] == "error"
    assert "ValueError: oh" in told["traceback"]


def test_set_up_again_does_not_log_twice(stream: io.StringIO) -> None:
    log_lines.set_up(quiet=False, stream=io.StringIO())
    log_lines.set_up(quiet=False, stream=stream)
    logging.getLogger("shoal").info("once")
    assert stream.getvalue().count("once") == 1


def test_the_environment_names_the_format_and_a_wrong_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_lines.FORMAT_VARIABLE, "json")
    assert log_lines.log_format() == "json"
    assert log_lines.log_format("text") == "text"
    monkeypatch.setenv(log_lines.FORMAT_VARIABLE, "yaml")
    with pytest.raises(Misuse, match="SHOAL_LOG is text or json, not 'yaml'"):
        log_lines.log_format()


def test_a_second_that_is_almost_over_is_not_written_as_sixty() -> None:
    assert log_lines.stamp(1794776857.0614) == "2026-11-15T21:07:37.061Z"
    assert log_lines.stamp(59.99951) == "1970-01-01T00:00:59.999Z"


# Kinds -----------------------------------------------------------------------------------------------------


#: Calls that record an event, and which of their arguments is the kind.
RECORDS = {"record": 0, "_record": 0, "_record_once": 0, "note": 0, "_note": 0, "mark": 0}
#: Rooms in which a ``_note`` begins with the job.
NOTES_OF_JOBS = ("entry_intake.py", "publisher.py", "stored_jobs.py", "job_retention.py", "standings.py")
#: Methods of those names that write down something else, and simulated marks.
OTHERS = ("identity", "store", "sim", "learning", "cli", "net", "trainer")


def literals(path: Path) -> set[str]:
    """The texts in a file that have the form of a kind."""
    nodes = ast.walk(ast.parse(path.read_text()))
    texts = {each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return {text for text in texts if re.fullmatch(FORM, text)}


def kinds_in(path: Path) -> set[str]:
    """The literal kinds that a file's code records."""
    found = set()
    for call in ast.walk(ast.parse(path.read_text())):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        at: int | None = RECORDS.get(name)
        if (name == "add" and "journal" in ast.unparse(call.func) + path.name) or (
            name == "_note" and path.name in NOTES_OF_JOBS
        ):
            at = 1
        elif name == "partial" and call.args and ast.unparse(call.args[0]).endswith("_journal.add"):
            at = 2
        if at is not None and len(call.args) > at:
            kind = call.args[at]
            if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
                found.add(kind.value)
    return found


def files() -> list[Path]:
    rooms = [room for room in sorted(SRC.iterdir()) if room.is_dir() and room.name not in OTHERS]
    return [path for room in rooms for path in sorted(room.rglob("*.py")) if not path.name.endswith("_kinds.py")]


def test_the_list_of_kinds_is_closed() -> None:
    """Every kind that is recorded is listed, and nothing is listed that no code names."""
    recorded = {kind for path in files() for kind in kinds_in(path)}
    named = {text for path in files() for text in literals(path)}
    assert len(recorded) > 80, "the search finds what is recorded"
    assert recorded - {*KINDS, *DETAILS} == set(), "kinds that are not listed in runtime/event_kinds.py"
    assert {*KINDS, *DETAILS} - named == set(), "kinds that nobody records"
    assert event_of("from.the-future") == OTHER
    assert event_of("spoilt") == OTHER, "journals of older clusters have such kinds"


def test_a_kind_is_a_subject_and_a_past_participle() -> None:
    for kind, about in (KINDS | DETAILS).items():
        assert re.fullmatch(FORM, kind), kind
        assert len(kind) <= 20, f"{kind} is wider than its column in `shoal attach`"
        assert not about.endswith("."), f"{kind} has a noun phrase"
    assert not set(KINDS) & set(DETAILS)


def test_what_an_event_is_about() -> None:
    assert device_of("device.lost", "attic: silent for 12 s") == "attic"
    assert device_of("device.released", "pi-3.local is drained") == "pi-3.local"
    assert device_of("job.failed", "attic: out of memory") == ""
    assert level_of("job.failed") == logging.ERROR
    assert level_of("device.lost") == logging.WARNING
    assert level_of("topology.changed") == logging.INFO
    assert level_of("worker.lost") == logging.DEBUG


def test_an_event_that_the_manager_records_itself_is_not_in_the_journal(tmp_path: Path) -> None:
    with Registry(tmp_path / "registry.sqlite") as registry:
        journal = Journal(registry)
        journal.add("job-1", "worker.lost", "attic: silent for 12 s")
        journal.add("job-1", "device.lost", "attic: silent for 12 s")
        journal.flush()
        assert [(e.seq, e.kind) for e in registry.events_after("job-1", 0, limit=10)] == [(1, "device.lost")]


# The journal's numbers -----------------------------------------------------------------------------------------


def test_a_line_tells_the_number_that_the_journal_keeps(tmp_path: Path, stream: io.StringIO) -> None:
    log_lines.set_up(quiet=False, given="json", stream=stream)
    heard: list[JournalEvent] = []
    with Registry(tmp_path / "registry.sqlite") as registry:
        registry.add_events("job-1", [(1.0, "job.started", "before this manager began")])
        journal = Journal(registry)
        journal.on_event = heard.append
        journal.add("job-1", "device.joined", "attic ready")
        journal.add("", "node", "attic connected")
        journal.add("job-1", "lease.expired", "lease 3 of attic: no update in 2.0 s")
        journal.flush()
        journal.add("job-1", "epoch.done", "epoch 1: version 12")
        journal.flush()
        kept = {(e.seq, e.kind) for e in registry.events_after("job-1", 0, limit=10)}
        assert [e.seq for e in registry.events_after("cluster", 0, limit=10)] == [1]
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {(line["seq"], line["event"]) for line in told if line.get("job")} | {(1, "job.started")} == kept
    assert {(e.seq, e.kind) for e in heard if e.job} == kept - {(1, "job.started")}
    assert (told[2]["lease"], told[3]["version"]) == (3, 12)


def test_events_that_could_not_be_written_leave_a_gap_and_no_number_twice(tmp_path: Path) -> None:
    with Registry(tmp_path / "registry.sqlite") as registry:
        journal = Journal(registry)
        whole = registry.add_events
        registry.add_events = lambda *a, **k: (_ for _ in ()).throw(OSError("the disk is full"))  # type: ignore
        journal.add("job-1", "job.started", "one")
        journal.flush()
        registry.add_events = whole  # type: ignore[method-assign]
        journal.add("job-1", "device.joined", "two")
        journal.flush()
        assert [(e.seq, e.text) for e in registry.events_after("job-1", 0, limit=10)] == [(2, "two")]

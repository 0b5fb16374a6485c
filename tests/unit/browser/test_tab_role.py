"""The tab's role against Python's: recorded lives, played again in Node. And its numbers, bit for bit."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import ShoalError
from shoal.plan import Plan, Until
from shoal.scheduling.batches import epoch_order, mix
from shoal.trainer.portable.draws import Drawn
from shoal.wire.encoding import to_json
from shoal.wire.frames import frames, read_message
from shoal.wire.messages import Ready, Update, Work

ROOT = Path(__file__).parents[3]
TAB = ROOT / "tab"
LIVES = 10_000

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("node") is None, reason="no Node on this machine"),
    pytest.mark.skipif(
        not (TAB / "node_modules").is_dir(), reason="the tab's tools are not here: python tools/tasks.py tab"
    ),
]


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    """As the sources are now, whatever lies there."""
    subprocess.run(["node", "build.mjs", str(tmp_path_factory.mktemp("tab"))], cwd=TAB, check=True, timeout=300)


def in_node(script: str) -> object:
    told = subprocess.run(
        ["node", "--input-type=module", "-e", script], cwd=TAB, check=True, capture_output=True, text=True, timeout=300
    )
    return json.loads(told.stdout)


@pytest.mark.parametrize("lives", [LIVES // 10, pytest.param(LIVES, marks=pytest.mark.full)])
def test_ten_thousand_lives_are_decided_alike(tmp_path: Path, lives: int) -> None:
    recorded = tmp_path / "lives.jsonl"
    with recorded.open("w") as file:
        tool = [sys.executable, str(ROOT / "tools" / "tab_traces.py"), "--count", str(lives)]
        subprocess.run(tool, stdout=file, check=True, timeout=600)
    played = subprocess.run(["node", "test/traces.mjs", str(recorded)], cwd=TAB, capture_output=True, text=True)
    counts = json.loads(played.stdout)
    assert counts["differences"] == 0, played.stderr[:4000]
    assert counts["traces"] == lives
    assert counts["actions"] > 5 * lives


def test_a_tab_knows_which_plans_stay_in_step() -> None:
    """An update of a leader that is gone is in the history of the next one if its version was made: only in step."""
    bound = {"clip_update": 1.0, "cohort": 2, "workers_min": 8, "epoch_leases": 12, "until": Until(epochs=4)}
    others = [{"trust": trust} for trust in ("identity", "robust", "robust(clip)", "robust(nearest, 20%)")]
    choices = [*others, {"trust": "private(8)"} | bound, {"trust": "private(8, 1e-4)"} | bound]
    plans = []
    for pace, choice in itertools.product(("sync", "buffered", "async", "auto"), choices):
        # There is no plan for some of them, such as noise at a pace whose versions have any number of devices.
        with contextlib.suppress(ShoalError):
            plans.append(Plan(data="local", pace=pace, worker_momentum=0.0, **choice))
    assert len(plans) > 2 * len(choices)
    told = [to_json(plan) for plan in plans]
    script = f"""
import {{ Worker }} from "./built/worker_role.mjs";
const model = Float32Array.of(1);
const numbers = {{ durable_version: 0, epoch: 0, batches: [1], deadline_s: 9, examples: 1, rate: 0 }};
const work = {{ job: "job-1", kind: "train", credit: true, ...numbers }};
console.log(JSON.stringify({json.dumps(told)}.map((plan) => {{
  const worker = new Worker("job-1", "manager", 1, plan);
  const hear = (event, told) => worker.handle({{ event, ...told }});
  const lend = (term, version) => {{
    const body = {{ ...work, term, lease: term, version, began: version }};
    return hear("Received", {{ kind: "Work", tensors: {{ model }}, body }});
  }};
  hear("Started");
  hear("Prepared", {{ has_own: true }});
  hear("Connected", {{ node: "manager" }});
  lend(1, 0);
  hear("Trained", {{ lease: 1, examples: 1, loss_sum: 1, seconds: 1, tensors: {{ delta: model }} }});
  hear("Participated", {{ term: 1, version: 0, lease: 1 }});
  hear("Disconnected", {{ node: "manager" }});
  return lend(2, 1).find(({{ action }}) => action === "SettleOwn").taken;
}})));
"""
    assert in_node(script) == [plan.paces == ("sync",) for plan in plans]


def test_batches_hold_the_same_examples() -> None:
    script = (
        'import { epochOrder, mix } from "./built/batches.mjs";'
        "console.log(JSON.stringify({ order: [...epochOrder(1000, 7, 3)], mixed: String(mix(5, -1, 2n ** 63n)) }))"
    )
    assert in_node(script) == {
        "order": epoch_order(1000, seed=7, epoch=3).tolist(),
        "mixed": str(mix(5, -1, 1 << 63)),
    }


@pytest.mark.parametrize("kind", ["uniform", "integers", "permutation", "normal"])
def test_graphs_draw_the_same_numbers(kind: str) -> None:
    draw = Drawn(name="d", kind=kind, shape=((2, 1),), low=-3, high=9)
    told = {"name": "d", "kind": kind, "shape": [[2, 1]], "low": -3, "high": 9}
    seed = mix(1, 2, 3)
    script = (
        'import { drawAll } from "./built/batches.mjs";'
        f"const made = drawAll([{json.dumps(told)}], 20, {seed}n).d;"
        "console.log(JSON.stringify([...made.data].map(Number)))"
    )
    expected = draw.draw(20, seed)
    found = np.array(in_node(script))
    # Cosines and logarithms of two libraries may differ in the last bit.
    assert np.allclose(found, expected, rtol=1e-6 if kind == "normal" else 0, atol=1e-6 if kind == "normal" else 0)


@pytest.mark.parametrize(
    "choices",
    [
        {"trust": "private(60, 1e-4)", "cohort": 3, "workers_min": 3, "epoch_leases": 30, "participations": 40},
        {"trust": "private(2)", "cohort": 2, "workers_min": 8, "epoch_leases": 100},
        {"trust": "private(0.5, 1e-6)", "pace": "async", "workers_min": 2, "epoch_leases": 10},
    ],
)
def test_a_tab_counts_its_privacy_as_python_does(choices: dict[str, Any]) -> None:
    plan = Plan(data="local", clip_update=1.5, until=Until(epochs=4), **choices)
    privacy = plan.privacy
    assert privacy is not None
    counts = [[1], [1, 2], [privacy.participations]]
    script = f"""
import {{ epsilonOf, privacyOf, spentOf }} from "./built/privacy.mjs";
const privacy = privacyOf({json.dumps(to_json(plan))});
const spent = {json.dumps(counts)}.map((counts) => spentOf(privacy, counts));
const {{ clip, participations, apart, versions }} = privacy;
const epsilons = spent.map((ratio) => epsilonOf(privacy, ratio));
console.log(JSON.stringify([clip, participations, apart, versions, ...spent, ...epsilons]));
"""
    spent = [privacy.spent(each) for each in counts]
    expected = [privacy.clip, privacy.participations, privacy.apart, privacy.versions]
    assert in_node(script) == pytest.approx([*expected, *spent, *map(privacy.epsilon_of, spent)], rel=1e-9)


def test_frames_are_read_and_written_alike(tmp_path: Path) -> None:
    model = np.arange(600_000, dtype=np.float32)
    work = Work(job="j", term=3, lease=9, kind="train", version=4, batches=(5, 300, 0), deadline_s=2.5, credit=True,
                tensors={"model": model})  # fmt: skip
    (tmp_path / "in").write_bytes(b"".join(len(f).to_bytes(4, "big") + f for f in frames(work)))
    script = f"""
import {{ readFileSync, writeFileSync }} from "node:fs";
import {{ Assembly, frames }} from "./built/frames.mjs";
const raw = readFileSync({json.dumps(str(tmp_path / "in"))}), assembly = new Assembly();
let message = null;
for (let at = 0; at < raw.length;) {{
  const size = raw.readUInt32BE(at);
  message = assembly.take(new Uint8Array(raw.subarray(at + 4, at + 4 + size)));
  at += 4 + size;
}}
const body = {{ job: "j", term: 3, lease: 9, version: 4, examples: 12, loss_sum: -1.5, train_s: 0.25 }};
const update = frames("Update", body, {{ delta: message.tensors.model.map((v) => -v) }});
const parts = [...update, ...frames("Ready", {{ job: "j", holds_version: -1 }})];
writeFileSync({json.dumps(str(tmp_path / "out"))}, Buffer.concat(parts.map((part) => {{
  const head = Buffer.alloc(4);
  head.writeUInt32BE(part.length);
  return Buffer.concat([head, part]);
}})));
console.log(JSON.stringify(message.body));
"""
    said = in_node(script)
    assert isinstance(said, dict)
    assert (said["lease"], said["batches"], said["deadline_s"], said["credit"]) == (9, [5, 300, 0], 2.5, True)
    raw, out = (tmp_path / "out").read_bytes(), []
    while raw:
        size = int.from_bytes(raw[:4], "big")
        out.append(raw[4 : 4 + size])
        raw = raw[4 + size :]
    update, ready = read_message(iter(out[:-1])), read_message(iter(out[-1:]))
    assert isinstance(update, Update)
    assert (update.term, update.examples, update.loss_sum, update.train_s) == (3, 12, -1.5, 0.25)
    assert np.array_equal(update.tensors["delta"], -model)
    assert ready == Ready(job="j", holds_version=-1)


def test_a_tab_rests_where_its_user_would_want_it() -> None:
    script = """
import { whyRest } from "./built/rest.mjs";
const usual = { isHidden: false, battery: 0.9, isCharging: false, isMetered: false };
const none = { hidden: false, battery: false, metered: false };
const why = (around, allowed) => Boolean(whyRest({ ...usual, ...around }, { ...none, ...allowed }));
console.log(JSON.stringify([
  why({}), why({ isHidden: true }), why({ isHidden: true }, { hidden: true }), why({ battery: 0.1 }),
  why({ battery: 0.1, isCharging: true }), why({ battery: null }), why({ isMetered: true }),
  why({ isMetered: true }, { metered: true }),
]));
"""
    assert in_node(script) == [False, True, False, True, False, False, True, False]


def test_a_page_says_what_a_tab_does_as_a_person_would() -> None:
    script = """
import { inWords } from "./built/words.mjs";
const work = { batches: [3, 4], epoch: 0, version: 12 };
console.log(JSON.stringify([
  inWords("training", "version 12, 2 batch(es) of epoch 0", work), inWords("training", "", { ...work, batches: [3] }),
  inWords("evaluating", "", work), inWords("waiting", "every batch is lent", null), inWords("preparing", "x", null),
  inWords("waiting", "the update was sent; waiting for the next version", null),
]));
"""
    assert in_node(script) == [
        "2 batches of epoch 1",
        "1 batch of epoch 1",
        "trying version 12 on examples held out",
        "every batch is lent",
        "x",
        "sent; waiting for the next version",
    ]

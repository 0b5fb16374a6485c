"""Figure 6: a model of hourly updates against one of daily updates, and against no model at all.

Test, then train: each hour's posts are guessed by a model that has seen none of them, then learned from. Both models
get the same gradients of the same batches in the same order; one gets them at the end of each hour, the other at the
end of each day (UTC). Both know the tags of the last three days up to their last update.

The paper resets its models every two days. On the first of the two the daily model has then learned nothing yet, and
so the ratio over both days is large whatever the stream is like. It is given with resets, over both days and over the
second alone, and without resets, which is what a job in use would do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from papers.fleet import stream
from papers.fleet.stream import DAY_HOURS, Post, Stream
from papers.fleet.tagger import ANSWERS, Tagger, f1
from papers.harness.rows import Row
from testbed.results import say

#: §3.1.
SHARD_DAYS = 2

#: A tag that nobody used for so long is forgotten.
REMEMBERED_HOURS = 3 * DAY_HOURS

#: Posts in a gradient.
BATCH = 16
RATES = (4.0, 8.0, 16.0)

#: Rates are chosen on these days and judged on those after them.
TUNING_DAYS = 30

#: Hours for which the most popular tags are taken as a guess.
WINDOWS = {"last hour": 1, "last 6 hours": 6, "last day": 24, "last week": 168}

Scores = dict[int, list[float]]


def run(quick: bool) -> list[Row]:
    if not stream.present():
        say(f"   skipped: SHOAL_DATA has no {'/'.join(stream.FILE)}")
        return []
    days, tuning_days = (12, 4) if quick else (None, TUNING_DAYS)
    whole = stream.read(days=days)
    rates = (8.0,) if quick else RATES
    rows: list[Row] = []
    for reset_days in (None, SHARD_DAYS):
        rows += models(whole, reset_days, rates=rates, tuning_days=tuning_days)
    rows += [*baselines(whole, first_hour=tuning_days * DAY_HOURS), about(whole)]
    return rows


def models(whole: Stream, reset_days: int | None, *, rates: Sequence[float], tuning_days: int) -> list[Row]:
    """Both paces, each with the rate that was best for it on the first days."""
    rows = []
    for pace in ("hourly", "daily"):
        tried = {}
        for rate in rates:
            if len(rates) > 1:
                told = play(whole, pace=pace, rate=rate, reset_days=reset_days, last_hour=tuning_days * DAY_HOURS)
                tried[rate] = mean_of(told[0])
        best = max(tried, key=lambda rate: tried[rate]) if tried else rates[0]
        scores, gradients = play(whole, pace=pace, rate=best, reset_days=reset_days)
        judged = {hour: found for hour, found in scores.items() if hour >= tuning_days * DAY_HOURS}
        second = {hour: found for hour, found in judged.items() if (hour // DAY_HOURS) % SHARD_DAYS == 1}
        rows.append(
            {
                "what": "model",
                "pace": pace,
                "reset_days": reset_days,
                "rate": best,
                "tried": {f"{rate:g}": round(value, 4) for rate, value in tried.items()},
                "f1": mean_of(judged),
                "f1_second_day": mean_of(second),
                "gradients": gradients,
                "by_day": by_day(scores),
            }
        )
        say(f"   {pace}, reset {reset_days}: rate {best:g}, F1@5 {rows[-1]['f1']:.4f}")
    return rows


def play(
    whole: Stream, *, pace: str, rate: float, reset_days: int | None = None, last_hour: int | None = None
) -> tuple[Scores, int]:
    """F1@5 of every post by hour, and how many gradients there were."""
    model = Tagger()
    waiting: list[list[Post]] = []
    scores: Scores = {}
    gradients = 0
    began = 0
    for hour in range(whole.hours if last_hour is None else min(last_hour, whole.hours)):
        if hour % DAY_HOURS == 0 and pace == "daily":
            gradients += learn_all(model, waiting, recent_tags(whole, began, hour), rate=rate)
            waiting = []
        if reset_days is not None and hour % (reset_days * DAY_HOURS) == 0:
            model, began = Tagger(), hour
        posts = whole.of_hour(hour)
        if not posts:
            continue
        scores[hour] = [f1(guessed, post.tags) for guessed, post in zip(model.guesses(posts), posts, strict=True)]
        batches = [posts[start : start + BATCH] for start in range(0, len(posts), BATCH)]
        if pace == "hourly":
            gradients += learn_all(model, batches, recent_tags(whole, began, hour + 1), rate=rate)
        else:
            waiting += batches
    return scores, gradients + len(waiting)


def learn_all(model: Tagger, batches: Sequence[list[Post]], tags: Iterable[int], *, rate: float) -> int:
    if batches:
        model.keep(tags)
    for batch in batches:
        model.learn(batch, rate=rate)
    return len(batches)


def recent_tags(whole: Stream, began: int, hour: int) -> set[int]:
    """Those of the hours before this one that are remembered."""
    first = whole.starts[max(began, hour - REMEMBERED_HOURS)]
    return set(chain.from_iterable(post.tags.tolist() for post in whole.posts[first : whole.starts[hour]]))


def baselines(whole: Stream, *, first_hour: int) -> list[Row]:
    """The most popular tags of the hours before: what the paper's baseline may have been, with a window."""
    used = [Counter(chain.from_iterable(p.tags.tolist() for p in whole.of_hour(h))) for h in range(whole.hours)]
    found: dict[str, list[float]] = defaultdict(list)
    for hour in range(first_hour, whole.hours):
        posts = whole.of_hour(hour)
        if not posts:
            continue
        midnight = hour - hour % DAY_HOURS
        windows = {name: (hour - hours, hour) for name, hours in WINDOWS.items()}
        # What a daily update could know, and the best that one list for all posts of an hour can do.
        windows |= {"yesterday": (midnight - DAY_HOURS, midnight), "this hour, known beforehand": (hour, hour + 1)}
        for name, (first, last) in windows.items():
            guess = popular(used[max(0, first) : last])
            found[name] += [f1(guess, post.tags) for post in posts]
    return [{"what": "popular", "window": name, "f1": float(np.mean(values))} for name, values in found.items()]


def popular(hours: Sequence[Counter[int]]) -> list[int]:
    """The most used; of as often used ones those that are older tags."""
    total: Counter[int] = Counter()
    for counted in hours:
        total.update(counted)
    return sorted(total, key=lambda tag: (-total[tag], tag))[:ANSWERS]


def about(whole: Stream) -> Row:
    """What of the stream is new: why a daily model is not far behind."""
    first_seen: dict[int, int] = {}
    fresh = uses = 0
    for post in whole.posts:
        for tag in post.tags.tolist():
            began = first_seen.setdefault(tag, post.hour)
            uses += 1
            # Since last midnight: no daily model can know it.
            fresh += began >= post.hour - post.hour % DAY_HOURS
    return {
        "what": "stream",
        "posts": len(whole.posts),
        "tags": whole.tags,
        "hours": whole.hours,
        "posts_an_hour": len(whole.posts) / whole.hours,
        "uses_of_tags_first_seen_today": fresh / uses,
    }


def mean_of(scores: Scores) -> float:
    return float(np.mean([value for found in scores.values() for value in found]))


def by_day(scores: Scores) -> list[float]:
    days: dict[int, list[float]] = defaultdict(list)
    for hour, found in scores.items():
        days[hour // DAY_HOURS] += found
    return [round(float(np.mean(days[day])), 4) if day in days else 0.0 for day in range(max(days) + 1)]

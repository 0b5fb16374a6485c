"""The stream of posts with hashtags: features of each without its tags, hour by hour. Numpy only; learns nothing."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.data.files import data_dir

FILE = ("hashtags", "hashtag_stream_2020H1.jsonl.gz")

HOUR_S = 3600
DAY_HOURS = 24

#: Words are hashed to so many features, authors to so many more; the last feature is always 1.
WORDS = 2048
AUTHORS = 1024
FEATURES = WORDS + AUTHORS + 1

#: Links, names and the tags themselves: what is to be guessed is not shown.
_HIDDEN = re.compile(r"https?://\S+|[#@]\S+")
_WORD = re.compile(r"[a-z']{3,}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Post:
    hour: int
    #: Features that are not 0, ascending, and their values.
    features: np.ndarray
    values: np.ndarray
    #: Numbers of its tags, in the order in which tags first came.
    tags: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    posts: list[Post]
    #: Posts of hour h are ``posts[starts[h]:starts[h + 1]]``; hour 0 begins a day (UTC).
    starts: np.ndarray
    tags: int

    @property
    def hours(self) -> int:
        return len(self.starts) - 1

    def of_hour(self, hour: int) -> list[Post]:
        return self.posts[self.starts[hour] : self.starts[hour + 1]]


def present() -> bool:
    return data_dir().joinpath(*FILE).exists()


def read(*, days: int | None = None, with_author: bool = True) -> Stream:
    """The whole stream, or its first days."""
    with gzip.open(data_dir().joinpath(*FILE), "rt") as lines:
        return built(_until(map(json.loads, lines), days), with_author=with_author)


def _until(rows: Iterable[dict[str, Any]], days: int | None) -> Iterator[dict[str, Any]]:
    end_s = None
    for row in rows:
        if end_s is None:
            end_s = _day_of(row["ts"]) + days * DAY_HOURS * HOUR_S if days is not None else float("inf")
        if row["ts"] >= end_s:
            return
        yield row


def built(rows: Iterable[dict[str, Any]], *, with_author: bool = True) -> Stream:
    """Rows in the order of time, each {ts, user, text, tags}."""
    known: dict[str, int] = {}
    posts: list[Post] = []
    began_s = None
    for row in rows:
        began_s = _day_of(row["ts"]) if began_s is None else began_s
        features, values = features_of(row["text"], row["user"] if with_author else None)
        tags = sorted({known.setdefault(tag, len(known)) for tag in row["tags"]})
        hour = (row["ts"] - began_s) // HOUR_S
        posts.append(Post(hour=hour, features=features, values=values, tags=np.array(tags)))
    hours = np.array([post.hour for post in posts])
    return Stream(posts=posts, starts=np.searchsorted(hours, np.arange(hours[-1] + 2)), tags=len(known))


def features_of(text: str, author: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Each word that occurs weighs 1/√words, so that a long post is no louder than a short one."""
    words = {zlib.crc32(word.encode()) % WORDS for word in _WORD.findall(_HIDDEN.sub(" ", text.lower()))}
    features = sorted(words)
    values = [len(words) ** -0.5] * len(words) if words else []
    if author is not None:
        features.append(WORDS + author % AUTHORS)
        values.append(1.0)
    return np.array([*features, FEATURES - 1]), np.array([*values, 1.0], dtype=np.float32)


def _day_of(time_s: int) -> int:
    return time_s - time_s % (DAY_HOURS * HOUR_S)

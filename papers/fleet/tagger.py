"""Guesses the hashtags of a post: one linear softmax over the tags of the last days. Numpy only; knows no clock.

Small enough for a phone, and quick to learn: the paper's network is recurrent and about as large for each tag.
A tag that nobody used for a while loses its place and is forgotten, so that the model stays small in a long stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from papers.fleet.stream import FEATURES, Post

#: A model answers with so many tags (F1@5).
ANSWERS = 5


class Tagger:
    def __init__(self) -> None:
        #: A row a feature, a column a place; few columns, so that rows lie together in memory.
        self._weights = np.zeros((FEATURES, 256), dtype=np.float32)
        self._place: dict[int, int] = {}
        self._free: list[int] = list(range(255, -1, -1))
        self._learned = False

    @property
    def tags(self) -> int:
        return len(self._place)

    def keep(self, tags: Iterable[int]) -> None:
        """These tags have places; all others lose theirs."""
        wanted = set(tags)
        for tag in sorted(set(self._place) - wanted):
            place = self._place.pop(tag)
            self._weights[:, place] = 0.0
            self._free.append(place)
        for tag in sorted(wanted - set(self._place)):
            if not self._free:
                width = self._weights.shape[1]
                self._weights = np.concatenate([self._weights, np.zeros_like(self._weights)], axis=1)
                self._free = list(range(2 * width - 1, width - 1, -1))
            self._place[tag] = self._free.pop()

    def learn(self, posts: Sequence[Post], *, rate: float) -> None:
        """One gradient of the mean cross-entropy; a post's tags share its target."""
        self._learned = True
        features, values = _matrix(posts)
        rows = self._weights[features]
        chances = self._masked(values @ rows)
        chances -= chances.max(axis=1, keepdims=True)
        np.exp(chances, out=chances)
        chances /= chances.sum(axis=1, keepdims=True)
        for number, post in enumerate(posts):
            for tag in post.tags:
                chances[number, self._place[int(tag)]] -= 1 / len(post.tags)
        self._weights[features] = rows - np.float32(rate / len(posts)) * (values.T @ chances)

    def guesses(self, posts: Sequence[Post]) -> list[list[int]]:
        """The tags with the largest values; none by a model that has learned nothing."""
        if not self._learned:
            return [[] for _ in posts]
        features, values = _matrix(posts)
        scores = self._masked(values @ self._weights[features])
        tag_at = {place: tag for tag, place in self._place.items()}
        count = min(ANSWERS, len(self._place))
        best = np.argpartition(-scores, count - 1, axis=1)[:, :count]
        return [[tag_at[int(place)] for place in row] for row in best]

    def _masked(self, scores: np.ndarray) -> np.ndarray:
        """Places without a tag are never chosen and take no chance from those with one."""
        scores[:, self._free] = -np.inf
        return scores


def _matrix(posts: Sequence[Post]) -> tuple[np.ndarray, np.ndarray]:
    """The features that occur at all, and a row of their values for each post."""
    features = np.unique(np.concatenate([post.features for post in posts]))
    values = np.zeros((len(posts), len(features)), dtype=np.float32)
    for number, post in enumerate(posts):
        values[number, np.searchsorted(features, post.features)] = post.values
    return features, values


def f1(guessed: Sequence[int], tags: np.ndarray) -> float:
    """F1@5 of one post: 2·hits / (5 + tags), whether or not five were guessed."""
    hits = len(set(guessed) & {int(tag) for tag in tags})
    return 2 * hits / (ANSWERS + len(tags))

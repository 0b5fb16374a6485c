"""Which answers of a plan go together: the tables of docs/plan.md and the figures of ``house``, from the rules.

It asks the plan about every combination of answers, with companions that they cannot do without, and finds for each
pair of answers that no plan has the rules that refuse it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.plan_rules.rule import PlanRule

#: Between these lines of the page, tables are written.
BEGIN = "<!-- made from src/shoal/plan_rules by `python tools/tasks.py reference`: begin -->"
END = "<!-- end -->"

#: Codecs and trust are texts: these stand for all that behave alike.
CODECS = ("dense", "bf16", "top1%+ef+4bit", "int16", "led5%+ef")
TRUSTS = (
    "identity",
    "robust",
    "robust(clip)",
    "sealed",
    "sealed(8, helper=node)",
    "private(8, 1e-5)",
    "sealed + private(8, 1e-5)",
    "robust(clip) + sealed",
)

#: The reason for a pair is made of rules about these keys. Rules about other keys ask for companions.
_KEYS = frozenset({"data", "topology", "pace", "codec", "codec_down", "work", "trust"})

#: The most rules that together refuse a pair.
_RULES_MOST = 3

Answer = tuple[str, str]
Pair = tuple[Answer, Answer]


@dataclass(frozen=True, slots=True)
class Survey:
    """What the plan says to every combination of answers."""

    #: The rules that each combination breaks, by name; empty if it runs.
    broken: dict[tuple[Answer, ...], frozenset[str]]
    #: For each pair that no plan has: the fewest rules of which every plan with this pair breaks one.
    reasons: dict[Pair, tuple[str, ...]]

    @property
    def runs(self) -> int:
        return sum(not names for names in self.broken.values())

    @property
    def without_reason(self) -> list[Pair]:
        return [pair for pair, names in self.reasons.items() if not names]


@functools.cache
def questions() -> dict[str, tuple[str, ...]]:
    """Return the six questions, each with its answers."""
    from shoal.plan import CHOICES

    order = ("data", "topology", "pace", "codec", "work", "trust")
    every = CHOICES | {"codec": CODECS, "trust": TRUSTS}
    return {question: every[question] for question in order}


def companions(answers: Mapping[str, str]) -> dict[str, Any]:
    """Return what answers cannot do without: a budget, a clip, a cohort, and 20 to 40 workers."""
    from shoal.plan import Until

    trust = answers["trust"]
    values: dict[str, Any] = {"workers_min": 20, "workers_max": 40, "epoch_leases": 200, "until": Until(epochs=3)}
    if answers["work"] == "sized":
        values["budget_s"] = 2.0
    if "private" in trust or trust == "robust(clip) + sealed":
        values["clip_update"] = 0.5
    if "private" in trust and answers["pace"] in ("sync", "auto"):
        values["cohort"] = 10
    return values


@functools.cache
def survey() -> Survey:
    """Ask the plan about every combination."""
    every = [[(question, answer) for answer in answers] for question, answers in questions().items()]
    broken = {combination: _broken(dict(combination)) for combination in itertools.product(*every)}
    having: defaultdict[Pair, list[frozenset[str]]] = defaultdict(list)
    for combination, names in broken.items():
        for pair in itertools.combinations(combination, 2):
            having[pair].append(names)
    return Survey(broken, {pair: _reason(found) for pair, found in having.items() if all(found)})


def _broken(answers: dict[str, str]) -> frozenset[str]:
    from shoal.plan import Plan
    from shoal.plan_rules.rule import PlanRefused

    values: dict[str, Any] = companions(answers) | answers
    try:
        Plan(**values)
    except PlanRefused as refused:
        return frozenset(rule.name for rule in refused.rules)
    return frozenset()


def _reason(refused: list[frozenset[str]]) -> tuple[str, ...]:
    """Return the fewest rules of which each of these combinations breaks one, or nothing if there are none."""
    rules = _rules()
    names = [name for name, rule in rules.items() if _KEYS.issuperset(rule.keys)]
    breaks = {name: sum(1 << place for place, found in enumerate(refused) if name in found) for name in names}
    all_of_them = (1 << len(refused)) - 1
    for count in range(1, _RULES_MOST + 1):
        for some in itertools.combinations([name for name in names if breaks[name]], count):
            if functools.reduce(int.__or__, (breaks[name] for name in some)) == all_of_them:
                return some
    return ()


def _rules() -> dict[str, PlanRule]:
    from shoal.plan_rules.table import RULES

    return {rule.name: rule for rule in RULES}


def figures() -> dict[str, int]:
    """Return how large the table is, and how much of the house's grid runs."""
    from shoal.plan import Plan

    found = survey()
    return {
        "plan_rows": len(_rules()),
        "plan_keys": len(dataclasses.fields(Plan)),
        "plan_combinations_of_6400": found.runs,
        "plan_pairs_without_reason": len(found.without_reason),
    }


# The page -----------------------------------------------------------------------------------------------------


def replaced(page: str) -> str:
    """Return the page with its tables written anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{written()}\n{END}{after}"


def written() -> str:
    """Return the tables: which answers go together, and every rule."""
    found, rules = survey(), _rules()
    numbers = {name: number for number, name in enumerate(rules, start=1)}
    pairs = sum(len(one) * len(other) for one, other in itertools.combinations(questions().values(), 2))
    lines = [
        f"Of {pairs} pairs of answers {pairs - len(found.reasons)} can be in one plan, and {len(found.reasons)} cannot."
        f" The six questions have {len(found.broken):,} combinations of answers, and {found.runs} of them run.",
        "",
        "A cell is empty if some plan has both answers. Otherwise it has the numbers of the rules that refuse them. If"
        " it has several, every plan with both answers breaks at least one.",
        "",
    ]
    order = list(questions())
    for place in range(len(order) - 1, 0, -1):
        lines += [*_matrix(order[place], order[:place], found, numbers), ""]
    lines += [
        "Every rule follows. Where a refusal shows a figure of the plan, the table shows the name of the figure.",
        "",
        "| | keys | why they do not go together | what to do | reason |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {numbers[name]} | {', '.join(f'`{key}`' for key in rule.keys)} | {_cell(rule.why)} | {_cell(rule.instead)}"
        f" | {rule.ground}{'; new jobs only' if rule.new_jobs_only else ''} |"
        for name, rule in rules.items()
    ]
    return "\n".join([*lines, ""])


def _matrix(question: str, others: list[str], found: Survey, numbers: dict[str, int]) -> list[str]:
    across = [(other, answer) for other in others for answer in questions()[other]]
    lines = [
        f"| {question} | {' | '.join(f'{other}<br>`{answer}`' for other, answer in across)} |",
        "|---" * (len(across) + 1) + "|",
    ]
    for answer in questions()[question]:
        told = [found.reasons.get((each, (question, answer)), ()) for each in across]
        cells = " | ".join(", ".join(str(numbers[name]) for name in names) for names in told)
        lines.append(f"| `{answer}` | {cells} |")
    return lines


def _cell(text: str) -> str:
    """Return a text of a rule with the names of its figures."""
    shown = re.sub(r"\{plan\.(?:\w+\.)*(\w+)\}", r"`\1`", text)
    return (shown[:1].upper() + shown[1:]).replace("|", "\\|")

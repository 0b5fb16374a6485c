"""Notes of two people who do not exist, a file a device: `python examples/lora_notes/notes.py OUT`.

A device has a `notes.jsonl` in its --data folder: {"text": "..."} on each line, new ones last.
"""

import argparse
import json
from pathlib import Path

import numpy as np

#: Each writes in a manner of their own: what is done, to what, and what they think of it.
AUTHORS = {
    "gardener": {
        "day": ("this morning", "before the rain", "late in the day", "after the frost", "at first light"),
        "did": ("watered", "pruned", "sowed", "weeded", "picked", "covered with straw"),
        "what": ("the beans", "the old pear tree", "two rows of leeks", "the roses by the wall", "the tomatoes"),
        "then": ("and saw a wren", "and it was about time", "though the soil is dry", "and my back knows it"),
        "form": "{day} i {did} {what}, {then}.",
    },
    "boatwright": {
        "day": ("Mon", "Tue", "Wed", "Thu", "Fri"),
        "did": ("Planed", "Caulked", "Riveted", "Sanded", "Varnished", "Measured twice"),
        "what": ("the garboard", "port planks 3 to 5", "the keel", "the new thwart", "the stem"),
        "then": ("2 h. Oak is wet.", "half a day. Clamps short.", "done. Next: ribs.", "not true yet. Again."),
        "form": "{day}: {did} {what}, {then}",
    },
}


def written(author, count, *, seed):
    """So many notes of an author."""
    words = AUTHORS[author]
    chance = np.random.default_rng([seed + 1, *author.encode()])
    drawn = ({part: chance.choice(words[part]) for part in ("day", "did", "what", "then")} for _ in range(count))
    return [words["form"].format(**each) for each in drawn]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--notes", type=int, default=400, help="of each author")
    given = parser.parse_args()
    for number, author in enumerate(AUTHORS):
        folder = given.out / f"device-{number + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"text": text}) + "\n" for text in written(author, given.notes, seed=number)]
        (folder / "notes.jsonl").write_text("".join(lines))
        print(f"{folder}: {len(lines)} notes of the {author}, such as: {json.loads(lines[0])['text']}")


if __name__ == "__main__":
    main()

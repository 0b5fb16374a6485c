"""A round in which a worker is lost, and a sealed sum: pictures of what happens, in order."""

from __future__ import annotations

from pictures_canvas import Canvas


def round_() -> str:
    """Draw a round: leases out, updates in, and the lease of a lost worker given to another."""
    canvas = Canvas(
        780,
        436,
        title="A round, with a failure",
        says="The leader leases batches to three workers. One is lost, and another worker gets its lease. The leader"
        " sums the updates and makes the next version.",
    )
    canvas.labelled(290, 22, 200, 56, "Leader", "version v of the model", kind="strong")
    for x, name, work in ((40, "Worker 1", "trains batches 12, 13"), (300, "Worker 2", "trains batches 14, 15")):
        canvas.labelled(x, 168, 180, 58, name, work)
    canvas.labelled(560, 168, 180, 58, "Worker 3", "lost, with batches 16, 17", kind="lost")
    canvas.path([(310, 80), (150, 166)], tip=True)
    canvas.path([(390, 80), (390, 166)], tip=True)
    canvas.path([(470, 80), (640, 166)], "cut")
    canvas.lines(196, 96, ["1 lease: version,", "batches, deadline"], size=12, at="end")
    canvas.lines(590, 96, ["2 no answer:", "the lease expires"], "warn", size=12)
    canvas.path([(560, 214), (482, 214)], "cut", tip=True)
    canvas.text(500, 250, "3 batches 16, 17 go to another worker", "warn", size=12)
    canvas.path([(130, 228), (270, 298)], tip=True)
    canvas.path([(390, 228), (390, 298)], tip=True)
    canvas.text(182, 276, "4 updates", "dim", size=12, at="end")
    canvas.labelled(240, 300, 300, 40, "The sum: each batch once")
    canvas.path([(390, 342), (390, 364)], tip=True)
    canvas.labelled(240, 366, 300, 50, "Leader", "5 steps to version v + 1, and saves it", kind="strong")
    canvas.path([(540, 391), (762, 391), (762, 50), (492, 50)], tip=True)
    canvas.text(754, 382, "next round", "dim", size=12, at="end")
    return canvas.written()


def sealed() -> str:
    """Draw how masks hide each update and cancel in the sum."""
    canvas = Canvas(
        780,
        388,
        title="A sealed sum",
        says="Three devices add masks to their updates. Each mask is added by one device and subtracted by another, so"
        " that the leader sees only the sum.",
    )
    canvas.text(24, 34, "A sealed sum: masks hide each update and cancel when all are added", bold=True, size=16)
    canvas.text(24, 54, "Drawn with 3 devices and one number each; a real sum has at least 8 devices", "dim", size=12)
    rows = (
        ("Device 1", "5", "+ 71  (with 2)  + 38  (with 3)", "114"),
        ("Device 2", "2", "- 71  (with 1)  + 64  (with 3)", "-5"),
        ("Device 3", "8", "- 38  (with 1)  - 64  (with 2)", "-94"),
    )
    for place, (name, update, masks, sent) in enumerate(rows):
        y = 84 + place * 68
        canvas.labelled(24, y, 110, 48, name, f"update: {update}")
        canvas.path([(136, y + 24), (162, y + 24)], tip=True)
        canvas.box(164, y, 246, 48, "plain")
        canvas.text(287, y + 20, masks, "c2", size=13, at="middle")
        canvas.text(287, y + 38, "masks that a pair of devices shares", "dim", size=11, at="middle")
        canvas.path([(412, y + 24), (438, y + 24)], tip=True)
        canvas.labelled(440, y, 100, 48, sent, "sent")
        canvas.path([(542, y + 24), (590, 152 + 24 * place)], tip=True)
    canvas.labelled(592, 128, 164, 96, "Leader", "114 - 5 - 94", "= 15 = 5 + 2 + 8", kind="strong")
    canvas.text(668, 246, "sees three masked numbers", "dim", size=12, at="middle")
    canvas.text(668, 262, "and their sum", "dim", size=12, at="middle")
    canvas.path([(24, 300), (756, 300)], "hair")
    canvas.lines(
        24,
        324,
        [
            "If a device is lost after it sent, the others give the leader what it needs to open the sum without it.",
            "Each device also adds a mask of its own. The leader can take it off only for the devices in the sum.",
            "The numbers are small here. Real ones are random and fill their whole range, so one alone shows nothing.",
        ],
        "dim",
        size=13,
    )
    return canvas.written()

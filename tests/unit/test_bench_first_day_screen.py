"""What the cases of the first day's screens call held: a green tick, a wide page or a wrong command is not."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.first_day_console import (
    REASON,
    SCREENS,
    Shown,
    judge_failing,
    judge_models,
    judge_phone,
    judge_two_jobs,
)
from benchmarks.first_day_kit import NotHeld
from benchmarks.first_day_screen import relative_links

WELL = Shown(
    mark="✕",
    headline=f"sensors fails on all 2 of its devices: RuntimeError: {REASON}, at sensors.py:21. `shoal jobs stop s-1`",
    lines=("✓clouds is at 77 %", "✕sensors fails on all 2 of its devices"),
    rows=("device-1x86_64, 2 coresclouds", "device-2x86_64, 2 coresclouds", "device-3x86_64, 2 coressensors"),
    drawn="device-1manager1 kB/sdevice-2manager1 kB/s",
    models_class="sentence tone-plain",
    models_commands=("shoal model publish clouds-1",),
    job="clouds-1",
    widths={(screen, theme): (390, 376) for screen in SCREENS for theme in ("light", "dark")},
    errors=(),
)


def changed(**values: object) -> Shown:
    return dataclasses.replace(WELL, **values)  # type: ignore[arg-type]


def test_what_a_person_should_see_is_held() -> None:
    assert judge_failing(WELL) == WELL.headline
    assert judge_two_jobs(WELL) == "✓clouds is at 77 % / ✕sensors fails on all 2 of its devices"
    assert judge_models(WELL) == "sentence tone-plain; shoal model publish clouds-1"
    assert judge_phone(WELL, "job") == "light 390 px, dark 390 px"


@pytest.mark.parametrize("values", [{"mark": "✓"}, {"headline": "4 devices are alive; sensors fails"}])
def test_a_headline_that_hides_what_fails_is_not_held(values: dict[str, object]) -> None:
    with pytest.raises(NotHeld):
        judge_failing(changed(**values))


@pytest.mark.parametrize("values", [{"lines": ()}, {"rows": WELL.rows[1:]}, {"drawn": "device-1manager"}])
def test_a_job_or_a_device_without_its_line_is_not_held(values: dict[str, object]) -> None:
    with pytest.raises(NotHeld):
        judge_two_jobs(changed(**values))


def test_a_page_wider_than_the_phone_is_not_held() -> None:
    with pytest.raises(NotHeld, match="438 pixels wide on a phone of 390"):
        judge_phone(changed(widths=WELL.widths | {("job", "dark"): (438, 376)}), "job")
    with pytest.raises(NotHeld, match="the last button ends at 424"):
        judge_phone(changed(widths=WELL.widths | {("job", "light"): (390, 424)}), "job")


def test_a_warning_or_another_act_on_the_models_screen_is_not_held() -> None:
    with pytest.raises(NotHeld, match="a warning"):
        judge_models(changed(models_class="sentence tone-attention"))
    with pytest.raises(NotHeld, match="rollback"):
        judge_models(changed(models_commands=("shoal model rollback clouds-1 --to VERSION",)))


def test_relative_links_are_found() -> None:
    page = "![a picture](docs/a.svg) [there](https://x.example/a) [below](#b) [a page](docs/b.md)"
    assert relative_links(page) == ["docs/a.svg", "docs/b.md"]

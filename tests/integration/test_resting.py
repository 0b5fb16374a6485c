"""A board that does other work: too warm, it gives its lease back and says why; cooler, it comes back by itself."""

from __future__ import annotations

from pathlib import Path

from kit import TALLY, Site, cluster_in, run


def warmth(folder: Path, degrees: float) -> None:
    """What the system of the devices tells of its processor."""
    zone = folder / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True, exist_ok=True)
    (zone / "type").write_text("cpu-thermal\n")
    draft = zone / "draft"
    draft.write_text(f"{round(degrees * 1000)}\n")
    draft.replace(zone / "temp")


async def reason_of(site: Site, name: str) -> str:
    nodes = (await site.operator.status()).nodes
    return next(node.reason for node in nodes if node.node == name)


def test_a_warm_board_rests_says_why_and_comes_back(tmp_path: Path) -> None:
    sensors = tmp_path / "sensors"
    warmth(sensors, 50)
    options = (*TALLY, "--max-temperature", "70", "--sensors-root", str(sensors))

    async def story() -> None:
        async with cluster_in(tmp_path, workers=1, options=options) as site:
            site.pace(0.05)
            job = await site.submit_tally(batches=400)
            await site.mid_epoch(job)
            warmth(sensors, 80)

            async def rests() -> bool:
                return "it rests: it is too warm: 80 degrees" in await reason_of(site, "device-1")

            await site.until("the manager lists why the device is away", rests)
            await site.progress(job, "the job waits for it", lambda told: told.state == "waiting")
            # Cooler than its limit, but not by enough: it would come and go.
            warmth(sensors, 68)
            site.pace(0.0)
            warmth(sensors, 60)
            await site.connected("device-1")
            await site.ended(job)
            site.exactly_once(job, batches=400, epochs=1)

    run(story())

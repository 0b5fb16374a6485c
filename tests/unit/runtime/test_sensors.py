"""What a device senses, on trees of files like those of real boards."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.flock.pairing.resources import judge
from shoal.roles.events import Condition
from shoal.runtime import sensors
from shoal.runtime.energy import (
    ESTIMATED,
    MEASURED,
    RECENT_LEASES,
    EnergyMeter,
    EnergyPerCpuSecond,
    EnergySpent,
    Reading,
    battery_joules,
    watts_a_core,
)


def tree(root: Path, listing: dict[str, object]) -> Path:
    for name, value in listing.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return root


PI4 = {
    "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
    "proc/meminfo": "MemTotal:        3884328 kB\nMemFree:   100 kB\nMemAvailable:    2097152 kB",
    "proc/loadavg": "2.00 1.00 0.50 1/200 4242",
    "proc/cpuinfo": "\n".join(f"processor\t: {cpu}\nBogoMIPS\t: 108.00\n" for cpu in range(4)),
    **{f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq": 1_800_000 for cpu in range(4)},
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
    "sys/class/thermal/thermal_zone0/temp": 48_686,
    "sys/class/hwmon/hwmon0/name": "rpi_volt",
    "sys/class/hwmon/hwmon0/in0_lcrit_alarm": 0,
}

LAPTOP = {
    "sys/class/dmi/id/sys_vendor": "LENOVO",
    "sys/class/dmi/id/product_name": "20XW",
    "sys/class/power_supply/AC/type": "Mains",
    "sys/class/power_supply/BAT0/type": "Battery",
    "sys/class/power_supply/BAT0/capacity": 64,
    "sys/class/power_supply/BAT0/status": "Discharging",
    "sys/class/power_supply/BAT0/power_now": 9_500_000,
    "sys/class/power_supply/hidpp_battery_0/type": "Battery",
    "sys/class/power_supply/hidpp_battery_0/scope": "Device",
    "sys/class/power_supply/hidpp_battery_0/capacity": 3,
    "sys/class/thermal/thermal_zone0/type": "acpitz",
    "sys/class/thermal/thermal_zone0/temp": 61_000,
    "sys/class/hwmon/hwmon3/name": "coretemp",
    "sys/class/hwmon/hwmon3/temp1_input": 55_000,
    "sys/class/hwmon/hwmon3/temp2_input": 57_000,
}


def test_a_raspberry_pi(tmp_path: Path) -> None:
    found = sensors.features("pi-1", root=tree(tmp_path, PI4))
    assert found.kind == "Raspberry Pi 4 Model B Rev 1.4"
    assert found.memory_total_mb == pytest.approx(3793.3, abs=0.1)
    assert found.memory_available_mb == 2048.0
    assert found.frequency_sum_mhz == 7200.0
    assert found.temperature_c == pytest.approx(48.686)
    assert found.load == 0.5
    assert found.battery is None
    assert sensors.is_charging(root=tmp_path) is None


def test_a_laptop_on_battery(tmp_path: Path) -> None:
    found = sensors.features("laptop", root=tree(tmp_path, LAPTOP))
    assert found.kind == "LENOVO 20XW"
    assert found.battery == 0.64, "not the mouse's"
    assert found.temperature_c == 57.0, "the processor's, though the case says more"
    assert sensors.is_charging(root=tmp_path) is False
    tree(tmp_path, {"sys/class/power_supply/BAT0/status": "Charging"})
    assert sensors.is_charging(root=tmp_path) is True


def test_where_there_is_nothing_nothing_is_known(tmp_path: Path) -> None:
    found = sensors.features("bare", root=tmp_path)
    assert found.kind == ""
    for name in ("memory_total_mb", "memory_available_mb", "frequency_sum_mhz", "temperature_c", "load", "battery"):
        assert found.get(name) is None, name


def test_sensors_that_are_broken_are_as_if_absent(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: some kB\nMemAvailable: -3 kB",
            "proc/loadavg": "",
            "proc/cpuinfo": "processor\t: 0\ncpu MHz\t\t: fast",
            "sys/class/thermal/thermal_zone0/temp": -273_000,
            "sys/class/thermal/thermal_zone1/temp": "nan",
            "sys/class/power_supply/BAT0/type": "Battery",
            "sys/class/power_supply/BAT0/capacity": 255,
        },
    )
    assert sensors.features("broken", root=tmp_path) == sensors.features("broken", root=tmp_path / "nowhere")


def test_a_virtual_machine_tells_its_frequency_elsewhere(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/cpuinfo": "processor\t: 0\ncpu MHz\t\t: 2100.000\n\nprocessor\t: 1\ncpu MHz\t\t: 2100.000"})
    assert sensors.frequency_sum_mhz(root=tmp_path) == 4200.0


@pytest.mark.parametrize(
    ("limit", "mhz"),
    [
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 2700.0),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, 7200.0),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": 50_000, "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100_000}, 900.0),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1, "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100_000}, 7200.0),
        ({"sys/fs/cgroup/cpu.max": "900000 100000"}, 7200.0),
    ],
)
def test_a_container_has_a_part_of_the_frequency(tmp_path: Path, limit: dict[str, object], mhz: float) -> None:
    tree(tmp_path, PI4 | limit)
    assert sensors.frequency_sum_mhz(root=tmp_path) == pytest.approx(mhz)


# Busy or free --------------------------------------------------------------------------------------------


def stat(root: Path, *ticks: int) -> Path:
    return tree(root, {"proc/stat": f"cpu  {' '.join(map(str, ticks))} 7 0\ncpu0 1 2 3\nintr 5"})


def test_what_others_use_is_all_but_ours(tmp_path: Path) -> None:
    # user, nice, system, idle, iowait, irq, softirq, steal, in hundredths: 10 s, of which 4 s idle and 1 s waiting.
    before = sensors.processors(own_s=1.0, root=stat(tmp_path, 200, 100, 100, 400, 100, 50, 25, 25))
    assert before == sensors.Processors(used_s=5.0, total_s=10.0, own_s=1.0)
    # 20 s later: 12 s more used, 4 s of them ours.
    after = sensors.processors(own_s=5.0, root=stat(tmp_path, 1000, 400, 200, 1100, 200, 50, 25, 25))
    assert sensors.used_by_others(before, after) == pytest.approx(0.4)
    assert sensors.used_by_others(None, after) is None
    assert sensors.used_by_others(after, after) is None, "no time has passed"


def test_our_own_time_may_be_counted_a_little_ahead(tmp_path: Path) -> None:
    before = sensors.Processors(used_s=0.0, total_s=10.0, own_s=0.0)
    after = sensors.Processors(used_s=1.0, total_s=20.0, own_s=1.5)
    assert sensors.used_by_others(before, after) == 0.0


@pytest.mark.parametrize("line", ["", "cpu", "cpu 1 2 3", "cpu a b c d e f g h", "cpu0 1 2 3 4 5 6 7 8"])
def test_a_system_that_does_not_count_its_processors(tmp_path: Path, line: str) -> None:
    assert sensors.processors(own_s=0.0, root=tree(tmp_path, {"proc/stat": line})) is None
    assert sensors.processors(own_s=0.0, root=tmp_path / "nowhere") is None


def test_the_condition_of_a_board_and_of_a_laptop(tmp_path: Path) -> None:
    pi = sensors.condition(root=tree(tmp_path / "pi", PI4))
    assert pi == Condition(memory_available_mb=2048.0, load=0.5)
    laptop = sensors.condition(in_use=0.25, root=tree(tmp_path / "laptop", LAPTOP))
    assert laptop == Condition(battery=0.64, is_charging=False, in_use=0.25)
    assert sensors.condition(root=tmp_path / "nowhere") == Condition()


def test_a_broken_battery_makes_nobody_busy(tmp_path: Path) -> None:
    broken: dict[str, object] = {
        "sys/class/power_supply/BAT0/type": "Battery",
        "sys/class/power_supply/BAT0/capacity": -1,
        "proc/meminfo": "MemAvailable: -3 kB",
    }
    assert judge(sensors.condition(root=tree(tmp_path, broken))).is_free


# Energy --------------------------------------------------------------------------------------------------


def package(root: Path, micro: int) -> Path:
    return tree(
        root,
        {
            "sys/class/powercap/intel-rapl:0/name": "package-0",
            "sys/class/powercap/intel-rapl:0/energy_uj": micro,
            "sys/class/powercap/intel-rapl:0/max_energy_range_uj": 1_000_000_000,
            # Within the package, and counted there.
            "sys/class/powercap/intel-rapl:0:0/name": "core",
            "sys/class/powercap/intel-rapl:0:0/energy_uj": micro,
            "sys/class/powercap/intel-rapl:0:0/max_energy_range_uj": 1_000_000_000,
        },
    )


def test_a_counter_of_energy_is_measured_also_when_it_begins_again(tmp_path: Path) -> None:
    meter = EnergyMeter(root=package(tmp_path, 999_000_000))
    before = meter.read(now_s=0.0, cpu_s=0.0)
    package(tmp_path, 4_000_000)
    spent = meter.spent(before, meter.read(now_s=1.0, cpu_s=1.0))
    assert spent.joules == pytest.approx(5.0)
    assert str(spent) == "5 J measured (powercap package-0)"


def test_a_counter_of_a_board_needs_no_end(tmp_path: Path) -> None:
    listing: dict[str, object] = {"sys/class/hwmon/hwmon1/name": "scmi", "sys/class/hwmon/hwmon1/energy1_input": 10**12}
    meter = EnergyMeter(root=tree(tmp_path, listing))
    before = meter.read(now_s=0.0, cpu_s=0.0)
    tree(tmp_path, {"sys/class/hwmon/hwmon1/energy1_input": 10**12 + 2_500_000})
    spent = meter.spent(before, meter.read(now_s=1.0, cpu_s=1.0))
    assert (spent.joules, spent.kind) == (pytest.approx(2.5), MEASURED)
    tree(tmp_path, {"sys/class/hwmon/hwmon1/energy1_input": 7})
    assert meter.spent(before, meter.read(now_s=1.0, cpu_s=1.0)).kind == ESTIMATED, "it was started anew"


def test_a_platform_is_not_counted_beside_its_packages(tmp_path: Path) -> None:
    platform: dict[str, object] = {
        "sys/class/powercap/intel-rapl:1/name": "psys",
        "sys/class/powercap/intel-rapl:1/energy_uj": 1_000_000,
        "sys/class/powercap/intel-rapl:1/max_energy_range_uj": 1_000_000_000,
    }
    meter = EnergyMeter(root=tree(package(tmp_path, 0), platform))
    assert [name for name, _, _ in meter.read(now_s=0.0, cpu_s=0.0).counters_j] == ["powercap psys"]


@pytest.mark.parametrize(
    ("listing", "joules", "how"),
    [
        (
            {"sys/class/hwmon/hwmon0/name": "ina219", "sys/class/hwmon/hwmon0/power1_input": 6_000_000},
            12.0,
            "board sensor ina219",
        ),
        (
            {
                "sys/class/hwmon/hwmon0/name": "ina3221",
                "sys/class/hwmon/hwmon0/in1_input": 5_000,
                "sys/class/hwmon/hwmon0/curr1_input": 1_000,
                "sys/class/hwmon/hwmon0/in2_input": 5_000,
                "sys/class/hwmon/hwmon0/curr2_input": 200,
            },
            12.0,
            "board sensor ina3221",
        ),
        (LAPTOP, 19.0, "battery"),
        (
            {
                "sys/class/power_supply/battery/type": "Battery",
                "sys/class/power_supply/battery/status": "Discharging",
                # A phone's, whose current is negative while it gives.
                "sys/class/power_supply/battery/current_now": -500_000,
                "sys/class/power_supply/battery/voltage_now": 4_000_000,
            },
            4.0,
            "battery",
        ),
    ],
)
def test_a_sensor_of_power_is_measured_over_the_time_between(
    tmp_path: Path, listing: dict[str, object], joules: float, how: str
) -> None:
    meter = EnergyMeter(root=tree(tmp_path, listing))
    spent = meter.spent(meter.read(now_s=10.0, cpu_s=0.0), meter.read(now_s=12.0, cpu_s=1.0))
    assert (spent.joules, spent.kind) == (pytest.approx(joules), MEASURED)
    assert spent.how == f"{how} at both ends, times the seconds between"


def test_a_battery_that_is_charged_says_nothing_of_what_is_spent(tmp_path: Path) -> None:
    tree(tmp_path, LAPTOP | {"sys/class/power_supply/BAT0/status": "Charging"})
    meter = EnergyMeter(root=tmp_path)
    assert meter.read(now_s=0.0, cpu_s=0.0).watts is None


def test_without_sensors_it_is_estimated_and_says_by_what(tmp_path: Path) -> None:
    meter = EnergyMeter(root=tree(tmp_path, PI4), machine="aarch64")
    spent = meter.spent(Reading(now_s=0.0, cpu_s=2.0), Reading(now_s=9.0, cpu_s=4.0))
    assert spent.kind == ESTIMATED
    assert spent.joules == pytest.approx(2.0 * watts_a_core("Raspberry Pi 4", "aarch64"))
    assert "CPU seconds x" in spent.how
    assert "Raspberry Pi 4" in spent.how


def test_a_sensor_that_goes_between_two_readings_makes_it_an_estimate(tmp_path: Path) -> None:
    meter = EnergyMeter(root=package(tmp_path, 1000))
    before = meter.read(now_s=0.0, cpu_s=0.0)
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    assert meter.spent(before, meter.read(now_s=1.0, cpu_s=1.0)).kind == ESTIMATED


def test_boards_have_classes() -> None:
    assert watts_a_core("Raspberry Pi 4 Model B Rev 1.4", "aarch64") != watts_a_core("Raspberry Pi 3 Model B", "armv7l")
    assert watts_a_core("Rock 5", "aarch64") < watts_a_core("", "x86_64")


def test_this_machine_can_be_asked() -> None:
    assert sensors.features("here").device == "here"
    assert sensors.processors(own_s=0.0) is not None
    assert sensors.condition().memory_available_mb is not None
    meter = EnergyMeter()
    spent = meter.spent(meter.read(now_s=0.0, cpu_s=0.0), meter.read(now_s=1.0, cpu_s=1.0))
    assert spent.joules >= 0
    assert spent.kind in (MEASURED, ESTIMATED)


# The energy of a CPU second, and of a battery ----------------------------------------------------------


def lease_of(joules: float, kind: str = MEASURED) -> EnergySpent:
    return EnergySpent(joules=joules, kind=kind, how="test")


def test_joules_per_cpu_second_are_those_of_recent_measured_leases() -> None:
    energy = EnergyPerCpuSecond()
    assert energy.joules_per_cpu_s is None
    energy.note(lease_of(8.0), cpu_s=1.0)
    energy.note(lease_of(4.0), cpu_s=5.0)
    assert energy.joules_per_cpu_s == pytest.approx(2.0)
    for _ in range(RECENT_LEASES):
        energy.note(lease_of(3.0), cpu_s=1.0)
    assert energy.joules_per_cpu_s == pytest.approx(3.0), "older leases are forgotten"


def test_a_guess_by_a_table_of_watts_is_not_told_as_measured() -> None:
    energy = EnergyPerCpuSecond()
    energy.note(lease_of(8.0, ESTIMATED), cpu_s=1.0)
    energy.note(lease_of(8.0), cpu_s=0.0)
    energy.note(lease_of(0.0), cpu_s=1.0)
    assert energy.joules_per_cpu_s is None


def test_what_leases_measured_is_a_feature_within_limits(tmp_path: Path) -> None:
    assert sensors.features("pi", root=tmp_path, joules_per_cpu_s=2.5).joules_per_cpu_s == 2.5
    assert sensors.features("pi", root=tmp_path, joules_per_cpu_s=1e9).joules_per_cpu_s is None
    assert sensors.features("pi", root=tmp_path).joules_per_cpu_s is None


BATTERY = "sys/class/power_supply/BAT0"


@pytest.mark.parametrize(
    ("listing", "joules"),
    [
        # A laptop of 50 Wh, whose battery was made for 57.
        ({f"{BATTERY}/energy_full": 50_000_000, f"{BATTERY}/energy_full_design": 57_000_000}, 180_000.0),
        ({f"{BATTERY}/energy_full_design": 57_000_000}, 205_200.0),
        # A phone of 3 Ah at 3.8 V.
        ({f"{BATTERY}/charge_full": 3_000_000, f"{BATTERY}/voltage_min_design": 3_800_000}, 41_040.0),
        ({f"{BATTERY}/charge_full": 3_000_000, f"{BATTERY}/voltage_now": 4_000_000}, 43_200.0),
        # It says nothing that would do.
        ({f"{BATTERY}/charge_full": 3_000_000}, None),
        ({f"{BATTERY}/energy_full": 0, f"{BATTERY}/capacity": 64}, None),
        ({f"{BATTERY}/energy_full": "unknown"}, None),
    ],
)
def test_what_a_full_battery_holds(tmp_path: Path, listing: dict[str, object], joules: float | None) -> None:
    tree(tmp_path, {f"{BATTERY}/type": "Battery", **listing})
    # A mouse's is not the device's.
    mouse = "sys/class/power_supply/hidpp_battery_0"
    tree(tmp_path, {f"{mouse}/type": "Battery", f"{mouse}/scope": "Device", f"{mouse}/energy_full": 9_000_000})
    assert battery_joules(root=tmp_path) == (None if joules is None else pytest.approx(joules))


def test_two_batteries_are_added_and_a_board_has_none(tmp_path: Path) -> None:
    assert battery_joules(root=tmp_path) is None
    for name in ("BAT0", "BAT1"):
        folder = f"sys/class/power_supply/{name}"
        tree(tmp_path, {f"{folder}/type": "Battery", f"{folder}/energy_full": 10_000_000})
    assert battery_joules(root=tmp_path) == pytest.approx(72_000.0)

"""Every family that an exporter serves: its name, type, labels and meaning. The documents and the tests read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Type = Literal["gauge", "counter", "info", "histogram"]


@dataclass(frozen=True, slots=True)
class Described:
    """A family. A counter's and an info's name is without the suffix that its samples have."""

    name: str
    type: Type
    labels: tuple[str, ...]
    help: str

    @property
    def sample(self) -> str:
        """The name that a query says, or that of a histogram without what its samples add."""
        return self.name + {"gauge": "", "counter": "_total", "info": "_info", "histogram": ""}[self.type]

    @property
    def queried(self) -> tuple[str, ...]:
        """Every name that a query may say."""
        if self.type != "histogram":
            return (self.sample,)
        return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))


def _g(name: str, labels: str, text: str) -> Described:
    return Described(name, "gauge", tuple(labels.split()), text)


def _c(name: str, labels: str, text: str) -> Described:
    return Described(name, "counter", tuple(labels.split()), text)


def _i(name: str, labels: str, text: str) -> Described:
    return Described(name, "info", tuple(labels.split()), text)


def _h(name: str, labels: str, text: str) -> Described:
    return Described(name, "histogram", tuple(labels.split()), text)


#: A cluster's metrics, from `shoal metrics`.
CLUSTER: tuple[Described, ...] = (
    _i("shoal_build", "version python", "The release of the exporter and its Python."),
    _g("shoal_cluster_reachable", "", "1 while a manager answers for the cluster. At 0 no job or device is known."),
    _g("shoal_manager_reachable", "manager", "1 while this manager answers the exporter."),
    _g("shoal_manager_ready", "manager", "1 while this manager would serve a device that dials it."),
    _g("shoal_manager_seat_held", "manager", "1 while this manager holds a seat. One that is alone always does."),
    _g("shoal_manager_seat_unproven_seconds", "manager", "Since this manager was last known to prove its seat."),
    _c("shoal_manager_takeovers", "manager", "Seats of silent managers that this one ended."),
    _c("shoal_manager_jobs_taken", "manager", "Jobs that this manager took over from managers that are gone."),
    _c("shoal_manager_store_went_back", "manager", "How often its database went back in time, and terms jumped."),
    _g("shoal_manager_loop_lag_seconds", "manager", "The longest delay of its event loop within the last minute."),
    _g("shoal_manager_devices", "manager", "Devices that are connected to this manager."),
    _h("shoal_store_call_seconds", "manager store", "Calls to the database and the bucket by how long they took."),
    _c("shoal_store_errors", "manager store", "Calls that the database or the bucket did not answer as it should."),
    _g("shoal_store_wait_seconds", "manager store", "How long the oldest open call has waited."),
    _g(
        "shoal_authority_expiry_timestamp_seconds",
        "manager",
        "When the authority ends with which this manager issues certificates.",
    ),
    _g("shoal_status_duration_seconds", "manager", "How long the manager that was asked took to report its status."),
    _g("shoal_nodes", "state manager", "Devices by state and manager; drained, pending or revoked ones only as that."),
    _g(
        "shoal_node_up",
        "node manager",
        "1 if alive or on its way to another manager, 0 if suspect or lost. node=other counts the rest that are up.",
    ),
    _g(
        "shoal_node_heartbeat_age_seconds",
        "node manager",
        "Since its last message. node=other: the longest of the rest.",
    ),
    _g(
        "shoal_node_slowness_ratio",
        "node",
        "Its median lease over that of all. node=other: the largest of the rest.",
    ),
    _c("shoal_node_losses", "cause", "Devices declared lost since the exporter began: silent, cut or left."),
    _g("shoal_certificate_expiry_timestamp_seconds", "", "When the first certificate of this machine's home runs out."),
    _g("shoal_jobs", "state", "Jobs by state, ended ones too."),
    _i(
        "shoal_job",
        "shoal_job name topology pace codec leader manager",
        "A job that is open, or ended within the hour.",
    ),
    _g("shoal_job_version", "shoal_job", "The model's newest version."),
    _g("shoal_job_durable_version", "shoal_job", "The newest version that would survive a power cut."),
    _c("shoal_job_versions", "shoal_job", "Versions made."),
    _c("shoal_job_examples", "shoal_job", "Examples whose updates are in the model."),
    _g("shoal_job_examples_per_second", "shoal_job", "The leader's own measure over its latest rounds."),
    _g("shoal_job_accuracy_ratio", "shoal_job split", "The metric named accuracy of the latest evaluation, 0 to 1."),
    _g("shoal_job_loss", "shoal_job split", "split=test: the metric named loss; split=train: the loss of late leases."),
    _g("shoal_job_metric", "shoal_job metric", "Any metric of the latest evaluation, by its name."),
    _g("shoal_job_evaluation_timestamp_seconds", "shoal_job", "When the latest evaluation was recorded."),
    _c(
        "shoal_job_bytes",
        "shoal_job direction via",
        "Bytes of updates (up) and models (down) through the leader.",
    ),
    _g("shoal_job_workers", "shoal_job state", "Workers as their leader sees them."),
    _g("shoal_job_failing_devices", "shoal_job", "Devices of an open job that fail, or could not prepare it."),
    _g(
        "shoal_job_idle_seconds",
        "shoal_job",
        "How long an open job has trained nothing: it is queued, waits or is stalled; 0 while it trains.",
    ),
    _c(
        "shoal_leases",
        "shoal_job outcome",
        "Leases without an update: expired, returned, failed.",
    ),
    _c("shoal_updates_refused", "shoal_job", "Updates that the leader refused."),
    _c(
        "shoal_device_seconds",
        "shoal_job phase",
        "Seconds of workers by phase, sampled at each scrape.",
    ),
    _c("shoal_leader_changes", "shoal_job", "How often another leader took over."),
    _c("shoal_formation_changes", "shoal_job", "How often the topology in use changed."),
    _g("shoal_model_served_version", "shoal_job", "The published version that is served."),
    _g("shoal_model_publishing_held", "shoal_job", "1 while only an operator can publish a version."),
    _g("shoal_disk_free_bytes", "", "Free on the disk of the manager's home; only where the exporter runs beside it."),
    _g("shoal_checkpoint_age_seconds", "shoal_job", "Since the newest checkpoint; only beside the manager."),
    _c("shoal_exporter_events_missed", "", "Events that came faster than they were asked for, and are in no counter."),
)

#: A device's metrics, from `shoal join --metrics`.
DEVICE: tuple[Described, ...] = (
    _i("shoal_build", "version python", "The release of the agent and its Python."),
    _g("shoal_agent_connected", "node", "1 while the manager is reached."),
    _i("shoal_agent_job", "node shoal_job", "A job that this device works for."),
    _c("shoal_agent_training_seconds", "node", "Seconds that trainers of this device trained."),
    _c("shoal_agent_leases", "node", "Leases that were trained to their end."),
    _c(
        "shoal_agent_bytes",
        "node direction",
        "Bytes of tensors, and down also of files.",
    ),
    _g("shoal_node_link_bytes_per_second", "node", "The best rate that a file came with lately."),
    _g("shoal_node_temperature_celsius", "node", "The warmest sensor of the processor."),
    _c(
        "shoal_node_energy_joules",
        "node measured",
        "Since the first scrape. measured=false: by a model.",
    ),
)

#: Names that a query may say, of either exporter.
SAMPLES: frozenset[str] = frozenset(name for each in (*CLUSTER, *DEVICE) for name in each.queried)

"""The registry's tables, as the list of steps that lead to them. Knows SQL, not what the rows mean."""

from __future__ import annotations

#: Step n brings a registry from schema n to n + 1. Steps are only ever added: registries in the field ran the old ones.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE tokens (
            secret_sha256 TEXT PRIMARY KEY,
            role TEXT NOT NULL,
            uses_left INTEGER NOT NULL CHECK (uses_left >= 0),
            expires_s REAL,
            created_s REAL NOT NULL,
            label TEXT NOT NULL,
            node_prefix TEXT NOT NULL
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE nodes (
            node TEXT PRIMARY KEY,
            role TEXT NOT NULL,
            facts_json TEXT NOT NULL,
            first_seen_s REAL NOT NULL,
            last_seen_s REAL NOT NULL,
            state TEXT NOT NULL
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE jobs (
            job TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            spec_json TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'stopping', 'finished', 'failed', 'stopped')),
            reason TEXT NOT NULL,
            term INTEGER NOT NULL CHECK (term >= 0),
            created_s REAL NOT NULL,
            ended_s REAL,
            progress_json TEXT NOT NULL
        ) WITHOUT ROWID
        """,
        # The key is the promise: a batch of an epoch goes into the surviving history once.
        """
        CREATE TABLE applied (
            job TEXT NOT NULL REFERENCES jobs (job),
            epoch INTEGER NOT NULL,
            batch INTEGER NOT NULL,
            version INTEGER NOT NULL,
            node TEXT NOT NULL,
            lease INTEGER NOT NULL,
            PRIMARY KEY (job, epoch, batch)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX applied_by_version ON applied (job, version)",
        # No reference to jobs: what happens to the cluster itself is told under the empty job.
        """
        CREATE TABLE events (
            job TEXT NOT NULL,
            seq INTEGER NOT NULL,
            at_s REAL NOT NULL,
            kind TEXT NOT NULL,
            text TEXT NOT NULL,
            PRIMARY KEY (job, seq)
        ) WITHOUT ROWID
        """,
        # SQLite keeps NaN as NULL, and a model that diverged has a loss of NaN.
        """
        CREATE TABLE evaluations (
            job TEXT NOT NULL REFERENCES jobs (job),
            version INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            accuracy REAL,
            loss REAL,
            examples INTEGER NOT NULL,
            at_s REAL NOT NULL,
            PRIMARY KEY (job, version)
        ) WITHOUT ROWID
        """,
    ),
    (
        # The token a member joined with: one that is shut out knows its secret.
        "ALTER TABLE nodes ADD COLUMN token_sha256 TEXT NOT NULL DEFAULT ''",
        # When its name was last revoked. It stays when the name is given again: older certificates are void for good.
        "ALTER TABLE nodes ADD COLUMN revoked_s REAL",
        "ALTER TABLE nodes ADD COLUMN reason TEXT NOT NULL DEFAULT ''",
        """
        CREATE TABLE certificates (
            sha256 TEXT PRIMARY KEY,
            node TEXT NOT NULL,
            role TEXT NOT NULL,
            key_sha256 TEXT NOT NULL,
            issued_s REAL NOT NULL,
            expires_s REAL NOT NULL,
            revoked_s REAL
        ) WITHOUT ROWID
        """,
        "CREATE INDEX certificates_by_node ON certificates (node)",
    ),
    (
        # Who leads it under its term: a manager that restarts waits for a leader elsewhere.
        "ALTER TABLE jobs ADD COLUMN leader TEXT NOT NULL DEFAULT ''",
    ),
    (
        # Versions that were published and are kept; the hash names the model.
        """
        CREATE TABLE published (
            job TEXT NOT NULL REFERENCES jobs (job),
            version INTEGER NOT NULL,
            number INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            accuracy REAL,
            loss REAL,
            examples INTEGER NOT NULL,
            sha256 TEXT NOT NULL,
            size_bytes INTEGER NOT NULL,
            at_s REAL NOT NULL,
            reason TEXT NOT NULL,
            PRIMARY KEY (job, version)
        ) WITHOUT ROWID
        """,
        # Which of them is served, and whether that changes by itself.
        """
        CREATE TABLE serving (
            job TEXT PRIMARY KEY REFERENCES jobs (job),
            version INTEGER NOT NULL,
            reason TEXT NOT NULL,
            judged INTEGER NOT NULL,
            hold TEXT NOT NULL,
            until_accuracy REAL,
            verdict TEXT NOT NULL
        ) WITHOUT ROWID
        """,
    ),
    (
        # Epochs whose batches are not listed one by one any more: a job without an end would fill the disk.
        """
        CREATE TABLE epochs (
            job TEXT NOT NULL REFERENCES jobs (job),
            epoch INTEGER NOT NULL,
            batches INTEGER NOT NULL,
            "distinct" INTEGER NOT NULL,
            first_version INTEGER NOT NULL,
            last_version INTEGER NOT NULL,
            PRIMARY KEY (job, epoch)
        ) WITHOUT ROWID
        """,
    ),
    (
        # Who was given each of its last terms, and the newest durable version then: a leader that was replaced and led
        # on beyond a cut is known when it is back.
        "ALTER TABLE jobs ADD COLUMN terms_json TEXT NOT NULL DEFAULT '{}'",
    ),
    (
        # In which order a member's certificates were issued: a clock may be set back, and decides nothing here.
        "ALTER TABLE certificates ADD COLUMN number INTEGER NOT NULL DEFAULT 0",
        "UPDATE certificates SET number = (SELECT COUNT(*) FROM certificates AS other WHERE other.node ="
        " certificates.node AND (other.issued_s, other.sha256) <= (certificates.issued_s, certificates.sha256))",
        # When it was first used, and when a newer one of its member was: from then on it is void.
        "ALTER TABLE certificates ADD COLUMN used_s REAL",
        "ALTER TABLE certificates ADD COLUMN superseded_s REAL",
    ),
    (
        # The figures of every metric, as JSON: a name, a figure or null, and whether less is better. Rows without them
        # are of an older release, and have only accuracy and loss.
        "ALTER TABLE evaluations ADD COLUMN metrics_json TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE published ADD COLUMN metrics_json TEXT NOT NULL DEFAULT '[]'",
    ),
    (
        # In a restored registry: the number of the member's last certificate that it knows. Those that were issued
        # after the copy are not recorded, and are accepted until a newer one is used. NULL if it was not restored.
        "ALTER TABLE nodes ADD COLUMN restored_number INTEGER",
    ),
    (
        # A member that an operator forgot: shut out and not listed. The row stays, for its old certificates must not be
        # good again when the name is.
        "ALTER TABLE nodes ADD COLUMN is_forgotten INTEGER NOT NULL DEFAULT 0",
    ),
    (
        # A member's certificates in their order: the next number is read from the end of the index.
        "CREATE INDEX certificates_by_number ON certificates (node, number)",
        "DROP INDEX certificates_by_node",
    ),
    (
        # Facts about the registry, such as its owner.
        """
        CREATE TABLE facts (
            name TEXT PRIMARY KEY,
            value TEXT NOT NULL
        ) WITHOUT ROWID
        """,
    ),
    (
        # Which manager runs the cluster, where several share a registry: it counts on in every transaction that writes.
        """
        CREATE TABLE seats (
            job TEXT PRIMARY KEY,
            holder TEXT NOT NULL,
            term INTEGER NOT NULL,
            beats INTEGER NOT NULL
        ) WITHOUT ROWID
        """,
        # Where several managers share a depot: the name of the checkpoint that was acknowledged last. A manager that
        # was deposed may have put others there.
        "ALTER TABLE jobs ADD COLUMN checkpoint TEXT NOT NULL DEFAULT ''",
    ),
    (
        # The hash of the manager's own authority that issued it. Empty if the cluster's authority did.
        "ALTER TABLE certificates ADD COLUMN issuer TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX certificates_by_issuer ON certificates (issuer) WHERE issuer != ''",
    ),
    (
        # The managers that are alive, where several share a registry. A manager counts its row on in every transaction
        # that writes. Nothing is carried over: a manager of an older release has to end.
        "DROP TABLE seats",
        """
        CREATE TABLE seats (
            holder TEXT PRIMARY KEY,
            beats INTEGER NOT NULL,
            address TEXT NOT NULL,
            wants INTEGER NOT NULL,
            starving INTEGER NOT NULL,
            devices INTEGER NOT NULL
        ) WITHOUT ROWID
        """,
        # The manager that has the job. Empty if none has it yet, or there is only one manager.
        "ALTER TABLE jobs ADD COLUMN manager TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX jobs_open ON jobs (manager) WHERE state IN ('queued', 'running', 'stopping')",
    ),
    (
        # Where managers share a registry: how often members changed, and at which count each did last. A manager reads
        # those that changed since it last looked.
        """
        CREATE TABLE counters (
            name TEXT PRIMARY KEY,
            value INTEGER NOT NULL
        ) WITHOUT ROWID
        """,
        "INSERT INTO counters VALUES ('members', 0)",
        "ALTER TABLE nodes ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX nodes_by_epoch ON nodes (epoch) WHERE epoch > 0",
        "ALTER TABLE certificates ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX certificates_by_epoch ON certificates (epoch) WHERE epoch > 0",
    ),
    (
        # The card that an operator signed for a device, in hexadecimal, or empty.
        "ALTER TABLE nodes ADD COLUMN card TEXT NOT NULL DEFAULT ''",
    ),
    (
        # What operators did. Rows are only ever added, and each has a hash over the one before it.
        """
        CREATE TABLE acts (
            seq INTEGER PRIMARY KEY,
            at_s REAL NOT NULL,
            operator TEXT NOT NULL,
            certificate TEXT NOT NULL,
            manager TEXT NOT NULL,
            kind TEXT NOT NULL,
            subject TEXT NOT NULL,
            text TEXT NOT NULL,
            is_refused INTEGER NOT NULL,
            sha256 TEXT NOT NULL
        )
        """,
        "CREATE INDEX acts_by_subject ON acts (subject, seq)",
        # What an operator says that a device is, as a list in JSON.
        "ALTER TABLE nodes ADD COLUMN labels_json TEXT NOT NULL DEFAULT '[]'",
    ),
    (
        # Where managers share a registry: each open job and each device as the manager that has it last saw it. Views
        # are counted as they are written: a manager reads those that changed since it last looked.
        """
        CREATE TABLE views (
            kind TEXT NOT NULL,
            name TEXT NOT NULL,
            manager TEXT NOT NULL,
            epoch INTEGER NOT NULL,
            clock_s REAL NOT NULL,
            view_json TEXT NOT NULL,
            PRIMARY KEY (kind, name)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX views_by_epoch ON views (epoch)",
        "INSERT INTO counters VALUES ('views', 0)",
        # When the manager last wrote its views, by its own clock.
        "ALTER TABLE seats ADD COLUMN viewed_s REAL NOT NULL DEFAULT 0",
    ),
    (
        # Thousands of jobs that are over: a page of them, their number and one of them by its name are found without
        # reading the others.
        "CREATE INDEX jobs_ended ON jobs (ended_s, job, state) WHERE ended_s IS NOT NULL",
        "CREATE INDEX jobs_by_name ON jobs (name, created_s)",
    ),
    (
        # Files of entries that members gave to shared sets. A set has each file once.
        """
        CREATE TABLE contributions (
            number INTEGER PRIMARY KEY,
            set_name TEXT NOT NULL,
            sha256 TEXT NOT NULL,
            node TEXT NOT NULL,
            certificate TEXT NOT NULL,
            entries INTEGER NOT NULL,
            size_bytes INTEGER NOT NULL,
            at_s REAL NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'rejected')),
            decided_by TEXT NOT NULL,
            UNIQUE (set_name, sha256)
        )
        """,
        "CREATE INDEX contributions_by_node ON contributions (node)",
    ),
)

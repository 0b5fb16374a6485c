"""All limits on what a peer can make us hold. Numbers only."""

#: Tensors and blobs are sent in chunks of this size: 100 MB in one gRPC message takes five times as long.
CHUNK_BYTES = 1 << 20

#: An envelope (a message without its tensors) above this size is refused before it is parsed.
ENVELOPE_MAX_BYTES = 256 << 10

#: The largest gRPC message we accept: an envelope, a chunk, and their protobuf prefixes.
MESSAGE_MAX_BYTES = ENVELOPE_MAX_BYTES + CHUNK_BYTES + 64

#: Replies to an operator may list many nodes; each is one gRPC message.
REPLY_MAX_BYTES = 8 << 20

#: Tensors in one message: a model is one, and codecs make a few of it. 4,096 empty ones took 80 ms to read.
MESSAGE_TENSORS_MAX = 256

#: Tensors in one file.
TENSOR_COUNT_MAX = 4096

#: A value of a model is a float32.
VALUE_BYTES = 4

#: Bytes of all tensors of one message together.
PAYLOAD_MAX_BYTES = 1 << 30

#: Tensors of at most this size are sent in their envelope's frame, without waiting for a turn. When received they take
#: nothing from the upload budget, because their frame is in memory already.
SMALL_BYTES = 64 << 10

#: The JSON header of a safetensors file. A legal 87 MB header costs 78 s and 2.8 GB to parse.
TENSOR_FILE_HEADER_MAX_BYTES = 4 << 20

#: Batches in one epoch: a leader keeps a byte for each.
BATCHES_MAX = 1 << 24

#: Parts of a job's frozen base: 256 of 256 MB are 64 GB.
BASE_PARTS_MAX = 256

#: Metadata entries in the header of a safetensors file.
TENSOR_FILE_NOTES_MAX = 1024

#: Dimensions of one tensor in a file: every numpy that we support can hold this many.
TENSOR_DIMENSIONS_MAX = 32

#: Leases in one ``Reduce``.
COUNTED_MAX = 4096

#: Ids and names that cross the wire.
NAME_MAX_CHARS = 128

#: A node's name is the common name of its certificate, which X.509 limits to 64.
NODE_NAME_MAX_CHARS = 63

#: Events that a registry keeps per job; older ones are dropped.
EVENTS_KEPT_PER_JOB = 5000

#: Evaluations that it keeps per job: above this, every second one of the older half is dropped.
EVALUATIONS_KEPT_PER_JOB = 4000

#: Applied batches that it keeps per job. Above this, only the sums of the oldest epochs are kept, for this many epochs.
#: It exceeds what a leader may hold that is not durable (``AT_RISK_MAX``), so a checkpoint's batches are never dropped.
APPLIED_KEPT_PER_JOB = 200_000
EPOCHS_KEPT_PER_JOB = 10_000

#: Certificates that it keeps per member, of which one or two are valid.
CERTIFICATES_KEPT_PER_NODE = 20

#: Free text in messages (reasons, errors).
REASON_MAX_CHARS = 4096

#: A traceback of a task's code: only the end of a longer one is kept, which says most. And how many are kept per job.
TRACEBACK_MAX_CHARS = 8192
TRACEBACKS_KEPT_PER_JOB = 5

#: A job's code: the zip, its files, and what they unpack to.
BUNDLE_MAX_BYTES = 16 << 20
BUNDLE_FILES_MAX = 1000
BUNDLE_UNPACKED_MAX_BYTES = 64 << 20

#: One file of a job's code. Larger files in its directory are data and belong in examples(), not in the bundle.
BUNDLE_FILE_MAX_BYTES = 1 << 20

#: One message between an agent and its trainer. Vectors are in shared memory, not in messages.
TRAINER_MESSAGE_MAX_BYTES = 1 << 20

#: One content-addressed blob (a dataset shard, a bundle, an initial model, a part of a frozen base). It is written to
#: disk in chunks and mapped from there: the limit protects a disk, and the size is known before the first chunk.
BLOB_MAX_BYTES = 64 << 30

#: One blob that is read into memory (a bundle, the list of a dataset's shards).
BLOB_READ_MAX_BYTES = 1 << 30

#: A checkpoint that is fetched from an object store: a model, its momentum and its history.
CHECKPOINT_FILE_MAX_BYTES = 4 * PAYLOAD_MAX_BYTES

#: Memory of a leader for uploads in progress: an update is held in one piece until it is checked, merged and dropped.
UPLOAD_BUDGET_BYTES = 32 << 20

#: The share of a budget that one peer may use. Larger messages are outside the budget and are received one at a time:
#: they delay only each other.
UPLOAD_PEER_SHARE = 0.5
#: The tensors of a message above this get their own memory, which is freed with the message.
UPLOAD_SHARED_MAX_BYTES = int(UPLOAD_BUDGET_BYTES * UPLOAD_PEER_SHARE)

#: The frames of a model up to this size are kept as long as the model, because they go to many workers. A larger model
#: is cut into frames again for each worker, which costs a copy of it but no second model in memory.
FRAMES_KEPT_MAX_BYTES = 8 << 20

#: Like the upload budget, for checkpoints from leaders on devices and for executors' results: neither delays merging.
CHECKPOINT_BUDGET_BYTES = 32 << 20
RESULT_BUDGET_BYTES = 32 << 20

#: HTTP/2 streams that one connection may have open. It limited an abusive client to 55 MB that had taken 300 MB.
STREAMS_PER_CONNECTION = 8

#: The read buffer that gRPC allocates per connection before anything arrives. Its default is a megabyte on every
#: connection that was ever busy: 200 MB for 200 workers, more than everything else in a leader.
READ_BUFFER_BYTES = 64 << 10

#: How far a peer may send ahead of our reading at first. gRPC raises it for a fast and long link.
READ_AHEAD_BYTES = 256 << 10

#: The largest Euclidean norm of an update, whatever is typical in its job (``learning.usual``).
UPDATE_NORM_MAX = 1e6

#: Bytes that an aggregator may report as moved for one version.
TOLD_BYTES_MAX = 1 << 50

#: Enrolment is open to strangers: bytes of the authority's certificate and of a request or reply, connections, seconds.
ENROL_AUTHORITY_MAX_BYTES = 8 << 10
ENROL_MESSAGE_MAX_BYTES = 16 << 10
ENROL_CONNECTIONS_MAX = 64
ENROL_DEADLINE_S = 10.0

#: How many of these connections one address may have, how many may wait for one, how long a connection may be silent,
#: and how often failed ones are reported.
ENROL_PER_ADDRESS = 8
ENROL_WAITING_MAX = 128
ENROL_HELLO_S = 3.0
ENROL_TOLD_EVERY_S = 60.0

#: Facts that a new device may report about itself.
ENROL_FACTS_MAX = 32

#: A join line, before it is parsed: a code of 64 characters, a host of up to 253, and what surrounds them.
JOIN_LINE_MAX_CHARS = 512

#: A member's key and certificates on disk.
IDENTITY_FILE_MAX_BYTES = 64 << 10

#: Workers in one progress report: building 100,000 empty ones from one envelope took seconds.
WORKERS_TOLD_MAX = 1024

#: The largest sum of losses, the longest time and the most energy that a device may report. They are summed or shown.
LOSS_SUM_MAX = 1e100
SECONDS_MAX = 1e9
JOULES_MAX = 1e12

#: While tensors arrive, nobody else can use their memory. A message may take this long, plus the time that its bytes
#: need at this rate; a slower peer is disconnected. A node that we dialled may be slower, because no other peer waits.
PAYLOAD_GRACE_S = 60.0
PAYLOAD_LEAST_BYTES_PER_S = 32 << 10
LINE_LEAST_BYTES_PER_S = 16 << 10

#: The cost, in messages, of a chunk that nobody waits for and that is dropped.
UNAWAITED_CHUNK_COST = 50.0

#: Messages that one peer may send: beyond that they are read more slowly. Heartbeats and work are counted separately.
CONTROL_MESSAGES_BURST = 200
CONTROL_MESSAGES_PER_S = 50
WORK_MESSAGES_BURST = 2000
WORK_MESSAGES_PER_S = 1000

#: Streams that one peer may open, and how long an opening may be delayed before it is refused.
OPENINGS_BURST = 64
OPENINGS_PER_S = 16
OPENING_WAIT_MAX_S = 2.0

#: Blobs that one peer may fetch at the same time, over all its connections.
FETCHES_PER_PEER = 8

#: A peer with more violations than this within the window is turned away, longer each time.
OFFENCES_MAX = 10
OFFENCES_WINDOW_S = 60.0
TURNED_AWAY_S = 10.0
TURNED_AWAY_LONGEST_S = 640.0

#: A connection without calls is closed after this; a handshake may take this long.
CONNECTION_IDLE_MAX_S = 300
HANDSHAKE_MAX_S = 5

#: Connections that a listener accepts at a time, before any handshake; more are closed at once. A member has two. Each
#: takes about 50 kB before its handshake: the limit is what fits this share of the machine's memory, and at least
#: ``CONNECTIONS_LEAST``. If the limit of open files is lower, it is a share of that.
CONNECTIONS_LEAST = 4096
CONNECTIONS_MAX = 32_768
CONNECTION_BYTES = 50_000
CONNECTIONS_MEMORY_SHARE = 0.125
CONNECTIONS_FILE_SHARE = 0.5

#: The longest time after which a disconnected idle device must dial again: by then much may have changed.
COME_MOST_S = 7 * 86400.0

#: Addresses of a cluster's managers that a device keeps.
MANAGERS_MAX = 8

#: Open files that a manager or an agent asks the system for.
OPEN_FILES_WANTED = 65_536

#: Single calls of each peer: certificates, commands, blobs. Beyond that commands and blobs are delayed, for at most
#: ``OPENING_WAIT_MAX_S``, and requests for certificates are refused.
RENEWALS_BURST = 5
RENEWALS_PER_S = 1 / 60
OPERATIONS_BURST = 200
OPERATIONS_PER_S = 50
FETCHES_BURST = 500
FETCHES_PER_S = 50

#: Labels in an update's counts, and examples that a device may report, in all or with one label.
LABELS_MAX = 4096
LABELLED_MAX = 1 << 40

#: Peers in one flock: each sends its state to all others.
PEERS_MAX = 256
#: A side of an offloaded matrix.
SIDE_MAX = 1 << 24

#: Executors that one task may avoid.
AVOIDED_MAX = 256

#: The left side of one task, and its result; and a right side.
TASK_MAX_BYTES = 32 << 20
RIGHT_MAX_BYTES = 256 << 20

#: The memory of a broker for its clients' open tasks, and for their right sides.
TASKS_HELD_MAX_BYTES = 128 << 20
RIGHTS_HELD_MAX_BYTES = 256 << 20

#: The memory of an executor for right sides. An executor may have less.
RIGHTS_KEPT_MAX_BYTES = 256 << 20

#: Devices in one sealed sum: their roster is one message. Then the bytes of a certificate, with that of its manager's
#: own authority, of a signature and of a card.
SEAL_GROUP_MAX = 256
SEAL_CERTIFICATE_MAX_BYTES = 1600
SEAL_SIGNATURE_MAX_BYTES = 80
SEAL_CARD_MAX_BYTES = 160

#: The bytes from a device of a sealed sum to all its neighbours: an envelope with a share takes 33. And the shares of
#: edges of all vanished neighbours.
SEAL_PARTS_MAX_BYTES = 33 * SEAL_GROUP_MAX
SEAL_EDGES_MAX_BYTES = 200 << 10

#: The bytes that a helper gets for a sealed sum: an envelope with a seed takes 32.
SEAL_HELPER_MAX_BYTES = 32 * SEAL_GROUP_MAX

#: The bytes of a sealed update besides its words: for each of 255 neighbours, its shares of 255 edges.
SEALS_MAX_BYTES = 1_200_000

#: A member's file of entries for a shared set. It is read into memory to count them.
CONTRIBUTION_MAX_BYTES = 16 << 20

#: One entry, and the entries of one file.
ENTRY_MAX_BYTES = 256 << 10
ENTRIES_MAX = 100_000
#: Values within values, the entry itself counted.
ENTRY_MAX_DEPTH = 32

#: Files of entries that a member may have in all shared sets together. Those that were rejected count: each is a row.
CONTRIBUTIONS_PER_MEMBER = 1000

#: Files of entries that one command approves or rejects.
SETTLED_MAX = 500

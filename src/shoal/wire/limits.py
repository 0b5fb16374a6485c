"""Every limit on what a peer may make us hold, in one place. Numbers only."""

#: Bulk travels in chunks of this size: 100 MB in one gRPC message is five times slower than in chunks.
CHUNK_BYTES = 1 << 20

#: An envelope (everything but the tensors) is refused above this before it is parsed.
ENVELOPE_MAX_BYTES = 256 << 10

#: The largest gRPC message we accept: an envelope, a chunk, and their protobuf prefixes.
MESSAGE_MAX_BYTES = ENVELOPE_MAX_BYTES + CHUNK_BYTES + 64

#: Replies to an operator may list many nodes; they cross in one message of their own.
REPLY_MAX_BYTES = 8 << 20

#: Tensors that one message may carry: a model is one, a codec makes a few of it. 4,096 empty ones took 80 ms to read.
MESSAGE_TENSORS_MAX = 256

#: Tensors of one file.
TENSOR_COUNT_MAX = 4096

#: A value of a model: float32.
VALUE_BYTES = 4

#: Bytes of all tensors of one message together.
PAYLOAD_MAX_BYTES = 1 << 30

#: Tensors that come whole with their envelope and have at most so many bytes take no turn when they are sent, and no
#: room of the budget when they are received: their frame is there already.
SMALL_BYTES = 64 << 10

#: The JSON header of a safetensors file. A legal 87 MB header costs 78 s and 2.8 GB to parse.
TENSOR_FILE_HEADER_MAX_BYTES = 4 << 20

#: Batches of one epoch: a leader keeps a byte for each.
BATCHES_MAX = 1 << 24

#: Parts of a job's frozen base: 256 of 256 MB are 64 GB.
BASE_PARTS_MAX = 256

#: Notes (text under a name) that the header of a safetensors file may hold.
TENSOR_FILE_NOTES_MAX = 1024

#: Dimensions of one tensor in a file: what every numpy we support can hold.
TENSOR_DIMENSIONS_MAX = 32

#: Leases that one message to an aggregator counts.
COUNTED_MAX = 4096

#: Ids and names that cross the wire.
NAME_MAX_CHARS = 128

#: A node's name is the common name of its certificate, which X.509 ends at 64.
NODE_NAME_MAX_CHARS = 63

#: What a registry remembers of a job's events; older ones are dropped.
EVENTS_KEPT_PER_JOB = 5000

#: And of its evaluations: above this, every second of the older half is dropped, so that the past grows sparser.
EVALUATIONS_KEPT_PER_JOB = 4000

#: And of its history, batch by batch: above this, of the oldest epochs only their sums are kept, and of so many epochs.
#: More than a leader may hold that is not durable (``AT_RISK_MAX``): what a checkpoint carries is never thinned out.
APPLIED_KEPT_PER_JOB = 200_000
EPOCHS_KEPT_PER_JOB = 10_000

#: What a registry remembers of a member's certificates; it has one or two that are of use.
CERTIFICATES_KEPT_PER_NODE = 20

#: Free text that crosses the wire (reasons, errors).
REASON_MAX_CHARS = 4096

#: A traceback of a task's code: of a longer one the end, which says most. And how many are kept of a job.
TRACEBACK_MAX_CHARS = 8192
TRACEBACKS_KEPT_PER_JOB = 5

#: A job's code: the zip, its files, and what they unpack to.
BUNDLE_MAX_BYTES = 16 << 20
BUNDLE_FILES_MAX = 1000
BUNDLE_UNPACKED_MAX_BYTES = 64 << 20

#: One file of a job's code. Larger ones in its directory are data: they belong in examples(), not in the bundle.
BUNDLE_FILE_MAX_BYTES = 1 << 20

#: One message between an agent and its trainer. Vectors do not travel in messages: they lie in shared memory.
TRAINER_MESSAGE_MAX_BYTES = 1 << 20

#: One content-addressed blob (a dataset shard, a bundle, an initial model, a part of a frozen base). It goes to disk in
#: chunks and is mapped from there: the limit protects a disk, and a member's size is known before its first chunk.
BLOB_MAX_BYTES = 64 << 30

#: One blob that is read into memory (a bundle, the list of a dataset's shards).
BLOB_READ_MAX_BYTES = 1 << 30

#: A checkpoint that is fetched from an object store: a model, its momentum and its history.
CHECKPOINT_FILE_MAX_BYTES = 4 * PAYLOAD_MAX_BYTES

#: Memory a leader lends to uploads in flight: updates are held whole until they are checked, then merged and dropped.
UPLOAD_BUDGET_BYTES = 32 << 20

#: The share of a budget that one peer may hold. A message above it comes one at a time, beside the budget: it holds up
#: others of its size and nobody else.
UPLOAD_PEER_SHARE = 0.5
#: The tensors of a message above this have memory of their own, which goes with the message.
UPLOAD_SHARED_MAX_BYTES = int(UPLOAD_BUDGET_BYTES * UPLOAD_PEER_SHARE)

#: The frames of a model up to this size are kept while the model is: they go to many workers. A larger model is cut
#: into frames anew for each of them, which costs a copy of it and not a second model of memory.
FRAMES_KEPT_MAX_BYTES = 8 << 20

#: The same for checkpoints that leaders on devices send, and for products of executors: merging waits for neither.
CHECKPOINT_BUDGET_BYTES = 32 << 20
RESULT_BUDGET_BYTES = 32 << 20

#: HTTP/2 streams one connection may hold open: held an abusive client to 55 MB where it had taken 300.
STREAMS_PER_CONNECTION = 8

#: What gRPC lays out to read into on each connection before anything comes. Left alone it is a megabyte on every
#: connection that was ever busy: 200 MB for 200 workers, more than all else a leader holds.
READ_BUFFER_BYTES = 64 << 10

#: What a peer may send ahead of what we read, to begin with; gRPC widens it as far as a link is fast and long.
READ_AHEAD_BYTES = 256 << 10

#: The Euclidean norm of an update above which it is absurd, whatever is usual in its job (``learning.usual``).
UPDATE_NORM_MAX = 1e6

#: Bytes that an aggregator may say it moved for one version.
TOLD_BYTES_MAX = 1 << 50

#: Enrolment, where a stranger may knock: the authority's certificate, a request or reply, who may wait, and how long.
ENROL_AUTHORITY_MAX_BYTES = 8 << 10
ENROL_MESSAGE_MAX_BYTES = 16 << 10
ENROL_CONNECTIONS_MAX = 64
ENROL_DEADLINE_S = 10.0

#: Of those places, how many are for one address; who may wait for one, how long a connection may say nothing, and how
#: often those that came to nothing are told.
ENROL_PER_ADDRESS = 8
ENROL_WAITING_MAX = 128
ENROL_HELLO_S = 3.0
ENROL_TOLD_EVERY_S = 60.0

#: What a newcomer may tell of itself.
ENROL_FACTS_MAX = 32

#: A join line, before it is parsed: 64 characters of code, a host of up to 253, and what surrounds them.
JOIN_LINE_MAX_CHARS = 512

#: A member's key and certificates on disk.
IDENTITY_FILE_MAX_BYTES = 64 << 10

#: Workers that one progress report may list: building 100,000 empty ones from one envelope took seconds.
WORKERS_TOLD_MAX = 1024

#: What a device says of itself that is added up or shown: a loss beyond this is no loss, a time beyond it no time.
LOSS_SUM_MAX = 1e100
SECONDS_MAX = 1e9

#: While tensors arrive, their memory is lent to nobody else. A whole message has so long, and the time that its bytes
#: take at this rate; a peer that falls behind is cut off. A node that we dialled may be slower: no other peer waits.
PAYLOAD_GRACE_S = 60.0
PAYLOAD_LEAST_BYTES_PER_S = 32 << 10
LINE_LEAST_BYTES_PER_S = 16 << 10

#: What a chunk counts for, in messages, that is read and dropped since nobody awaits it.
UNAWAITED_CHUNK_COST = 50.0

#: What one peer may say: above it, it is read more slowly. Its heartbeats and its work are counted apart.
CONTROL_MESSAGES_BURST = 200
CONTROL_MESSAGES_PER_S = 50
WORK_MESSAGES_BURST = 2000
WORK_MESSAGES_PER_S = 1000

#: Streams one peer may open, and how long an opening may be put off before it is refused.
OPENINGS_BURST = 64
OPENINGS_PER_S = 16
OPENING_WAIT_MAX_S = 2.0

#: Blobs one peer may fetch at the same time, over all its connections.
FETCHES_PER_PEER = 8

#: A peer that broke the contract more often than this within the window is turned away, longer each time.
OFFENCES_MAX = 10
OFFENCES_WINDOW_S = 60.0
TURNED_AWAY_S = 10.0
TURNED_AWAY_LONGEST_S = 640.0

#: A connection on which nothing is asked is closed after this; a handshake has this long.
CONNECTION_IDLE_MAX_S = 300
HANDSHAKE_MAX_S = 5

#: Connections that a door takes at once, before any handshake; more are closed as they come. A member has two. Each
#: takes about 50 kB before its handshake: so many as this share of the machine's memory holds, or the least, whichever
#: is more. Where fewer files may be open, it is a share of them.
CONNECTIONS_LEAST = 4096
CONNECTIONS_MAX = 32_768
CONNECTION_BYTES = 50_000
CONNECTIONS_MEMORY_SHARE = 0.125
CONNECTIONS_FILE_SHARE = 0.5

#: The longest that a device is sent away for: by then much will have changed.
COME_MOST_S = 7 * 86400.0

#: The addresses of a cluster's managers that a device is told and keeps.
MANAGERS_MAX = 8

#: Open files that a manager or an agent asks the system for.
OPEN_FILES_WANTED = 65_536

#: Calls that are no streams, by each peer: certificates, commands, blobs. Above it commands and blobs are put off, for
#: as long as an opening may be; certificates are refused.
RENEWALS_BURST = 5
RENEWALS_PER_S = 1 / 60
OPERATIONS_BURST = 200
OPERATIONS_PER_S = 50
FETCHES_BURST = 500
FETCHES_PER_S = 50

#: Labels that an update may count, and examples that a device may say it has, or has of one of them.
LABELS_MAX = 4096
LABELLED_MAX = 1 << 40

#: Peers of one flock: each tells all others how it is.
PEERS_MAX = 256
#: A side of a matrix that is multiplied elsewhere.
SIDE_MAX = 1 << 24

#: Executors that one task may avoid.
AVOIDED_MAX = 256

#: The left side of one task, and its result; and a right side.
TASK_MAX_BYTES = 32 << 20
RIGHT_MAX_BYTES = 256 << 20

#: What a broker holds of its clients' tasks until they are done, and of their right sides.
TASKS_HELD_MAX_BYTES = 128 << 20
RIGHTS_HELD_MAX_BYTES = 256 << 20

#: What an executor keeps of right sides; it may have less memory than that.
RIGHTS_KEPT_MAX_BYTES = 256 << 20

#: Devices of one sealed sum: a roster of them is one message. Their certificates, each with that of its manager's own
#: authority, and signatures.
SEAL_GROUP_MAX = 256
SEAL_CERTIFICATE_MAX_BYTES = 1600
SEAL_SIGNATURE_MAX_BYTES = 80
SEAL_CARD_MAX_BYTES = 160

#: What a device of a sealed sum says to each neighbour, of all of them: an envelope with a share takes 33 bytes. And
#: shares of edges, of all neighbours that vanished.
SEAL_PARTS_MAX_BYTES = 33 * SEAL_GROUP_MAX
SEAL_EDGES_MAX_BYTES = 200 << 10

#: What a helper is told of a sealed sum: an envelope with a seed takes 32 bytes.
SEAL_HELPER_MAX_BYTES = 32 * SEAL_GROUP_MAX

#: What an upload of a sealed update carries beside its words: of 255 neighbours, each its shares of 255 edges.
SEALS_MAX_BYTES = 1_200_000

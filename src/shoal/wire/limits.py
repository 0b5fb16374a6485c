"""Every limit on what a peer may make us hold, in one place. Numbers only."""

#: Bulk travels in chunks of this size: 100 MB in one gRPC message is five times slower than in chunks.
CHUNK_BYTES = 1 << 20

#: The largest gRPC message we accept: a chunk and its protobuf prefix.
MESSAGE_MAX_BYTES = CHUNK_BYTES + 64

#: An envelope (everything but the tensors) is refused above this before it is parsed.
ENVELOPE_MAX_BYTES = 256 << 10

#: Replies to an operator may list many nodes; they cross in one message of their own.
REPLY_MAX_BYTES = 8 << 20

#: Tensors that one message may carry.
TENSOR_COUNT_MAX = 4096

#: Bytes of all tensors of one message together.
PAYLOAD_MAX_BYTES = 1 << 30

#: The JSON header of a safetensors file. A legal 87 MB header costs 78 s and 2.8 GB to parse.
TENSOR_FILE_HEADER_MAX_BYTES = 4 << 20

#: Ids and names that cross the wire.
NAME_MAX_CHARS = 128

#: Free text that crosses the wire (reasons, errors).
REASON_MAX_CHARS = 4096

#: A job's code: the zip, its files, and what they unpack to.
BUNDLE_MAX_BYTES = 16 << 20
BUNDLE_FILES_MAX = 1000
BUNDLE_UNPACKED_MAX_BYTES = 64 << 20

#: One content-addressed blob (a dataset shard, a bundle, an initial model).
BLOB_MAX_BYTES = 1 << 30

#: Memory a leader lends to uploads in flight: updates are held whole until they are checked, then merged and dropped.
UPLOAD_BUDGET_BYTES = 64 << 20

#: HTTP/2 streams one connection may hold open: held an abusive client to 55 MB where it had taken 300.
STREAMS_PER_CONNECTION = 8

#: The Euclidean norm of an update above which it is refused as absurd rather than merged.
UPDATE_NORM_MAX = 1e6

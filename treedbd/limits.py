"""Every limit of the interface and the configuration, once: default, bounds and unit.

There are two kinds. The constants are fixed by the interface: no setting changes them. The records
hold what an operator can set, one record for each table of the configuration; the settings read
values into them, and the server, the rules and the store use the same records.

How much work is done at a time (slices, batches, buffers) is not a limit on a caller; it is defined
in the module that does the work.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import attrs

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Fixed: addresses and data.
MAX_LABEL_CHARACTERS: Final = 63
"""Characters of a label, `<database>--<project>`: what one part of a host name may have."""
DEFAULT_PROJECT_DATABASES: Final = 100
"""Databases of a project that may create any, unless its `databases_max` says otherwise."""
MAX_HOST_BYTES: Final = 255 + len(":65535")
"""Bytes of a Host header."""
MAX_DEPTH: Final = 32
"""Keys on the path from the root of a database to any leaf; `.priority` does not count."""
MAX_KEY_BYTES: Final = 768
"""Bytes of UTF-8 in a key."""
MAX_WHOLE_NODES: Final = 10_000
"""Members and items that are stored in one piece, because the keys above them are long.

A long path leaves no room for the keys of rows below it, so whatever reads or writes a part of such
a value parses all of it. A value of at most `MIN_WHOLE_BYTES` may have more.
"""
MIN_WHOLE_BYTES: Final = 512 * KIB
MAX_WHOLE_BYTES: Final = 16 * MIB
"""Bytes of such a value, however few its members are."""
MAX_BODY_NESTING: Final = 4 * MAX_DEPTH
"""Levels of objects and arrays in a body, which may hold empty ones below `MAX_DEPTH`."""
MAX_PATCH_MEMBERS: Final = 2_000_000
"""Members of a PATCH: each is a place of its own to be found, authorised and written."""
MAX_DISCONNECT_BYTES: Final = 256 * KIB
"""Bytes of what one connection has pending to be written when it ends."""
MAX_DISCONNECT_NODES: Final = 2000
"""Members and items of one such write: it is brought into normal form and applied at once."""
MAX_TTL_S: Final = 10 * 365 * 86_400
"""Seconds after its last write for which a node is kept at most, if rules say when it goes."""
MAX_CURSORS: Final = 160
"""Readers of the change log of one database."""
MAX_HOOKS: Final = 32
"""Hooks of one database, with those of the configuration."""
MAX_FUNCTIONS: Final = 64
"""Functions that one database calls."""
MAX_FUNCTIONS_BYTES: Final = 256 * KIB
"""A body that registers functions."""
MAX_FUNCTION_PATTERNS: Final = 256
"""Functions of patterns of databases that one data directory keeps."""
MAX_FUNCTION_DATABASES: Final = 100
"""Databases to which one request adds functions."""
MAX_PATTERN_CHARACTERS: Final = 2048
"""Characters of a pattern of paths."""
MAX_HOOK_URL_CHARACTERS: Final = 2048
"""Characters of the URL that a hook calls."""
MIN_HOOK_SECRET_CHARACTERS: Final = 32
MAX_HOOK_SECRET_CHARACTERS: Final = 512
"""Characters of the secret that signs what a hook sends."""
MAX_HOOKS_BODY_BYTES: Final = 256 * KIB
"""Bytes of the definitions of hooks that an admin sends at once."""
MAX_SHOWN_BYTES: Final = 32 * MIB
"""Bytes of a value that can be indented, or shown by a 412: both need all of it at once."""

# Fixed: requests.
DEFAULT_TIMEOUT_S: Final = 30.0
MAX_WHERE_CONDITIONS: Final = 16
"""Conditions of `where`: each operator is one, and each plain value."""
MAX_WHERE_ITEMS: Final = 1000
"""Values in a list of `in`."""
MAX_DESCRIBED_CHILDREN: Final = 1000
"""Children that one description shows."""
MAX_DESCRIBED_CHARACTERS: Final = 200
"""Characters of a string that a description shows."""
MAX_COUNTED_BYTES: Final = 96 * MIB
"""Stored bytes that one description reads to count the children of its place; the next goes on."""
MAX_COUNTED_CHILD_BYTES: Final = MIB
"""Stored bytes that a description reads to count what is below one of the children that it shows,
and for all of them at most these:"""
MAX_COUNTED_CHILDREN_BYTES: Final = 16 * MIB
MAX_TIMEOUT_S: Final = 900.0
"""The largest `timeout`, in seconds."""
MAX_CONSOLE_FILES: Final = 256
"""Files of the console."""
MAX_CONSOLE_FILE_BYTES: Final = 2 * MIB
"""Bytes of one file of the console."""
MAX_CALLBACK_CHARACTERS: Final = 128
"""Characters of the function name in `callback`."""
MAX_TOKEN_CHARACTERS: Final = 8192
"""Characters of a token."""
MAX_UID_CHARACTERS: Final = 256
"""Characters of the user id in a token, its provider's prefix included."""
MAX_UID_PREFIX_CHARACTERS: Final = 64
"""Characters that precede the user ids of a provider."""
MAX_CLAIM_LEVELS: Final = 32
"""Levels of objects and arrays in the claims of a token, the outermost included."""
MAX_TOKEN_REQUEST_BYTES: Final = 16 * KIB
"""Bytes of a request for a new token: its claims, which are parsed at once."""
MAX_MADE_TOKEN_S: Final = 30 * 86_400
"""The longest life of a token that an admin requests for a user, in seconds."""
MAX_RENEWED_S: Final = 12 * 3600
"""Seconds from when an admin signed in to the end of the last token that replaces the first."""
MAX_VOLATILE_BYTES: Final = 32 * KIB
"""Bytes of JSON that one write sets at one volatile place."""
MAX_VOLATILE_CHANGES: Final = 1000
"""Volatile places that one write sets."""
MAX_RESUMED_WRITES: Final = 10_000
MAX_RESUMED_BYTES: Final = 16 * MIB
MAX_RESUMED_PATHS: Final = 50_000
"""Writes, bytes of change log, and paths written with those above them, that a resumed stream
replays; beyond, it starts again."""
RULES_VERSIONS: Final = 50
"""Versions of the rules of a project that are kept, that in force included."""
WAITING_DRAFTS: Final = 4
"""Rules documents of a project that wait to be checked for dry runs and trials, while one is."""
MAX_TRIAL_BYTES: Final = 2 * MIB + 512 * KIB
"""Bytes of a request to try rules: a draft of a mebibyte and a value, both escaped."""
MAX_CHANGED_KEYS: Final = 100
MAX_CHANGED_KEY_BYTES: Final = 8 * KIB
"""Keys of a PATCH, and bytes of them as JSON, that an event without values names."""

# Fixed: what the interpreter's stack allows.
MAX_RULES_NESTING: Final = 200
"""Levels of brackets, prefixes, members and calls in an expression of the rules."""

Unit: TypeAlias = Literal["bytes", "bytes a second", "seconds", "number"]

_BOUNDS: Final = "bounds"


@attrs.frozen
class Bounds:
    """What an operator may set a limit to, in `unit`; 0 seconds are always too few."""

    low: float
    high: float
    unit: Unit


def bounds_of(field: attrs.Attribute[Any]) -> Bounds:
    """Return the bounds of a field that `limit` made."""
    bounds: Bounds = field.metadata[_BOUNDS]
    return bounds


def has_bounds(field: attrs.Attribute[Any]) -> bool:
    """Return whether `limit` made a field."""
    return _BOUNDS in field.metadata


def limit(default: Any, low: float, high: float, unit: Unit = "number") -> Any:
    """Return the field of a limit.

    The configuration takes values from `low` to `high`. A program may go below `low`, down to 1 or
    to any time above 0: a test can work within bounds that no operator wants.
    """
    above_zero = (
        attrs.validators.ge(0) if low == 0 and unit != "seconds" else attrs.validators.gt(0)
    )
    return attrs.field(
        default=default,
        validator=[above_zero, attrs.validators.le(high)],
        metadata={_BOUNDS: Bounds(low, high, unit)},
    )


@attrs.frozen
class Limits:
    """`[limits]`: how much clients may send, request and hold open.

    A client address is an IPv4 address or the first 64 bits of an IPv6 address.

    Attributes:
        write_body_bytes: the body of a request; beyond it 413.
        write_nodes: members and array items in the body of a write; beyond it 400.
        parsed_bytes: memory, as it is estimated, of bodies that are parsed at a time; others wait,
            large ones apart from small ones. After the timeout of the request 504.
        string_bytes: UTF-8 of one string; beyond it 400.
        request_line_bytes: the request line without its line end (RFC 9112, section 3); beyond it
            414. The longest legal path takes 74 KiB when encoded.
        header_bytes: all header lines of a request together; beyond it 431. The same bound holds
            for the trailer lines of a chunked body.
        header_count: header lines of a request; beyond it 431.
        held_body_bytes: bodies of all requests that are arriving or under way, of those that did
            not come in one piece, and messages of WebSockets until they are parsed; beyond it 503.
            One address may have a quarter of it, and one body in any case.
        held_bytes: what connections make the server hold between requests, as it is estimated: long
            heads, the queries of streams and listens, and the windows of these; beyond it 503.
        held_bytes_per_address: the same for one client address.
        held_bytes_per_connection: the same for one connection.
        waiting_bytes: what waits in memory for clients to read it, responses and events of all
            clients together; beyond it 503. One address may have a quarter of it; beyond it 429.
        waiting_file_bytes: the same for what waits in temporary files, which hold large reads.
        connections: open connections; beyond it 503.
        connections_per_address: open connections of one client address; beyond it 429.
        handshake_s: from the accepted connection to the end of its TLS handshake; before that, from
            the accepted connection to the end of its header of the PROXY protocol, if it has one.
        head_s: from the first byte of a request to the end of its head; after it 408.
        body_s: from the head to the end of the body, plus the time that the bytes received so far
            take at `body_bytes_per_s`; after it 408.
        body_bytes_per_s: the least rate of a body.
        idle_s: how long a connection stays open between two requests, or before the first.
        write_stalled_s: how long a client may read less than `read_bytes_per_s` of what is waiting
            for it, on average; streams have a limit of their own.
        read_bytes_per_s: the least rate of a client that reads.
        linger_s: how long a closing connection waits for a client that neither sends nor closes;
            six times as long for one that goes on sending. One that has ended its sending direction
            waits as long for its reply to begin.
        databases: databases that have data; beyond it 503.
        open_databases: databases whose files are open; beyond it those that are idle are closed,
            and 503 if none is. Fewer if the process may not open so many files.
        cache_bytes: pages of all open databases that are kept in memory together, in which each
            database has an equal part of at least 64 KiB.
        kept_answer_bytes: answers to reads of all databases that are kept in memory together until
            a write changes them; those used longest ago are dropped first. 0 keeps none.
        where_children: children that one request with `where` looks through; beyond it 400.
        watched_fields_per_path: fields by which the streams and listens of the children of one path
            order and select, together: a write there reads each of them; beyond it 503.
        volatile_bytes: what the volatile nodes of one database take as JSON, with
            256 bytes for each; beyond it 507.
        disconnect_writes_per_connection: places that one connection or stream has pending to be
            written when it ends; beyond it 400.
        streams: open streams; beyond it 503.
        streams_per_database: open streams of one database; beyond it 429.
        streams_per_address: open streams of one client address; beyond it 429.
        streams_per_uid: open streams of one user of a project; beyond it 429. 0 means no limit.
        streams_per_project: open streams of one project; beyond it 429. 0 means no limit.
        sockets: open WebSockets of the real-time protocol; beyond it 503.
        sockets_per_address: open WebSockets of one client address; beyond it 503.
        listens_per_connection: listens of one WebSocket; beyond it `unavailable`.
        message_pieces: frames into which a client may cut one message of the real-time protocol;
            beyond it the WebSocket is closed with 1009.

    """

    write_body_bytes: int = limit(16 * MIB, 1, 256 * MIB, "bytes")
    write_nodes: int = limit(128 * MIB, 1, 128 * MIB)
    parsed_bytes: int = limit(256 * MIB, 1, 2**40, "bytes")
    string_bytes: int = limit(10 * MIB, 1, 256 * MIB, "bytes")
    request_line_bytes: int = limit(96 * KIB, KIB, MIB, "bytes")
    header_bytes: int = limit(64 * KIB, KIB, MIB, "bytes")
    header_count: int = limit(100, 10, 10_000)
    held_body_bytes: int = limit(1024 * MIB, 1, 2**40, "bytes")
    held_bytes: int = limit(512 * MIB, 1, 2**40, "bytes")
    held_bytes_per_address: int = limit(128 * MIB, 1, 2**40, "bytes")
    held_bytes_per_connection: int = limit(64 * MIB, 1, 2**40, "bytes")
    waiting_bytes: int = limit(256 * MIB, 1, 2**40, "bytes")
    waiting_file_bytes: int = limit(8 * 1024 * MIB, 1, 2**50, "bytes")
    connections: int = limit(20_000, 1, 1_000_000)
    connections_per_address: int = limit(5000, 1, 1_000_000)
    handshake_s: float = limit(10.0, 0, 3600, "seconds")
    head_s: float = limit(20.0, 0, 3600, "seconds")
    body_s: float = limit(30.0, 0, 3600, "seconds")
    body_bytes_per_s: int = limit(4096, 1, 1024 * MIB, "bytes a second")
    idle_s: float = limit(75.0, 0, 86_400, "seconds")
    write_stalled_s: float = limit(60.0, 0, 86_400, "seconds")
    read_bytes_per_s: int = limit(4096, 1, 1024 * MIB, "bytes a second")
    linger_s: float = limit(5.0, 0, 60, "seconds")
    databases: int = limit(4000, 1, 1_000_000)
    open_databases: int = limit(4000, 1, 1_000_000)
    cache_bytes: int = limit(256 * MIB, MIB, 2**40, "bytes")
    kept_answer_bytes: int = limit(64 * MIB, 0, 2**40, "bytes")
    where_children: int = limit(100_000, 1, 100_000_000)
    watched_fields_per_path: int = limit(4096, 1, 1_000_000)
    volatile_bytes: int = limit(4 * MIB, KIB, 2**40, "bytes")
    disconnect_writes_per_connection: int = limit(100, 1, 10_000)
    streams: int = limit(16_000, 1, 10_000_000)
    streams_per_database: int = limit(16_000, 1, 10_000_000)
    streams_per_address: int = limit(4000, 1, 10_000_000)
    streams_per_uid: int = limit(4000, 0, 10_000_000)
    streams_per_project: int = limit(0, 0, 10_000_000)
    sockets: int = limit(16_000, 1, 10_000_000)
    sockets_per_address: int = limit(4000, 1, 10_000_000)
    listens_per_connection: int = limit(1000, 1, 1_000_000)
    message_pieces: int = limit(4096, 1, 1_000_000)

    @property
    def least_read_bytes(self) -> int:
        """How much of what is waiting for it a client has to read within `write_stalled_s`."""
        return max(1, int(self.write_stalled_s * self.read_bytes_per_s))


@attrs.frozen
class RateLimits:
    """`[rates]`: how much callers may do in each second; 0 means no limit, beyond one 429.

    What a caller has not used for `burst_s` seconds may be used at once. Bytes are those of bodies
    that were received, of responses and of events; they are counted when they have been sent, so a
    caller that has had more than its rate waits until that is made up for. A client address is an
    IPv4 address or the first 64 bits of an IPv6 address.

    Attributes:
        burst_s: how many seconds' worth a caller may use at once.
        requests_per_address, writes_per_address, bytes_per_address: of one client address.
        requests_per_uid, writes_per_uid, bytes_per_uid: of one user of a project.
        requests_per_project, writes_per_project, bytes_per_project: of one project.

    """

    burst_s: float = limit(10.0, 0, 3600, "seconds")
    requests_per_address: int = limit(0, 0, 10_000_000)
    writes_per_address: int = limit(0, 0, 10_000_000)
    bytes_per_address: int = limit(0, 0, 2**40, "bytes a second")
    requests_per_uid: int = limit(0, 0, 10_000_000)
    writes_per_uid: int = limit(0, 0, 10_000_000)
    bytes_per_uid: int = limit(0, 0, 2**40, "bytes a second")
    requests_per_project: int = limit(0, 0, 10_000_000)
    writes_per_project: int = limit(0, 0, 10_000_000)
    bytes_per_project: int = limit(0, 0, 2**40, "bytes a second")


PROJECT_RATES: Final = tuple(
    field.name for field in attrs.fields(RateLimits) if not field.name.endswith(("_s", "_address"))
)
"""The rates that a project may have of its own."""


@attrs.frozen
class StreamLimits:
    """`[streams]`: how streams are kept alive, and what is kept for them.

    Attributes:
        keep_alive_s: a stream that has sent nothing for this long sends a keep-alive.
        buffer_bytes: events that wait for a slow reader; beyond it one `put` replaces them.
        stalled_s: how long the reader of a stream may read nothing before it is closed.
        retain_events: writes that the change log keeps for streams that resume; 0 keeps none.
        retain_entry_bytes: a write in the change log; a longer one is kept without its body.

    """

    keep_alive_s: float = limit(30.0, 0, 3600, "seconds")
    buffer_bytes: int = limit(MIB, KIB, 256 * MIB, "bytes")
    stalled_s: float = limit(60.0, 0, 86_400, "seconds")
    retain_events: int = limit(1000, 0, 10_000_000)
    retain_entry_bytes: int = limit(64 * KIB, KIB, 256 * MIB, "bytes")


@attrs.frozen
class ReaderLimits:
    """`[readers]`: what the change log keeps for its readers, such as the archive.

    Attributes:
        lag_bytes: entries that a reader has not read; beyond it the log is not kept for it.
        lag_s: how long a reader may read nothing while there are entries; beyond it the same.
        logged_bytes: a write in the change log while a reader needs it whole; a longer one is kept
            without its body.

    """

    lag_bytes: int = limit(1024 * MIB, MIB, 2**40, "bytes")
    lag_s: float = limit(86_400.0, 0, 10 * 365 * 86_400, "seconds")
    logged_bytes: int = limit(32 * MIB, 64 * KIB, 512 * MIB, "bytes")


@attrs.frozen
class HookLimits:
    """`[webhooks]`: what events of hooks show of a write, and how they are sent.

    Attributes:
        events_per_write: events of one write, of all hooks together; beyond it 400.
        value_bytes: a value before or after a write as JSON; a longer one is left out.
        write_value_bytes: all these values of one write; beyond it the others are left out.
        timeout_s: a receiver that has not answered a request after so long has failed.
        concurrency: requests of one hook of one database at a time, each of another path.
        attempts: how often an event is sent that its receiver does not accept.
        dead_letters: events of one hook of one database that are kept after that.
        first_wait_s: between the first attempt and the second; each wait is longer.
        longest_wait_s: between two attempts, at most.

    """

    events_per_write: int = limit(1000, 1, 100_000)
    value_bytes: int = limit(64 * KIB, 0, 16 * MIB, "bytes")
    write_value_bytes: int = limit(MIB, 0, 64 * MIB, "bytes")
    timeout_s: float = limit(10.0, 0, 300, "seconds")
    concurrency: int = limit(8, 1, 256)
    attempts: int = limit(30, 1, 1000)
    dead_letters: int = limit(1000, 0, 100_000)
    first_wait_s: float = limit(1.0, 0, 3600, "seconds")
    longest_wait_s: float = limit(300.0, 0, 86_400, "seconds")


@attrs.frozen
class FunctionLimits:
    """`[functions]`: the calls of functions of Firebase.

    Attributes:
        timeout_s: a call that is not answered after so long is repeated.
        concurrency: calls of one function at a time; the emulator starts a process for each.

    """

    timeout_s: float = limit(60.0, 0, 3600, "seconds")
    concurrency: int = limit(2, 1, 256)


@attrs.frozen
class RulesLimits:
    """`[rules]`: how large the rules of a project may be, and what one request may cost them.

    Attributes:
        document_bytes: a rules document.
        node_depth: keys on the longest path of a document; no data is deeper.
        expression_bytes: UTF-8 of one expression.
        nesting: levels of brackets, prefixes, members and calls around the innermost operand.
        chain_terms: operands that operators of one level join.
        regex_size: instructions of one compiled regular expression, as `rules.regex` estimates.
        judged_characters: characters that the rules read for one write, and half as many for one
            read, of the tree, in string methods, regular expressions and comparisons, and as paths.

    """

    document_bytes: int = limit(MIB, 1, 64 * MIB, "bytes")
    node_depth: int = limit(MAX_DEPTH, 1, MAX_DEPTH)
    expression_bytes: int = limit(16 * KIB, 1, MIB, "bytes")
    nesting: int = limit(MAX_RULES_NESTING, 1, MAX_RULES_NESTING)
    chain_terms: int = limit(2000, 2, 100_000)
    regex_size: int = limit(10_000, 1, 20_000)
    judged_characters: int = limit(64 * MIB, 1, 2**40)

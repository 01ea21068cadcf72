"""One JSON tree for many callers: reads, group commit, watchers, rules in force.

database         one database: read the last durable state, write, watch, close
requests         writes and their outcomes, and the errors that refuse them
slices           runs the steps of all long work, some milliseconds in each turn
runtime          the clock, the threads, the statistics and the problems of all databases
session_owners   which process has which disconnect writes; those of a process that died
election         which process reads the logs for a purpose; its file in the data directory
group_commit     the way of all writes: queue, batch, commit, round; a full disk, recovery
write_lock       which process may write next, for each batch; what others have written meanwhile
apply            one write in a transaction: If-Match, rules, rows, quotas; indexes built
event_capture    the events of hooks, captured in the transaction of a write
expiry           when nodes go (`.ttl`): the index of times, kept by writes; expired nodes removed
expirer          which process removes expired nodes, and when
first_hooks      hooks that databases have from their first write on
volatile         values in memory alone: written at once, flushed to watchers at a bounded rate
volatile_exchange  values in memory alone, sent to the other processes that serve a database
volatile_order   requests that wait for the values of other processes, or for the lock of all
rights           what rules allow callers, at a request; trials of rules, without a daemon
watchers         watchers by path; their rights, judged again; what a commit means to each
watched_queries  the events of each watched query, found once for all its streams
copied_entries   entries of another daemon's change log, applied here
log_reader       reads the change log under a name, and continues where it was
reader_lags      how far readers of change logs are from the end; which have lost their places
resume           what clients missed (Last-Event-ID), from the change log; replays of single writes
answers          rendered answers, kept until a write changes them
active_rules     the rules of one project: stored, compiled, replaced
disconnect       onDisconnect: writes that are done when a session ends
catalog          the projects and databases that exist or may be created
files            the files of a catalog's databases, also of those that others create
open_databases   which files are open; refused and damaged databases; memory for pages
removal          the files of a deleted database removed, whole or not at all
backup_folder    the directory of backups: what is in it, and its lock
data_directory   the layout of a data directory, and the databases that are in it
"""

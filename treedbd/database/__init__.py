"""One JSON tree for many callers: reads, group commit, watchers, rules in force.

database         one database: read the last durable state, write, watch, close
requests         writes and their outcomes, and the errors that refuse them
slices           runs the steps of all long work, some milliseconds in each turn
runtime          what databases are given and share: clock, threads, statistics
session_owners   which process has which disconnect writes; those of a process that died
group_commit     the way of all writes: queue, batch, commit, round; a full disk, recovery
write_lock       the write lock, held for each batch; what other processes have written
apply            one write in a transaction: If-Match, rules, rows, quotas; indexes built
rights           what rules allow callers; trials of rules, without a daemon
watchers         watchers by path, their rights, and what a commit means to each
watched_queries  windows of watched queries, one for all streams of a query
resume           what clients missed, from the change log; replays of single writes
answers          rendered answers, kept until a write changes them
active_rules     the rules of one project: stored, compiled, replaced
disconnect       writes that are done when a session ends
catalog          the projects and databases that exist or may be created
files            the files of a catalog's databases, also of those that others create
open_databases   which files are open; refused and damaged databases; memory for pages
data_directory   the layout of a data directory, and the databases that are in it
"""

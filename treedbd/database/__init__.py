"""A database for many callers: reads, group commit, listeners, rules in force.

database         one database: read what is durable, write, watch, close
requests         requests to a database, their outcomes and errors
slices           work in slices, between which the reactor serves others
runtime          what databases are given from outside: time, threads, owner, statistics
group_commit     writes that are committed together, and what happens between batches
write_lock       whose process may write, and what the others have written
apply            one write in a transaction: conditions, quotas, rules, rows
rights           the rules in force judged for requests and listeners
watchers         listeners by path, and what a commit means to them
shared_window    the window of a watched query, shared by all who watch it
resume           what listeners missed, from the change log
answers          rendered answers, kept until a write changes them
active_rules     the rules of one project: stored, loaded, replaced
rules_trial      rules judged over a tree in memory, without a daemon
disconnect       writes that are done when a session ends
indexes          indexes built in the background, and dropped
catalog          which projects and databases there are
files            the files of the databases of a catalog
open_databases   which files are open, refused, checked for damage
data_directory   the layout of a data directory
"""

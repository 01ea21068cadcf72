"""The tree as rows in a storage engine: read, queried, changed, indexed and checked.

engine            what a storage engine promises: an ordered, transactional map of bytes, with a log
memory            the engine in memory, for experiments and tests
on_demand         engines whose file is created at the first write, closed when idle, and reopened
rows              one row: its key, how a value is encoded in it, check sums, the format of a page
pages             rows put together to pages, and changed in them
nodes             which rows a node is stored in; values, children, printed JSON, tags and hashes
volatile          values in memory, merged over the rows of a store
select            the children that a query selects, in its order: by key, index, rank or `where`
outline           how many children a large container has, and which is at a position; kept
indexes           indexes as rows: keys, how far each is built, kept by writes; ranks of children
node_writer       the tree changed in a transaction: rows put, split, merged and removed
bulk              documents of any size, written or merged fragment by fragment
changelog         the change log: what an entry holds, and how long it is kept
cursors           where each reader of the change log is; what the log is kept for
hooks             what is to be called when data changes
disconnect_rows   writes that wait for the end of a session
expiry_rows       when nodes go: an index of times
rules_versions    the last versions of the rules of a project, and the files of them
usage             how much a database holds, for quotas
verify            all rows and index entries read, and what is wrong with them
directory_lock    the lock of a data directory, and how a command takes it over
shelf             the file of a database as a mapping, for Python programs
"""

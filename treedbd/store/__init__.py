"""The tree as rows in a storage engine: read, changed, indexed, checked.

engine            the interface of storage engines: an ordered, transactional map of bytes
memory            the engine in memory
on_demand         engines whose file is created, closed and opened again as it is needed
rows              rows: their keys, how values are encoded, and how rows are found in pages
pages             how rows are put together to pages, and changed in them
nodes             nodes read from rows: values, children, printed JSON, tags and hashes
select            the children that a query selects, in its order
indexes           indexes as rows: keys, entries, how far each is built
node_writer       the tree changed in a transaction
bulk              large documents written and merged fragment by fragment
changelog         what the change log holds of a commit
disconnect_rows   writes that wait for the end of a session
usage             how much a database holds
verify            all rows read, and what is wrong with them
lock              the lock of a data directory, and how it is taken over
shelf             the file of a database as a mapping, for programs
formats           rows of older formats
"""

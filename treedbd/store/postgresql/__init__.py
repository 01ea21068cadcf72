"""PostgreSQL as the store of a cluster, in SQL; knows no Twisted.

engine       the engine over one database: PostgreSQL decides and keeps, a local copy is read
commits      one commit: what it compares and adds, how it is sent, and doubt about it resolved
connection   connections with deadlines, their settings, pools and pipelines
schema       the tables, created and migrated
fetching     catch-up: what a copy lacks, read at one moment
cluster      what daemons share: projects, rules, the read index, hints, leases, their state
removal      the deletion of a database: at once for all daemons, its rows in parts
moving       a move of all databases in or out: what it changes there, and how it is compared
"""

"""Databases in PostgreSQL that several daemons serve, each from copies of its own.

service       starts, follows hints, reports, stops; the lease of the owner of sessions
files         the copies of the databases, and where the rules of projects are stored
replica       one database: when its copy follows, when it may be written, commits in doubt
volatile      what is volatile, to and from other daemons
election      which daemon reads the logs for a purpose: the lease that it renews
connections   the connections of a daemon, threads to wait in, shared reads of states
"""

"""Databases in process, for programs that embed the service.

database   one database, as coroutines: get, put, patch, push, remove, transaction, watch
requests   the calls of a program as requests, and the options of queries
values     values between a program and the tree; waiting in Twisted and asyncio
watch      what a program watches: the events that wait, and their iterator
"""

"""The real-time protocol of the SDKs, over WebSockets.

opening    from a request to a session
socket     one WebSocket, and what it has to send, in order
wire       frames and pieces of messages
messages   messages parsed and printed: requests, queries, statuses
session    one client: its identity, its actions, its answers
listens    listens and gets
writes     puts, merges and transactions
registry   the open sockets: limits, signs of life, expiry
context    what sessions share
"""

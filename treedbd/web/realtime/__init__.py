"""The real-time protocol of the SDKs, over WebSockets.

opening    from a request for `/.ws` to a session; the answer at `/.lp`
socket     one WebSocket: bytes to messages, and the outbox, which orders and bounds what is sent
wire       frames cut and made, pieces of long messages joined
messages   messages parsed and printed: requests, queries, long writes, words of errors
session    one client: its inbox, its identity, its actions, its answers, its presence
listens    listens, gets, and the values that both send
writes     puts, merges and transactions
context    what sessions share, the order of their requests, hashes of values
"""

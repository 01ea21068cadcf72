"""The real-time protocol of the SDKs, over WebSockets.

opening    from a request for `/.ws` to a session; the answer at `/.lp`
session    one client: its identity, its requests and their answers; what sessions share
listens    listens, gets, and the values that both send; hashes of values
writes     puts, merges and transactions, now or at the end of the session
observed   sessions whose requests are recorded while an admin looks
socket     one WebSocket: bytes to messages; what waits to be handled, or for a slow client
messages   messages parsed and printed: requests, queries, long writes, words of errors
wire       frames cut and made, pieces of long messages joined
"""

"""The HTTP/1.1 server: from bytes to requests, and from replies to bytes.

parser       bytes to requests, header fields, codings of bodies; errors of the server; no I/O
request      what resources see of a request, its reply; request ids, paths as logs show them
content      bytes that wait for slow readers: one copy for all, bounded for all and by address
senders      long replies and frames, sent as fast as clients read; upgraded connections
connection   one connection: its requests, the writes to its socket, its deadlines (408)
registry     all connections: counted, admitted, swept, drained; server options
server       the factory for endpoints; the PROXY header that comes before TLS
proxies      parsing only: the PROXY header, `Forwarded` and `X-Forwarded-*` of trusted proxies
adapter      requests of another program's site
"""

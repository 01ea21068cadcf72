"""The HTTP/1.1 server: from bytes to requests, and from replies to bytes.

headers      header fields, media types that a client accepts, codings of request bodies
parser       bytes to requests, without I/O; the errors that the server sends by itself
request      what resources see of a request, its reply; request ids, paths as logs show them
content      bytes that wait for slow readers: one copy for all, counted, bounded, also growing
writer       bytes sent as fast as clients read, in slices; upgraded connections
connection   one connection; the registry that admits, times and drains all of them
server       the factory for endpoints, also for those that speak the PROXY protocol
proxies      the PROXY protocol, `Forwarded` and `X-Forwarded-*` of trusted proxies
adapter      requests of another program's site
"""

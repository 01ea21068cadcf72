"""The HTTP/1.1 server: from bytes to requests, and from replies to bytes.

interface    what resources see of a request and a connection
headers      header fields, and what is negotiated by them
parser       from bytes to requests, without I/O, and the errors of the server itself
request      requests and their replies
content      what is sent, shared by its readers, counted and bounded
writer       from replies to bytes: as clients read, in order, in turns
connection   connections: admitted, timed, served, ended
server       the factory that endpoints are given, and the PROXY protocol
proxies      what trusted proxies say of a request
adapter      requests of another program's site
"""

"""The interface over HTTP: requests, reads, writes, responses, pages.

resource          all routes, and the dispatch of requests
options           what the interface is configured with
context           what handlers share
handlers          the handlers that read
request           from an HTTP request to a request to a database
addressing        from an address to a database and a place in it
reading           reads rendered, shared and continued; explanations
write             the handlers that write, bodies of any size
response          responses with their headers, codings and wrappings
errors            from exceptions to responses
origins           which pages may send requests
rates             what callers may do in a second, and bodies that wait
admin             what admins read and change
activity          who does what now, and counts of requests
request_log       the access log and the warnings of slow requests
development_log   what development mode says of requests
pages             pages for browsers: front page, documentation, health
queues            what one listener has to be sent
openapi           the OpenAPI document
"""

"""The interface over HTTP: requests, reads, writes, responses, pages.

resource          all routes, the dispatch of requests; the handlers that read, repeated reads
write             the handlers that write; bodies of any size
request           requests parsed: database and place, parameters, what a read shows, dialects
reading           reads rendered, shared, long ones into a file, in slices; missing indexes
response          responses with their headers, codings, CORS, JSONP and downloads
errors            from exceptions to responses: the table of statuses and codes
listeners         the open streams and WebSockets: limits, and what is due with the time
streams           one stream of Server-Sent Events: frames, what waits for a slow client, its end
rates             what callers do in a second: 429; bodies that wait to be parsed
origins           which pages of browsers may send requests
context           what handlers share, users whom the application has logged in
admin             what admins read and change: rules, databases, activity, the change log
activity          how many requests, how long they take, which are slowest; counts for metrics
request_log       the access log, slow requests, spans of traced ones; the log of development mode
pages             pages for browsers: front page, documentation; health
openapi           the OpenAPI document
"""

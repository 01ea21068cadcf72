"""The interface over HTTP: requests, reads, writes, responses, pages.

resource          repeated reads, sent from what is kept; all routes; the handlers that read
write             the handlers that write; bodies of any size
request           requests parsed: database and place, parameters, what a read shows, dialects
reading           reads rendered, shared, long ones into a file, in slices; missing indexes
descriptions      what a node is and how large, with a page of its children, without their values
response          responses with their headers, compression, CORS, JSONP and downloads
errors            from exceptions to responses: the table of statuses and codes
listeners         the open streams and WebSockets: limits, and what is due with the time
streams           one stream of Server-Sent Events: frames, its bounded queue, its end
rates             what callers do in a second: 429; bodies that wait to be parsed
origins           pages that may not send requests (CSRF, DNS rebinding); CORS is in response
context           the objects that all handlers share; users whom the application has logged in
rules             the rules of a project: read, checked, put; their versions; trials of rules
admin             what admins read and change besides: databases, activity, the change log
databases         projects listed, databases created and deleted, for admins
cursors           readers of change logs listed, their cursors removed, for admins
dead_letters      what webhooks could not deliver listed, replayed and discarded, for admins
webhooks          the hooks of a database listed, put and removed, for admins
feed              events of hooks, for the programs of admins that read them
function_triggers  functions of Firebase that register, for admins
audit             where writes come from; denied writes and reads of admins, recorded
backups           backups taken and listed, for admins
standby           what standbys request of a first: logs, bases, terms; and what promotes one
activity          how many requests, how long they take, which are slowest; counts for metrics
feeds             items recorded while an admin looks, and the streams that send them
inspection        what admins see as it is: requests, as they come too, and connections
seen_requests     requests recorded while an admin looks, without tokens; filters of them
profile           the operations on a database as they come, as the profiler of Firebase reads them
series            requests, errors and commits of each of the last seconds
request_log       the access log, slow requests, spans of traced ones; the log of development mode
pages             pages for browsers: front page, documentation; health
console           the files of the console, below /.console/
openapi           the OpenAPI document
"""

"""The commands of `treedb`; documents, the shell and `run` have packages of their own.

main             the entry point
parser           the command line: its subcommands, and its completion
exit             what commands print and how they end: output, colours, errors, status
options          what commands share: URLs, paths, addresses, tokens, queries, settings
http_client      the HTTP client, and the run of a command that sends requests
data             get, set, push, update, remove, ls, tree, log and transaction
watch            watch: the events of a path, parsed, printed, resumed after a break
rules            rules: check without a daemon; get, put and explain by one
rules_testing    rules test, without a daemon
cp               cp and mv: a value copied between daemons, moved by one atomic write
databases        database: databases listed, created and deleted
cursors          cursors: the readers of change logs, and removal of their cursors
hooks            hooks: what is called when data changes, listed, put and removed
top              top: what clients do with the databases of a project
profile          top --profile: the operations on a database, added up by path
console          console: the console, opened in a browser
token            token: a token for a project
init             init: the files that a daemon needs
serve            serve: the daemon in the foreground
audit            audit verify and export: audit files, without a daemon
backup           backup and restore
archive          archive: moments listed, a key made; restore --to and backup verify with an archive
path_restore     restore --path: one path brought back into a running database
check            check and compact
promote          promote: a standby becomes the first
migrate          migrate: from a hosted service, or another treedb
cluster          cluster status and move; what both need of PostgreSQL
moving           the work of a move, with the driver of PostgreSQL
"""

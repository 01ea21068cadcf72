"""The commands of `treedb`; those of documents and of the shell are in the packages below.

main             the entry point
parser           the command line: its subcommands, and its completion
exit             how a command ends: its output, its error, its status
output           files that appear when they are whole, colours, lines with a caret
options          what commands share: URLs, addresses, tokens, queries, settings
places           a database and a path in it, as one URL and as words
http_client      the blocking client, for commands that must start fast
client           the client of commands that run a reactor
data             get, set, push, update, remove, ls, tree and log
watch            watch: the events of a path, resumed after a break
events           Server-Sent Events: parsed, printed, where to resume
rules            rules: check without a daemon; get, put and explain by one
rules_testing    rules test, without a daemon
cp               cp: a value copied between any two daemons
mv               mv: a value moved by one atomic write
transaction      transaction: a value changed by an expression of jq
top              top: what clients do with the databases of a project
token            token: a token for a project
init             init: the files that a daemon needs
serve            serve: the daemon in the foreground
backup           backup and restore
check            check and compact
migrate          migrate: from a hosted service, or another treedb
cluster          cluster status and move; what both need of PostgreSQL
moving           the work of a move, with the driver of PostgreSQL
"""

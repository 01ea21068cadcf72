"""The commands of `treedb`.

main             the entry point
parser           the command line: its subcommands, and its completion
exit             how a command ends
output           where results are written, and their colours
options          options that commands share: addresses, queries, URLs
http_client      the blocking client, for commands that start fast
client           the client of commands that run a reactor
data             get, set, push, update, remove, ls, tree, log
watch            watch
rules            rules: check, test, get, put, explain
cp               cp
mv               mv
transaction      transaction
top              top
token            token
init             init
serve            serve
backup           backup and restore
check            check and compact
migrate          migrate: from a hosted service, or another treedb
move             move: into PostgreSQL or back
moving           what a move does, with the driver of PostgreSQL
cluster          cluster status
cluster_status   the status of a cluster, with the driver of PostgreSQL
"""

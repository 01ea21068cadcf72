"""The tree as pure values: what is stored, addressed, changed, selected and watched.

types       the words of the tree as types (paths, places, values, changes, views), and its errors
path        the syntax of paths and keys, their order, that order as bytes; push ids
pattern     patterns of paths, and the places of their shape that an edit may change
shape       sets of paths of one depth, as rules apply to them, and what two have in common
value       the normal form of values, their numbers, parsing and printing JSON
edit        writes as lists of changes: parsed bodies, server values, and their effect on a value
overlay     the tree after edits, as a view over the tree before them
fragments   large documents and long strings, in pieces that can be parsed one by one
query       queries, `where` and shallow reads: which children a read selects, in which order
window      one window as a value: the children that a query with a limit shows, who enters, leaves
event       the events that one write is for each listener
hashes      entity tags, lists of them in If-Match, hashes of the real-time protocol
"""

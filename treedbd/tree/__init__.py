"""The tree as pure values: what is stored, addressed, changed, selected and watched.

types       the words of the tree as types: paths, places, JSON, views; and its errors
path        paths and keys: their syntax, their order, and that order as bytes
value       values in their normal form, parsed and printed
edit        what a write changes: parsed bodies, server values, and their effect on a value
overlay     a view of the tree after edits, of which nothing is copied
fragments   documents of any size in pieces that can be parsed by themselves
query       which children of a node a read selects, and in which order
window      the children that a watched query shows, and who enters and leaves
event       what listeners receive of a write
hashes      entity tags, and the hashes of the real-time protocol
push_id     keys that sort in the order in which they were made
"""

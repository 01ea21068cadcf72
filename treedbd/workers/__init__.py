"""Several processes that serve the same databases.

supervisor   the parent: opens the endpoints, starts the workers and keeps them running
process      the process of one worker, and the hints that workers send each other
volatile     values in memory alone: what workers send each other by the parent, which orders it
protocol     what they exchange: commands, the start of a worker, its log, the board
"""

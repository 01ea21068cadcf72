"""Several processes that serve the same databases.

supervisor   the parent: opens the endpoints, starts the workers and keeps them running
process      the process of one worker, and the hints that workers send each other
protocol     commands between the parent and a worker, how one is started, its log
board        memory that all workers share: signs of life, counts, levels of rates
"""

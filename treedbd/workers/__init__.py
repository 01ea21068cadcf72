"""Several processes that serve the same databases.

supervisor   the parent: owns the endpoints, keeps workers running
process      the process of one worker
protocol     what the parent and its workers say to each other
board        memory that all workers share
"""

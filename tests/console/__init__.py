"""The console: its files, and what a user does with it in a browser."""

"""Published clients of Firebase Realtime Database, run with a real daemon."""

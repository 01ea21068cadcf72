"""Clients of the vendor's service, as their registries have them, against a real daemon."""

"""Hosts of virtual ranks: one process for ranks that are threads, one process for each rank, and their server."""

"""Synchronization between threads: barriers, mbarriers, meetings of warps, and deadlock reports."""

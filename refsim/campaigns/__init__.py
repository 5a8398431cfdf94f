"""Campaigns in shards: one plan, any executor, one report.

A plan says what is to be done as shards of fixed content; workers of any kind (this process, local processes, a Dask cluster)
do them in any order; the journal keeps what is done; the report is of the plan alone and never of who did what.
"""

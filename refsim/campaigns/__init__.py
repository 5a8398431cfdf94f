"""Campaigns in shards: one plan, any executor, one report.

A plan lists the work as shards of fixed content. Workers of any kind (this process, local processes, a Dask cluster)
do the shards in any order. The journal keeps finished shards. The report depends on the plan, not on the workers.
"""

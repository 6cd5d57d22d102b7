"""States on many processes: move DistributedDataParallel models, and collect the reports of all ranks."""

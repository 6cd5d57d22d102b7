"""States on many processes: wrap again what DistributedDataParallel has wrapped, and report on all ranks."""

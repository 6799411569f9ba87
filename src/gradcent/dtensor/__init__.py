"""Centralization of sharded tensors: DTensors of FSDP2 and tensor parallelism."""

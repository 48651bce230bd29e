"""Simulated time: the engine step, the replica, the cluster, workload, acceptance, policies, metrics."""

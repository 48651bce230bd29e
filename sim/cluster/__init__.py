"""The cluster: arrivals, routing, replicas."""

"""The cluster in SimPy: arrivals, routing, replicas."""

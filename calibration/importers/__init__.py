"""Tables of measured times that other tools publish, read into draftcast's latency table and profile folders.

``aiconfigurator`` holds NVIDIA's kernel timings, ``vidur`` and ``llmservingsim`` the profiles of two simulators. Only
their file formats are known here; no code of theirs is used.
"""

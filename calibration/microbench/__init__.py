"""Times the kernels of `draftcast.kernels` on the machine at hand and writes a profile folder."""

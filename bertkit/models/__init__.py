"""Encoders: resolving, loading and checking them, devices and kernels."""

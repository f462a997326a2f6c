"""Bytes between processes: frames, codings of gradients, sockets with and without TLS, memory shared on one machine."""

__all__ = ["codec", "frame_io", "frames", "gate", "row_frames", "security", "shared_memory"]

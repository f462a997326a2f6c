"""Bytes between processes: frames, codings of gradients, sockets with and without TLS, memory shared on one machine."""

"""One exchange: frames, plan, rounds, kernels, client, server."""

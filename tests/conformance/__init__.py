"""One suite on the in-process log and on real servers: what must hold on any of them."""

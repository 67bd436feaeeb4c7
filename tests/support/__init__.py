"""Tools of the test suite: real servers, a raw client, and a scripted server for faults."""

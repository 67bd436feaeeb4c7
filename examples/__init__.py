"""Services to run, read and copy from; the test suite runs them too."""

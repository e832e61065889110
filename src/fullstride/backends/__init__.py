"""Which library multiplies: everything is tried and raced in a child process, once a machine; the choice is cached."""

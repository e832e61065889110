PATIENCE = 300
"""Seconds that a test waits for another process or thread at most. A test that passes does not wait so long: it only
must not fail on a machine that does much else, where `import torch` alone has taken 25 s."""

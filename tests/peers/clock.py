"""clock.py - how long the steps of a peer take: `batches` goes around what a loop of training runs over.

A step is from the moment that a batch was given until the next one is asked for, in processor time of this process.
"""

import resource
import statistics
import time

UNTIMED = 3  # steps in which memory grows and kernels are chosen
seconds = []


def batches(found):
    """Give the batches of a list, one by one, and note the time of each step."""
    for batch in list(found):
        began = time.process_time()
        yield batch
        seconds.append(time.process_time() - began)


def report():
    """Print what cost.lua prints, but for what lies saved."""
    print(f"step = {1e3 * statistics.median(seconds[UNTIMED:]):.3f}")
    print(f"peak = {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6:.1f}")

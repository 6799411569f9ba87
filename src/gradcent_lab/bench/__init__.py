"""`gradcent bench`: the cost of an optimizer step with GC on this machine, beside other implementations."""

"""`gradcent bench`: what a step with GC costs on this machine, beside every other way of taking it."""

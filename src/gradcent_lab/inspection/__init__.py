"""Static inspection of the GPU kernels: compiled ahead of time and disassembled, on a machine without a GPU."""

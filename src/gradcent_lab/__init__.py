"""The lab: does gradient centralization help, on the paper's tasks and on yours?"""

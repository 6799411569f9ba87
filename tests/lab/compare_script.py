"""A training script for the tests of `gradcent compare --command`: one JSON line per epoch."""

import argparse
import json
import random
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--gc", action="store_true")
parser.add_argument("--mode", default="good")
parser.add_argument("--file")
args = parser.parse_args()

noise = random.Random(args.seed)
base, scatter = 60 + noise.gauss(0, 1), noise.gauss(0, 0.2)
if args.mode == "silent":
    print("done")
elif args.mode == "fails":
    sys.exit("no data here")
else:
    stream = open(args.file, "w") if args.file else sys.stdout  # noqa: SIM115
    print("a line that is no JSON")
    for epoch in (1, 2, 3):
        value = base + 5 * epoch + (3 + scatter if args.gc else 0)
        if args.mode == "nan" and args.gc:
            value = float("nan")
        print(json.dumps({"epoch": epoch, "accuracy": value}), file=stream)

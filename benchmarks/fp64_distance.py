"""How far the losses of stock PyTorch and of Fullstride in fp32 are from those of the same training in fp64.

    python -m benchmarks.fp64_distance [--widths 784,4096,4096,4096,2560,1000] [--steps 8] [--seeds 1]

Stock and ours sum in another order, and Adam's first steps turn the sign of a tiny gradient into a whole step, so their
losses may part. Which is nearer to the truth only fp64 can tell. "stock, shuffled" is stock with the rows of each batch
in another order: the same mathematics again, and so a measure of what the order of sums alone does.
"""

import argparse

import torch
from torch import nn

import fullstride
from fullstride.bench.step import models as step_models


def losses(kind: str, widths: tuple[int, ...], steps: int, seed: int) -> list[float]:
    torch.manual_seed(seed)
    model = step_models.build_mlp(widths)
    if kind == "fp64":
        model.double()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if kind == "ours":
        model, optimizer = fullstride.prepare(model, optimizer, precision="fp32", clip=1.0)
    batch = step_models.classes(128, widths[-1], widths[0])
    result = []
    for step in range(steps):
        x, y = batch(torch.Generator().manual_seed(1000 * seed + step))
        if kind == "stock, shuffled":
            order = torch.randperm(len(y), generator=torch.Generator().manual_seed(step))
            x, y = x[order], y[order]
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(model(x.double() if kind == "fp64" else x), y)
        loss.backward()
        if kind != "ours":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        result.append(loss.item())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="784,4096,4096,4096,2560,1000")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    widths = tuple(map(int, options.widths.split(",")))
    for seed in range(options.seeds):
        exact = losses("fp64", widths, options.steps, seed)
        for kind in ("stock", "stock, shuffled", "ours"):  # ours last: it sets up the whole process
            given = losses(kind, widths, options.steps, seed)
            distance = max(abs(a - b) / b for a, b in zip(given, exact, strict=True))
            print(f"seed {seed}  {kind:<16} at most {distance:.1e} from fp64", flush=True)


if __name__ == "__main__":
    main()

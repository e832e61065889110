"""How far the losses of recipe mlp-mnist are from the same training in fp64: ours, and stock PyTorch's.

    python -m benchmarks.recipe_distance [--steps 40]

At its learning rate rounding grows from step to step, so two fp32 runs that add in another order drift apart. This
tells whether ours drifts further from the exact run than stock PyTorch does. Needs `fullstride data mnist`.
"""

import argparse
from typing import Any

import torch

import fullstride
from fullstride.data.order import Order
from fullstride.models import mlp
from fullstride.recipes import get
from fullstride.train.assembly import build_schedule


def main() -> None:
    parser = argparse.ArgumentParser(description="Losses of mlp-mnist against fp64.")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    config = get("mlp-mnist")()
    task = config.task()
    schedule = build_schedule(config, task.length(config))
    order = Order(len(task.train_data), config.micro_batch, config.seed)
    assert config.clip is not None

    def build(dtype: torch.dtype) -> tuple[Any, Any]:
        torch.manual_seed(config.seed)
        model = task.build_model().to(dtype)
        wish = config.optimizer
        return model, torch.optim.AdamW(model.parameters(), lr=wish.lr, weight_decay=wish.weight_decay)

    sides = {"fp64": build(torch.float64), "stock": build(torch.float32), "ours": build(torch.float32)}
    sides["ours"] = fullstride.prepare(*sides["ours"], precision="fp32", clip=config.clip)
    losses: dict[str, list[float]] = {name: [] for name in sides}
    for step in range(options.steps):
        inputs, labels = task.train_data.batch(*order.micro_batch(step))
        for name, (model, optimizer) in sides.items():
            schedule.set(optimizer, step)
            loss = mlp.loss(model, (inputs.double() if name == "fp64" else inputs, labels))
            loss.backward()
            if name != "ours":  # whose optimizer clips
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            optimizer.zero_grad()
            losses[name].append(loss.item())
    print("step   stock    ours   relative distance of the loss to fp64's")
    for step, exact in enumerate(losses["fp64"]):
        stock, ours = (abs(losses[name][step] - exact) / exact for name in ("stock", "ours"))
        print(f"{step:4} {stock:7.0e} {ours:7.0e}")


if __name__ == "__main__":
    main()

"""The table of techniques: name, what it is, how it is switched on alone and how it is left out."""

from typing import Any

from .switching import (
    ADDED,
    ALL,
    ALL_FP32,
    ALONE,
    LEFT_OUT,
    NOTHING,
    STOCK,
    Answer,
    Subject,
    Technique,
    Trial,
    of_all,
    of_config,
    over_stock,
    switch,
    with_note,
    without,
)


def _heap() -> Technique:
    def alone(subject: Subject) -> Answer:
        settings = {"imports": True, "over_stock": True, "environment": {"FULLSTRIDE_HEAP": "1"}}
        return Trial(ALONE, STOCK, True, settings, note="`import fullstride`, and nothing else")

    def within(subject: Subject) -> Answer:
        value = "0" if subject.heap_kept else "1"
        settings = of_all(subject) | {"environment": {"FULLSTRIDE_HEAP": value}}
        return Trial(LEFT_OUT if subject.heap_kept else ADDED, ALL, not subject.heap_kept, settings)

    return Technique("freed memory is kept, in huge pages, instead of given back to the system", alone, within)


def _threads() -> Technique:
    def alone(subject: Subject) -> Answer:
        return Trial(ALONE, STOCK, True, over_stock(["threads"], subject))

    def within(subject: Subject) -> Answer:
        return Trial(LEFT_OUT, ALL, False, without(subject, "threads"))

    return Technique("one thread a usable core, denormals flushed to zero", alone, within)


def _bf16() -> Technique:
    needs = ("optimizer",)

    def alone(subject: Subject) -> Answer:
        settings = over_stock(["optimizer"], subject, "bf16")
        return Trial(ALONE, STOCK, True, settings, note=f"torch's modules under autocast; {with_note(needs)}")

    def within(subject: Subject) -> Answer:
        if subject.precision == "bf16":
            return Trial(LEFT_OUT, ALL, False, of_all(subject, "fp32"), note="fp32 instead")
        return Trial(ADDED, ALL, True, of_all(subject, "bf16"), note=f"instead of {subject.precision}")

    return Technique("bf16 with split weights, exact in fp32", alone, within, needs)


def _optimizer() -> Technique:
    def alone(subject: Subject) -> Answer:
        return Trial(ALONE, STOCK, True, over_stock(["optimizer"], subject))

    def within(subject: Subject) -> Answer:
        if subject.precision == "fp32":
            return Trial(LEFT_OUT, ALL, False, without(subject, "optimizer", precision="fp32"))
        note = f"both in fp32: in {subject.precision} nobody else can step the weights"
        return Trial(LEFT_OUT, ALL_FP32, False, without(subject, "optimizer", precision="fp32"), note=note)

    return Technique("the optimizer in one call a step, clipping inside", alone, within)


def _states(precision: str) -> Technique:
    needs = ("optimizer",)

    def changes(value: str) -> dict[str, Any]:
        return {"optimizer": {"state_precision": value}}

    def alone(subject: Subject) -> Answer:
        settings = over_stock(["optimizer"], subject, state_precision=precision)
        return Trial(ALONE, STOCK, True, settings, changes(precision), with_note(needs))

    def within(subject: Subject) -> Answer:
        has = subject.config.optimizer.state_precision
        if has == precision:
            return Trial(LEFT_OUT, ALL, False, of_all(subject), changes("fp32"))
        note = "" if has == "fp32" else f"instead of {has}"
        return Trial(ADDED, ALL, True, of_all(subject), changes(precision), note)

    return Technique(f"the optimizer's moments in {precision}", alone, within, needs)


def _accumulation() -> Technique:
    what = "a step as several smaller micro-batches whose gradients are added up"

    def changes(subject: Subject) -> dict[str, Any] | str:
        config = subject.config
        if subject.micro_batch_matters:
            return f"another training: {subject.micro_batch_matters}"
        if config.accumulate > 1:
            return {"micro_batch": config.micro_batch * config.accumulate, "accumulate": 1}
        if config.micro_batch % 2:
            return f"a micro-batch of {config.micro_batch} cannot be halved"
        return {"micro_batch": config.micro_batch // 2, "accumulate": 2}

    def ask(subject: Subject, reference: str) -> Answer:
        config, found = subject.config, changes(subject)
        if isinstance(found, str):
            return found
        has_it, settings = config.accumulate > 1, {} if reference == STOCK else of_all(subject)
        way = ALONE if reference == STOCK else LEFT_OUT if has_it else ADDED
        size = f"{found['accumulate']} x {found['micro_batch']}"
        note = f"{size} against {config.accumulate} x {config.micro_batch} samples"
        return Trial(way, reference, not has_it, settings, found, note)

    return Technique(what, lambda subject: ask(subject, STOCK), lambda subject: ask(subject, ALL))


def _overlap() -> Technique:
    needs, one = ("products",), f"{NOTHING}: there is one thread"

    def alone(subject: Subject) -> Answer:
        if subject.threads < 2:
            return one
        settings = over_stock(["linear", "products", "overlap"], subject) | {"overlaps": True}
        return Trial(ALONE, STOCK, True, settings, note=with_note(needs))

    def within(subject: Subject) -> Answer:
        if subject.threads < 2:
            return one
        if "overlap" in subject.used:
            return Trial(LEFT_OUT, ALL, False, without(subject, "overlap"))
        return Trial(ADDED, ALL, True, of_all(subject) | {"overlaps": True})

    return Technique("weight gradients beside the rest of backward", alone, within, needs)


def _kept_activations() -> Technique:
    def alone(subject: Subject) -> Answer:
        return Trial(ALONE, STOCK, True, over_stock([], subject, activations="bf16"))

    def within(subject: Subject) -> Answer:
        if subject.precision != "fp32":
            return f"{NOTHING}: in {subject.precision} they have 16 bits already"
        has_it = subject.config.activations == "bf16"
        changes = {"activations": "same" if has_it else "bf16"}
        return Trial(LEFT_OUT if has_it else ADDED, ALL, not has_it, of_all(subject), changes)

    return Technique("what forward keeps for backward in bf16", alone, within)


def _compile() -> Technique:
    def alone(subject: Subject) -> Answer:
        return Trial(ALONE, STOCK, True, {"compile": True}, is_compiled=True)

    def within(subject: Subject) -> Answer:
        return Trial(ADDED, ALL, True, of_all(subject) | {"compile": True}, is_compiled=True)

    return Technique("torch.compile; inside it our kernels are torch's own operations", alone, within)


TECHNIQUES = {
    "heap": _heap(),
    "threads": _threads(),
    "bf16": _bf16(),
    "products": switch(
        "products of linear layers by the library that was measured to be fastest, ours among them", "products",
        plus=["linear"], absent="torch's own were measured to be the fastest",
    ),
    "activations": switch("a linear layer and the activation behind it in one pass", "activations"),
    "norms": switch("LayerNorm and RMSNorm in one pass", "norms"),
    "attention": switch("attention that never writes down its weights", "attention"),
    "rotary": switch("rotary positions in one pass", "rotary"),
    "loss": switch(
        "cross-entropy and the contrastive loss in one pass", "loss",
        absent="it is computed outside of the model, or with lazy logits",
    ),
    "lazy-logits": switch(
        "head and loss as one, without logits in memory", "lazy_logits", absent="the model has no large head"
    ),
    "fusion": switch(
        "what torch.fx finds: gates, and sums with the norms behind them, in one pass", "gates", "residuals",
        plus=["norms"], needs=("norms",),
    ),
    "embedding": switch("look-ups whose backward touches the rows that were looked up", "embedding"),
    "tied-gradients": switch(
        "a head tied to an embedding hands its gradient over", "tied_gradients", plus=["lazy_logits", "embedding"],
        needs=("lazy-logits", "embedding"), absent="no large head is tied to an embedding",
    ),
    "dropout": switch("dropout that keeps no mask", "dropout"),
    "convolutions": switch("convolutions as products", "convolutions"),
    "optimizer": _optimizer(),
    "states-bf16": _states("bf16"),
    "states-8bit": _states("8bit"),
    "lookahead": of_config(
        "slow weights that follow the fast ones", lambda config: config.optimizer.lookahead,
        {"optimizer": {"lookahead": True}}, {"optimizer": {"lookahead": False}},
    ),
    "lamb": of_config(
        "LAMB instead of AdamW", lambda config: config.optimizer.name == "lamb",
        {"optimizer": {"name": "lamb"}}, {"optimizer": {"name": "adamw"}},
    ),
    "freezing": of_config(
        "layers that have settled stop training, from the front", lambda config: config.freeze.enabled,
        {"freeze": {"enabled": True}}, {"freeze": {"enabled": False}},
    ),
    "accumulation": _accumulation(),
    "overlap": _overlap(),
    "kept-activations": _kept_activations(),
    "compile": _compile(),
}  # fmt: skip


def check_names(names: list[str]) -> None:
    """ValueError for one that is not there. No torch."""
    for name in names:
        if name not in TECHNIQUES:
            raise ValueError(f"--only: expected names of {', '.join(TECHNIQUES)}; got {name!r}")

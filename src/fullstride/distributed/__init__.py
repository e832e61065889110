"""One run in several processes, on one machine or many, on torch.distributed.

    world.py           who is there; small sums and messages among all
    launched.py        what a launcher has told a process
    rendezvous.py      how they find each other, and what listens where
    agreement.py       what all must have in common before the first step
    replicas.py        a model that stays the same in all: what the trainer calls
    gradients.py       averages of gradients, by DistributedDataParallel, in fp32 or bf16
    late_sums.py       the same when backward is over, for models of which nobody knows what a step uses
    shared_sums.py     sums between processes of one machine, in memory that they share
    messages.py        what sums are sent in, and how many bytes that is
    wire.py            which of the two is faster between these processes
    local_updates.py   steps of one's own, then an average of weights: for slow networks
    sharding.py        states of the optimizer, each in one process
    batch_norm.py      statistics over the parts of a micro-batch
    peers.py           those with the other parts of a micro-batch
    launching.py       processes on this machine, by torch's elastic agent
    step_time.py       what more machines would give: a model of a step's time
"""

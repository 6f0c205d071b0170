### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.2; test_answers.py says how they are written."""

from labkit.check import dp_2 as claims

PLACE = 'os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = master_addr, str(master_port)'
GROUP = "(backend, rank=rank, world_size=world_size)"
BELOW = "str(master_port % 20000 + 10000)"  # below the ports that connections take, one of which may be next to ours

WRONG = {
    claims.ranks_form_a_group: {
        "a group for each rank": (
            "rank 0 of 3, on gloo, found itself rank 0 in a group of ranks [0]",
            (GROUP, "(backend, store=dist.HashStore(), rank=0, world_size=1)"),
        ),
        "ranks from the last to the first": (
            "rank 0 of 3, on gloo, found itself rank 2 in a group of ranks [0, 1, 2]",
            (GROUP, GROUP.replace("rank=rank", "rank=world_size - 1 - rank")),
        ),
    },
    claims.ranks_meet_at_the_port: {
        "at a port of its own": ("nobody listens there", ("str(master_port)", BELOW)),
    },
    None: {
        "does not say where to meet": ("environment variable MASTER_ADDR expected, but not set", (PLACE, "")),
        "raises in a rank": ("it raised KeyError: 'MASTER' (labkit/dp", (PLACE, "{}['MASTER']")),
        "makes no group": ("Default process group has not been initialized", (f"dist.init_process_group{GROUP}", "")),
        "waits for one rank more": ("as ranks 0, 1 and 2 of 4, 4 and 4", ("=world_size)", "=world_size + 1)")),
        "each at a port of its own": (
            "would wait for each other for ever: they wait at ports",
            ("str(master_port)", "str(master_port + rank)"),
        ),
        "counts from one": ("as ranks 1, 2 and 3 of 3", (GROUP, GROUP.replace("rank=rank", "rank=rank + 1"))),
    },
}
RIGHT = {
    "by an address": [
        (PLACE, "meet_at = f'tcp://127.0.0.1:{master_port}'"),
        (GROUP, GROUP.replace("(backend", "(backend, meet_at")),
    ],
    "by four variables": [
        (PLACE, f"{PLACE}\n    os.environ['RANK'], os.environ['WORLD_SIZE'] = str(rank), str(world_size)"),
        (GROUP, "(backend)"),
    ],
    "through a store on loopback alone": [
        (
            PLACE,
            "from labkit.base.rendezvous import listen\n"
            "    at = listen(master_addr, master_port) if rank == 0 else None\n"
            "    store = dist.TCPStore(master_addr, master_port, world_size, rank == 0, master_listen_fd=at)",
        ),
        (GROUP, "(backend, store=store, rank=rank, world_size=world_size)"),
    ],
}
DEFAULTS = 'os.environ.setdefault("MASTER_ADDR", master_addr); os.environ.setdefault("MASTER_PORT", str(master_port))'
KEPT = 'os.environ.setdefault("RANK", str(rank)); os.environ.setdefault("WORLD_SIZE", str(world_size))'
WRONG[claims.what_it_is_given_counts] = {
    "gloo, whatever is asked for": (
        "of ranks [0, 1, 2], on gloo: pass on",
        (GROUP, GROUP.replace("backend", '"gloo"')),
    ),
    "the backend of the machine": (
        "of ranks [0, 1, 2], on gloo: pass on",
        (GROUP, GROUP.replace("backend", '"nccl" if torch.cuda.is_available() else "gloo"')),
    ),
    "keeps a port that is set": ("already set: nobody listens there", (PLACE, DEFAULTS)),
}
WRONG[claims.ranks_meet_at_the_port] |= {
    "the port of the handout": ("nobody listens there", ("str(master_port)", '"11868"'))
}
WRONG[None] |= {
    "keeps a rank that is set": ("already set: it raised", (PLACE, f"{PLACE}; {KEPT}"), (GROUP, "(backend)")),
}
ADDRESS_OF_THE_HANDOUT = "localhost, as in the handout"
RIGHT |= {
    ADDRESS_OF_THE_HANDOUT: [
        (PLACE, 'os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(master_port)')
    ],
    "all by name": [
        (PLACE, 'os.environ.update(MASTER_ADDR=master_addr, MASTER_PORT=f"{master_port}")'),
        (GROUP, '(init_method="env://", world_size=world_size, rank=rank, backend=backend)'),
    ],
}
REMARKS = {ADDRESS_OF_THE_HANDOUT: "on two machines they would not meet"}

### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.2; test_answers.py says how they are written."""

from labkit.check import dp_2 as claims

PLACE = 'os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = master_addr, str(master_port)'
GROUP = "(backend, rank=rank, world_size=world_size)"

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
        "at a port of its own": ("nobody listens there", ("str(master_port)", "str(master_port - 1)")),
    },
    None: {
        "does not say where to meet": ("environment variable MASTER_ADDR expected, but not set", (PLACE, "")),
        "raises in a rank": ("it raised KeyError: 'MASTER' (labkit/dp", (PLACE, "{}['MASTER']")),
        "makes no group": ("Default process group has not been initialized", (f"dist.init_process_group{GROUP}", "")),
        "waits for one rank more": ("others than world_size says", ("=world_size)", "=world_size + 1)")),
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

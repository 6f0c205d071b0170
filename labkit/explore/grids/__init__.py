"""Explore what moves between ranks: grids of cells, rank by chunk, that change from step to step.

cells             what ranks hold, step by step, as a panel
rings             the ring, the parameter server and the naive ring, step by step; ring_panel: how
                  that is shown and narrated
ring_answer       the ring as the reader filled it in by hand: fill_ring
ring_recording    the reader's own ring, as it was recorded in real ranks; ring_rank logs it there
tagged_tensor     tensors whose numbers say whose they are
collectives       seven collectives, as real ranks saw them; collectives_rank calls them there
widget            ring_explorer, collectives_explorer
"""

"""Train a small network on handwritten digits: several ranks, their gradients averaged by hand.

torchrun --standalone --nproc-per-node 2 examples/2_averaged_by_hand.py
"""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from labkit.dp import average_gradients  # yours: task dp.4

EPOCHS, BATCH_SIZE, SEED = 3, 64, 0


def digits():
    """Return 1797 images, each a row of 8 × 8 numbers from 0 to 1, and the digit each one shows."""
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))


def report(epoch, step, loss):
    dist.all_reduce(loss)  # the sum over all ranks, on each of them
    if dist.get_rank() == 0:  # or every line would come once from each rank
        print(f"epoch {epoch + 1}, step {step}, loss {loss / dist.get_world_size():.4f}", flush=True)


def train(device):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if BATCH_SIZE % world_size:
        raise SystemExit(f"{BATCH_SIZE} rows cannot be shared out equally to {world_size} ranks: take 2, 4 or 8 ranks")
    torch.manual_seed(SEED)  # the same on every rank, so all start from the same weights
    dataset = digits()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        # Each epoch has its own order, drawn from seed and epoch alone: anyone can draw it again.
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(SEED + epoch))
        for step in range(1, len(dataset) // BATCH_SIZE + 1):  # the rows left over wait for the next epoch
            rows = order[(step - 1) * BATCH_SIZE : step * BATCH_SIZE]
            images, labels = dataset[rows[rank::world_size]]  # of two ranks, each has every second row
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            average_gradients(model)  # equal shards: the mean of their means is the mean of the batch
            optimizer.step()
            if step % 7 == 0:  # four times an epoch
                report(epoch, step, loss.detach())


if __name__ == "__main__":
    if "LOCAL_RANK" not in os.environ:  # torchrun tells each rank where it stands
        raise SystemExit(f"This needs to be started by torchrun:\n{__doc__}")
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available() and torch.accelerator.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    train(device)
    dist.destroy_process_group()

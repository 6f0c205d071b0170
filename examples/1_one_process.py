"""Train a small network on handwritten digits, in one process.

python examples/1_one_process.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

EPOCHS, BATCH_SIZE, SEED = 3, 64, 0


def digits():
    """Return 1797 images, each a row of 8 × 8 numbers from 0 to 1, and the digit each one shows."""
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))


def report(epoch, step, loss):
    print(f"epoch {epoch + 1}, step {step}, loss {loss:.4f}", flush=True)


def train(device):
    torch.manual_seed(SEED)
    dataset = digits()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        # Each epoch has its own order, drawn from seed and epoch alone: anyone can draw it again.
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(SEED + epoch))
        for step in range(1, len(dataset) // BATCH_SIZE + 1):  # the rows left over wait for the next epoch
            rows = order[(step - 1) * BATCH_SIZE : step * BATCH_SIZE]
            images, labels = dataset[rows]
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 7 == 0:  # four times an epoch
                report(epoch, step, loss.detach())


if __name__ == "__main__":
    train(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
